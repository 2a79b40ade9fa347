//! The one table of options: names, values, defaults, sections and help.
//!
//! Held by the snapshot of `--help` (`help.rs`), `tests/torchrun/flags.rs` (what torchrun's options do) and
//! `tests/documents` (that each one of torchrun and DLRover is in the documents as it is).

use super::{
    Kind::{Completion, Float, Help, Int, List, Pairs, Text, Version},
    OptionSpec, choice, count, option, prints, switch,
};
use crate::{
    metrics_compat::METRICS_COMPAT,
    resolve::{
        hang::{ON_HANG, PROGRESS},
        log::FORMATS,
        warm::WARM,
    },
};

/// The section of the job master's options.
pub(crate) const MASTER: &str = "Job master, where this launcher serves it (dlrover-master takes the same)";

/// The choices of `--switchbox-path`.
pub const SWITCHBOX_PATHS: &[&str] = &["auto", "any", "metaxlink", "nvlink"];

/// The values of `--accelerator`, as dlrover's and the MetaX guide's.
const ACCELERATORS: &[&str] = &["nvidia.com/gpu", "metax-tech.com/gpu", "mthreads.com/gpu", "ascend-npu"];

/// The shells of `--print-completion`.
const SHELLS: &[&str] = &["bash", "zsh", "fish", "tcsh"];

// Sections and rows are in the order of `--help`.
super::options! {
    "Workers" {
        NprocPerNode = option("nproc-per-node", "N|auto|cpu|gpu", Text).default("1").of_torchrun(),
            "How many workers this node starts: a number, one for each CPU (cpu) or accelerator (gpu), or auto: \
             accelerators if there are any, else CPUs";
        Role = option("role", "NAME", Text).default("default").of_torchrun(),
            "The workers' role, ROLE_NAME for the workers";
        Module = switch("module").short('m').of_torchrun(),
            "The script is a module: start it with python -m";
        NoPython = switch("no-python").of_torchrun(),
            "The script is a program of its own: start it without Python";
    }
    "Nodes and rendezvous" {
        Nnodes = option("nnodes", "N|MIN:MAX", Text).default("1:1").of_torchrun(),
            "How many nodes take part: N, or MIN:MAX for an elastic job";
        RdzvBackend = option("rdzv-backend", "NAME", Text).default("static").of_torchrun(),
            "How nodes find each other: static (at --master-addr) or c10d (at --rdzv-endpoint)";
        RdzvEndpoint = option("rdzv-endpoint", "HOST[:PORT]", Text).of_torchrun(),
            "Where nodes find each other: the launcher on that host serves the job master; put an IPv6 address in \
             brackets [default port of c10d: 29400]";
        RdzvId = option("rdzv-id", "ID", Text).default("none").of_torchrun(),
            "The run id of the job, TORCHELASTIC_RUN_ID for the workers";
        RdzvConf = option("rdzv-conf", "K=V,...", Text).of_torchrun(),
            "Further settings: join_timeout=600, how many seconds to wait for enough nodes, or for a job master \
             that cannot be reached; lastcall_timeout=3, the seconds that --nnodes=MIN:MAX waits for another node; \
             is_host=true or false, whether this launcher serves the job master (c10d)";
        Standalone = switch("standalone").of_torchrun(),
            "Run on this node alone: free ports, a fresh run id; the other rendezvous options are ignored";
        NodeRank = option("node-rank", "N", Int).of_torchrun(),
            "The node rank that this node asks for, from 0 [default: none with torchrun's options, NODE_RANK with \
             DLROVER_MASTER_ADDR]; with --rdzv-backend=static, the node with node rank 0 serves the job master";
        MasterAddr = option("master-addr", "HOST", Text).default("127.0.0.1").of_torchrun(),
            "Address of the node with node rank 0 of a static rendezvous";
        MasterPort = option("master-port", "PORT", Int).of_torchrun(),
            "The port at --master-addr, for the workers' store and the job master [default: 29500; a free one \
             on a single node]";
        LocalAddr = option("local-addr", "HOST", Text).of_torchrun(),
            "The address by which workers of other nodes reach this one [default: POD_IP, --node-ip, NODE_IP or \
             HOST_IP, else what the job master sees]";
        NodeUnit = option("node-unit", "N", Int).default("1"),
            "The number of nodes is always a multiple of this";
        AutoConfig = switch("auto-config"),
            "Nodes from NODE_NUM, workers from the accelerators found, and a network check if there are 4 or more nodes";
        NodeIp = option("node-ip", "ADDRESS", Text),
            "The address that the topology file lists this node under [default: NODE_IP, HOST_IP or POD_IP]";
        RequireUniform = switch("require-uniform"),
            "Reject nodes whose number of workers differs from the first node's";
        JobTokenFile = option("job-token-file", "FILE", Text),
            "The file with the job token: only nodes that have the token may join [default: \
             DLROVER_JOB_TOKEN, or the file that DLROVER_JOB_TOKEN_FILE names]";
        TlsCa = option("tls-ca", "FILE", Text),
            "Speak TLS with the job master: the PEM file of the CA that signed its certificate [default: \
             DLROVER_TLS_CA]";
        TlsCert = option("tls-cert", "FILE", Text),
            "This node's certificate; a launcher that serves the job master presents it, and requires one from \
             every node [default: DLROVER_TLS_CERT]";
        TlsKey = option("tls-key", "FILE", Text),
            "The key of --tls-cert [default: DLROVER_TLS_KEY]";
    }
    MASTER {
        RestartCount = option("restart-count", "N", Int).default("3").alias("restart-counts"),
            "How many times the node of one node rank may be replaced after a loss before the job fails";
        ReconnectGrace = option("reconnect-grace", "SECONDS", Float).default("2"),
            "How long a node whose connection broke may take to reconnect before it counts as lost";
        HeartbeatTimeout = option("heartbeat-timeout", "SECONDS", Float).default("15"),
            "How long a node may send no heartbeat before it counts as lost; at least 6 heartbeat intervals (1 s each for \
             up to 1000 nodes)";
        StateDir = option("state-dir", "DIR", Text),
            "Where the job master keeps its state, so that the same launcher, started again, continues the job \
             [default: nowhere, and the job ends with that launcher]";
        TaintReport = option("taint-report", "FILE", Text).requires(Flag::NetworkCheck),
            "Write the result of each network check to this file, as JSON (dlrover.taint-report/v1)";
        TaintKey = option("taint-key", "KEY", Text).default("dlrover.io/node-check").requires(Flag::NetworkCheck),
            "The key of the taints in that report";
        TaintGuard = option("taint-guard", "SHARE", Float).default("0.3").requires(Flag::NetworkCheck),
            "When more than this share of the nodes (and more than 2) would be tainted, no node is tainted and \
             the job fails";
        TopologyConfig = option("topology-config", "FILE", Text),
            "Lines of `asw psw ip`: nodes below one switch get adjacent ranks; read again for each round \
             [default: DLROVER_TOPOLOGY_CONFIG, else none]";
        Http = option("http", "ADDR:PORT", Text),
            "Serve a web page about the job, /metrics for Prometheus, /status.json and /healthz; a port alone is served on \
             127.0.0.1 [default: off]";
        MetricsCompat = choice("metrics-compat", "NAMES", METRICS_COMPAT).default("none").requires(Flag::Http),
            "Serve the job's /metrics under the names of Kubeflow's mpi-operator too";
    }
    "Failures and shutdown" {
        MaxRestarts = option("max-restarts", "N", Int).default("0").of_torchrun(),
            "How many times all workers are restarted after one has failed";
        SignalsToHandle = option("signals-to-handle", "NAMES", Text)
            .default("SIGTERM,SIGINT,SIGHUP,SIGQUIT").of_torchrun(),
            "Signals that end the run and are forwarded to the workers";
        ShutdownTimeout = option("shutdown-timeout", "SECONDS", Int).of_torchrun(),
            "How long workers may take to end after a signal before they are killed [default: \
             TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30]";
        PropagateExitCode = switch("propagate-exit-code"),
            "Exit with the code of the worker that failed first (128+N for signal N) instead of 1";
    }
    "Hangs" {
        Progress = choice("progress", "HOW", PROGRESS).default("auto"),
            "How workers show progress: auto (what scripts declare, and torch's optimizer steps in Python \
             workers), or declared (only what scripts write to DLROVER_PROGRESS_FILE); docs/progress.md";
        HangTimeout = option("hang-timeout", "SECONDS", Float).default("300"),
            "The job counts as hanging when no rank has made progress for this long; the stacks of all ranks are taken \
             then; 0: no hang detection [env: XPU_TIMER_HANG_TIMEOUT]";
        HangGrace = option("hang-grace", "SECONDS", Float).default("1800"),
            "How long the first step or a checkpoint may take";
        HangSource = option("hang-source", "LIST", Text).default("progress"),
            "What counts as progress, comma-separated: progress (what workers show by --progress), output (bytes that \
             they write), cpu (CPU time that they use)";
        OnHang = choice("on-hang", "WHAT", ON_HANG).default("dump"),
            "What to do about a hang: dump (the stacks are written, and every node is notified), restart (all workers; the \
             node that the stacks name uses one of its restarts), or exit (the job fails)";
    }
    "Warm workers" {
        Warm = choice("warm", "WHEN", WARM).default("off"),
            "Fork Python workers from a template, a process that has imported what they import: off, restart \
             (the workers of a restart), or start (the first workers too); docs/warm.md [env: DLROVER_WARM]";
        WarmModules = option("warm-modules", "NAME,...", List).requires(Flag::Warm),
            "What the template imports [default: what a worker has imported after its first step; before any step, what the \
             script's import statements name]";
        WarmMemory = option("warm-memory", "MIB", Int).requires(Flag::Warm),
            "The most memory that the template may use, including its share of shared pages; a larger template \
             is not used [default: 2048, or 2 % of the node's memory if that is more]";
    }
    "Checkpoints in memory" {
        FlashCkptMemory = option("flash-ckpt-memory", "MIB", Int),
            "How much memory of this node checkpoints may use; with too little, a save to disk is written at once, and a \
             save to memory fails (docs/flash-checkpoint.md) [default: 40 % of the node's memory, or of the limit of its cgroup]";
        SaveAtBreakpoint = switch("save-at-breakpoint"),
            "When workers fail, also write the newest checkpoint in memory to disk";
    }
    "Output and logs" {
        LogDir = option("log-dir", "DIR", Text).of_torchrun(),
            "Where logs and error files go, each run in a directory of its own [default: DLROVER_LOG_AGENT_DIR, else a \
             temporary one]; /dev/null: none are written";
        Redirects = option("redirects", "STREAMS", Text).short('r').default("0").of_torchrun(),
            "Write streams to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: \
             0:3,1:2";
        Tee = option("tee", "STREAMS", Text).short('t').default("0").of_torchrun(),
            "Write streams to log files and to the console; values as for --redirects";
        LogLinePrefixTemplate = option("log-line-prefix-template", "TEMPLATE", Text).of_torchrun(),
            "The prefix of each tee'd line on the console; may contain ${role_name}, ${local_rank}, ${rank} and ${hostname} \
             [default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:]";
        LocalRanksFilter = option("local-ranks-filter", "R,R,...", Text).of_torchrun(),
            "Show only these local ranks on the console; log files stay complete";
        DuplicateStdoutFilters = option("duplicate-stdout-filters", "TEXT,...", List).of_torchrun(),
            "Copy tee'd lines of standard output that contain one of these texts to filtered_stdout.log (,, is a \
             comma)";
        DuplicateStderrFilters = option("duplicate-stderr-filters", "TEXT,...", List).of_torchrun(),
            "The same for standard error and filtered_stderr.log";
        EventLogHandler = option("event-log-handler", "NAME", Text).default("null").of_torchrun(),
            "Where the launcher's events go: null (nowhere) or console (JSON lines on standard error)";
    }
    "The launcher's own output" {
        LogFormat = choice("log-format", "FORMAT", FORMATS).default("text"),
            "The form of the launcher's and the job master's own lines: text, or json (one object per line) [env: \
             DLROVER_LOG_FORMAT]";
        Quiet = switch("quiet").short('q'),
            "Print only errors and the report of a failure";
        Verbose = count("verbose").short('v'),
            "Print what the launcher does: configuration, rendezvous, workers, log directory (as LOGLEVEL=INFO); -vv: \
             every event";
        ReportJson = option("report-json", "FILE", Text),
            "Write the outcome of the run to this file at its end, as JSON (dlrover.run-report/v1) [env: \
             DLROVER_REPORT_JSON]";
    }
    "Devices and NUMA" {
        NumaBinding = choice("numa-binding", "MODE", &["node", "socket", "exclusive", "core-complex"])
            .without_variable().of_torchrun(),
            "Keep each worker on CPUs near its accelerator: all CPUs of its NUMA node (node) or \
             of its socket (socket), an exclusive share of its NUMA node's cores (exclusive), or one core complex \
             (core-complex)";
        VirtualLocalRank = switch("virtual-local-rank").of_torchrun(),
            "Every worker sees LOCAL_RANK=0 and only its own accelerator";
        GpuMemEnforce = switch("gpu-mem-enforce"),
            "Kill a worker that uses over 110 % of its share of an accelerator that containers share (gpushare), \
             three seconds in a row";
        Accelerator = choice("accelerator", "NAME", ACCELERATORS).default("nvidia.com/gpu"),
            "The kind of accelerator that checks run on";
        NumaAffinity = switch("numa-affinity"),
            "Like --numa-binding=node, but on a node without accelerators no worker is bound";
        GpuSelect = option("gpu-select", "HOW", Text).default("first"),
            "Which accelerators workers get: first (nothing is changed), topology (those with the best ring), pack \
             (a good ring, and a good one left for the next job), or a list such as 4,5 or GPU-...; \
             docs/gpus.md";
        GpuSelectOnly = switch("gpu-select-only"),
            "Hide the accelerators that --gpu-select=topology or pack did not choose; otherwise they are listed after the \
             chosen ones";
        GpuTopology = option("gpu-topology", "FILE", Text),
            "What --gpu-select=topology or pack reads instead of asking nvidia-smi or mx-smi: the table that topo -m prints, or \
             comma-separated GB/s";
    }
    "Checks (DLRover)" {
        Precheck = choice("precheck", "LEVEL", &["0", "1", "2"]).default("0"),
            "Check nodes before workers start: 0 no, 1 as --network-check, 2 also as --comm-perf-test";
        NetworkCheck = switch("network-check"),
            "Check node and network before every start of workers";
        CommPerfTest = switch("comm-perf-test"),
            "Also measure the bandwidth of the whole job";
        ExcludeStraggler = switch("exclude-straggler"),
            "Exclude slow nodes; requires --network-check";
        StragglerRatio = option("straggler-ratio", "RATIO", Float).default("2.0").requires(Flag::NetworkCheck),
            "A node is slow when it takes more than this many times the baseline, the mean of the other nodes without \
             outliers";
        CheckCommand = option("check-command", "CMD", Text).requires(Flag::NetworkCheck),
            "Run this command with /bin/sh on both nodes of a pair, or on the only node of a job, in place of the \
             built-in test \
             (docs/network-check.md)";
        CheckTtl = option("check-ttl", "SECONDS", Float).default("0").requires(Flag::NetworkCheck),
            "A restart with the same nodes reuses the result of a check younger than this; 0: check before every start";
        CheckMaxRounds = option("check-max-rounds", "N", Int).default("8").requires(Flag::NetworkCheck),
            "The most rounds of tests in one check; nodes without a verdict by then are inconclusive";
        NetworkCheckTimeout = option("network-check-timeout", "S", Text).requires(Flag::NetworkCheck),
            "The timeout of one test, in seconds [env: NETWORK_CHECK_TIMEOUT] [default: 15; 180 with \
             --check-command]";
        OnInconclusive = choice("on-inconclusive", "WHAT", &["fail", "proceed", "relaunch"])
            .default("fail").requires(Flag::NetworkCheck),
            "When the check cannot tell which node is at fault: fail the job, proceed with all these nodes, or relaunch them \
             (they exit with 202)";
        OnBadPath = choice("on-bad-path", "WHAT", &["exclude", "fail", "proceed"])
            .default("exclude").requires(Flag::NetworkCheck),
            "When a path between working nodes is down: exclude the nodes that the others cannot reach (201), \
             fail the job (202), or proceed with all";
        TaintFlaky = choice("taint-flaky", "WHEN", &["now", "confirmed", "never"])
            .default("confirmed").requires(Flag::NetworkCheck),
            "When to taint a node that fails intermittently or is lost during a check: now, confirmed (once a second check \
             finds it again), or never";
        BusyGpuThreshold = option("busy-gpu-threshold", "PERCENT", Float).default("30"),
            "An accelerator counts as in use by others when more than this percentage of its memory is taken";
        SwitchboxCheck = switch("switchbox-check"),
            "Also check the optical links between switchbox and accelerators; requires --network-check";
        BoxPairs = option("box-pairs", "A:B ...", Pairs).default("0:1 2:4 3:5 6:7").requires(Flag::SwitchboxCheck),
            "The pairs of switchbox sockets to check";
        MinBandwidth = option("min-bandwidth", "MB/S", Float).default("10000").requires(Flag::SwitchboxCheck),
            "A switchbox pair below this bandwidth is faulty";
        MinChannels = option("min-channels", "N", Int).requires(Flag::SwitchboxCheck),
            "A node with fewer good switchbox pairs than this is faulty [default: 2, or the number of pairs if that \
             is less]";
        SwitchboxProbe = option("switchbox-probe", "PROBE", Text).default("auto").requires(Flag::SwitchboxCheck),
            "What measures the pairs: MetaX's tool (mxom), copies between NVIDIA devices (cuda), whichever of the two \
             fits (auto), a copy between two processes that tests no link (host), or a program of your own \
             (docs/switchbox.md) [env: DLROVER_SWITCHBOX_PROBE]";
        SwitchboxPath = choice("switchbox-path", "PATH", SWITCHBOX_PATHS)
            .default("auto").requires(Flag::SwitchboxCheck),
            "Path that the bytes of a pair must take: metaxlink, nvlink, any, or auto (a link, if another pair uses \
             one or the accelerators' model has one)";
        ProbeLoopback = switch("probe-loopback").requires(Flag::SwitchboxCheck),
            "Let --box-pairs pair a socket with itself, to try a probe on one device";
    }
    "Accepted for compatibility" {
        MonitorInterval = option("monitor-interval", "SECONDS", Float).default("0.1").of_torchrun(),
            "Has no effect here: a worker's exit is noticed at once, without polling";
        StartMethod = choice("start-method", "METHOD", &["spawn", "fork", "forkserver"])
            .default("spawn").ignored("workers are programs, not Python functions").of_torchrun(),
            "Has no effect here: it chooses how Python starts functions, and workers are programs";
        RunPath = switch("run-path").of_torchrun(),
            "Start the script as a file with Python, as without this option; overrides --no-python";
        LogsSpecs = option("logs-specs", "NAME", Text).without_variable().of_torchrun(),
            "Rejected: it names a Python plug-in";
        TrainingPort = option("training-port", "PORT", Int).ignored("not used by this launcher"),
            "Has no effect here";
        AutoTunning = switch("auto-tunning").ignored("not supported by this launcher"),
            "Has no effect here";
        UcpDeviceType = option("ucp-device-type", "TYPE", Text).ignored("not used by this launcher"),
            "Has no effect here";
        MembindPolicy = option("membind-policy", "POLICY", Text).ignored("not used by this launcher"),
            "Has no effect here";
    }
    "Information" {
        DryRun = switch("dry-run"),
            "Print what a run would do (what serves the job master, checks, accelerators, each worker's command and \
             environment), start nothing, and exit with 0";
        PrintCompletion = option("print-completion", "SHELL", Completion(SHELLS)).of_torchrun(),
            "Print a completion script for bash, zsh, fish or tcsh";
        Help = prints("help", Help).short('h').of_torchrun(),
            "Print this help";
        Version = prints("version", Version).short('V'),
            "Print the version";
    }
}
