//! The one table of options: names, kinds, defaults and help.

use super::{Flag, Group, Kind, OptionSpec, Owner};

/// The shells that `--print-completion` knows.
const SHELLS: &[&str] = &["bash", "zsh", "tcsh"];

/// A row that most others differ from in few fields.
const fn row(flag: Flag, long: &'static str, kind: Kind, group: Group, help: &'static str) -> OptionSpec {
    OptionSpec { flag, long, short: None, kind, owner: Owner::Torchrun, group, value: "", default: "", help }
}

const fn ours(flag: Flag, long: &'static str, kind: Kind, group: Group, help: &'static str) -> OptionSpec {
    OptionSpec { owner: Owner::Ours, ..row(flag, long, kind, group, help) }
}

/// Every option, in the order of [`Flag`].
pub(crate) static OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        value: "N|MIN:MAX",
        default: "1:1",
        ..row(
            Flag::Nnodes,
            "nnodes",
            Kind::Text,
            Group::Nodes,
            "How many nodes take part: N, or MIN:MAX for an elastic job",
        )
    },
    OptionSpec {
        value: "N|auto|cpu|gpu",
        default: "1",
        ..row(
            Flag::NprocPerNode,
            "nproc-per-node",
            Kind::Text,
            Group::Workers,
            "How many workers this node starts: a number, one for each CPU (cpu) or accelerator (gpu), or auto: accelerators if there are any, else CPUs",
        )
    },
    OptionSpec {
        value: "NAME",
        default: "static",
        ..row(
            Flag::RdzvBackend,
            "rdzv-backend",
            Kind::Text,
            Group::Nodes,
            "How nodes find each other: static (at --master-addr) or c10d (at --rdzv-endpoint)",
        )
    },
    OptionSpec {
        value: "HOST[:PORT]",
        ..row(
            Flag::RdzvEndpoint,
            "rdzv-endpoint",
            Kind::Text,
            Group::Nodes,
            "Where nodes find each other: the launcher on that host serves the job master; an IPv6 address goes in brackets [default port of c10d: 29400]",
        )
    },
    OptionSpec {
        value: "ID",
        default: "none",
        ..row(
            Flag::RdzvId,
            "rdzv-id",
            Kind::Text,
            Group::Nodes,
            "The job's name, TORCHELASTIC_RUN_ID for the workers",
        )
    },
    OptionSpec {
        value: "K=V,...",
        ..row(
            Flag::RdzvConf,
            "rdzv-conf",
            Kind::Text,
            Group::Nodes,
            "Further settings: join_timeout=600, the seconds that nodes may gather or go without a job master they need; lastcall_timeout=3, the seconds that --nnodes=MIN:MAX waits for one node more; is_host=true or false, for c10d",
        )
    },
    row(
        Flag::Standalone,
        "standalone",
        Kind::Switch,
        Group::Nodes,
        "Run on this node alone: free ports, a fresh run id; the other rendezvous options are ignored",
    ),
    OptionSpec {
        value: "N",
        default: "0",
        ..row(
            Flag::MaxRestarts,
            "max-restarts",
            Kind::Int,
            Group::Failures,
            "How often failed workers are started again, all of them together",
        )
    },
    OptionSpec {
        value: "SECONDS",
        default: "0.1",
        ..row(
            Flag::MonitorInterval,
            "monitor-interval",
            Kind::Float,
            Group::Compatibility,
            "Has no effect here: the end of a worker is noticed at once, by event",
        )
    },
    OptionSpec {
        value: "METHOD",
        default: "spawn",
        ..row(
            Flag::StartMethod,
            "start-method",
            Kind::Choice(&["spawn", "fork", "forkserver"]),
            Group::Compatibility,
            "Has no effect here: it chooses how Python starts functions, and workers are programs",
        )
    },
    OptionSpec {
        value: "NAME",
        default: "default",
        ..row(Flag::Role, "role", Kind::Text, Group::Workers, "The workers' role, ROLE_NAME")
    },
    OptionSpec {
        short: Some('m'),
        ..row(
            Flag::Module,
            "module",
            Kind::Switch,
            Group::Workers,
            "The script is a module: start it with python -m",
        )
    },
    row(
        Flag::NoPython,
        "no-python",
        Kind::Switch,
        Group::Workers,
        "The script is a program of its own: start it without Python",
    ),
    row(
        Flag::RunPath,
        "run-path",
        Kind::Switch,
        Group::Compatibility,
        "Start the script as a file with Python, as without this option; beats --no-python",
    ),
    OptionSpec {
        value: "DIR",
        ..row(
            Flag::LogDir,
            "log-dir",
            Kind::Text,
            Group::Output,
            "Where logs and error files go, each run in a folder of its own [default: a temporary folder]; /dev/null: none are written",
        )
    },
    OptionSpec {
        short: Some('r'),
        value: "STREAMS",
        default: "0",
        ..row(
            Flag::Redirects,
            "redirects",
            Kind::Text,
            Group::Output,
            "Write streams to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: 0:3,1:2",
        )
    },
    OptionSpec {
        short: Some('t'),
        value: "STREAMS",
        default: "0",
        ..row(
            Flag::Tee,
            "tee",
            Kind::Text,
            Group::Output,
            "Write streams to log files and to the console; values as for --redirects",
        )
    },
    OptionSpec {
        value: "TEMPLATE",
        ..row(
            Flag::LogLinePrefixTemplate,
            "log-line-prefix-template",
            Kind::Text,
            Group::Output,
            "What precedes each tee'd line on the console, from ${role_name}, ${local_rank}, ${rank} and ${hostname} [default: [${role_name}${local_rank}]:]",
        )
    },
    OptionSpec {
        value: "R,R,...",
        ..row(
            Flag::LocalRanksFilter,
            "local-ranks-filter",
            Kind::Text,
            Group::Output,
            "Show only these local ranks on the console; log files stay complete",
        )
    },
    OptionSpec {
        value: "TEXT,...",
        ..row(
            Flag::DuplicateStdoutFilters,
            "duplicate-stdout-filters",
            Kind::List,
            Group::Output,
            "Copy tee'd lines of standard output that contain one of these texts to filtered_stdout.log (,, is a comma)",
        )
    },
    OptionSpec {
        value: "TEXT,...",
        ..row(
            Flag::DuplicateStderrFilters,
            "duplicate-stderr-filters",
            Kind::List,
            Group::Output,
            "The same for standard error and filtered_stderr.log",
        )
    },
    OptionSpec {
        value: "NAME",
        default: "null",
        ..row(
            Flag::EventLogHandler,
            "event-log-handler",
            Kind::Text,
            Group::Output,
            "Where the launcher's events go: null (nowhere) or console (JSON lines on standard error)",
        )
    },
    OptionSpec {
        value: "N",
        ..row(
            Flag::NodeRank,
            "node-rank",
            Kind::Int,
            Group::Nodes,
            "The rank that this node asks for, from 0 [default: none with torchrun's options, NODE_RANK with DLROVER_MASTER_ADDR]; on a static line the node of rank 0 serves",
        )
    },
    OptionSpec {
        value: "HOST",
        default: "127.0.0.1",
        ..row(
            Flag::MasterAddr,
            "master-addr",
            Kind::Text,
            Group::Nodes,
            "Address of the node of rank 0 of a static rendezvous",
        )
    },
    OptionSpec {
        value: "PORT",
        ..row(
            Flag::MasterPort,
            "master-port",
            Kind::Int,
            Group::Nodes,
            "Its port, for the workers' store and the job master [default: 29500; a free one on a single node]",
        )
    },
    OptionSpec {
        value: "HOST",
        ..row(
            Flag::LocalAddr,
            "local-addr",
            Kind::Text,
            Group::Nodes,
            "The address by which workers of other nodes reach this one [default: POD_IP, --node-ip, NODE_IP or HOST_IP, else what the job master sees]",
        )
    },
    OptionSpec {
        value: "NAME",
        ..row(
            Flag::LogsSpecs,
            "logs-specs",
            Kind::Text,
            Group::Compatibility,
            "Refused: it names a Python plug-in",
        )
    },
    OptionSpec {
        value: "MODE",
        ..row(
            Flag::NumaBinding,
            "numa-binding",
            Kind::Choice(&["node", "socket", "exclusive", "core-complex"]),
            Group::Devices,
            "Keep each worker on CPUs near its accelerator: those of its NUMA node, of its socket, a share of the node's cores of its own, or one core complex",
        )
    },
    OptionSpec {
        value: "NAMES",
        default: "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        ..row(
            Flag::SignalsToHandle,
            "signals-to-handle",
            Kind::Text,
            Group::Failures,
            "Signals that end the run and are passed on to the workers",
        )
    },
    OptionSpec {
        value: "SECONDS",
        ..row(
            Flag::ShutdownTimeout,
            "shutdown-timeout",
            Kind::Int,
            Group::Failures,
            "How long workers may take to end after a signal before they are killed [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30]",
        )
    },
    row(
        Flag::VirtualLocalRank,
        "virtual-local-rank",
        Kind::Switch,
        Group::Devices,
        "Every worker sees LOCAL_RANK=0 and only its own accelerator",
    ),
    OptionSpec {
        value: "SHELL",
        ..row(
            Flag::PrintCompletion,
            "print-completion",
            Kind::Completion(SHELLS),
            Group::Information,
            "Print a completion script for bash, zsh or tcsh",
        )
    },
    OptionSpec {
        short: Some('h'),
        ..row(Flag::Help, "help", Kind::Help, Group::Information, "Print this help")
    },
    OptionSpec {
        value: "LEVEL",
        default: "0",
        ..ours(
            Flag::Precheck,
            "precheck",
            Kind::Choice(&["0", "1", "2"]),
            Group::Checks,
            "Check nodes before workers start: 0 no, 1 as --network-check, 2 also as --comm-perf-test",
        )
    },
    ours(
        Flag::NetworkCheck,
        "network-check",
        Kind::Switch,
        Group::Checks,
        "Check node and network before every start of workers",
    ),
    ours(
        Flag::CommPerfTest,
        "comm-perf-test",
        Kind::Switch,
        Group::Checks,
        "Also measure the bandwidth of the whole job",
    ),
    ours(
        Flag::ExcludeStraggler,
        "exclude-straggler",
        Kind::Switch,
        Group::Checks,
        "Leave slow nodes out; needs --network-check",
    ),
    OptionSpec {
        value: "RATIO",
        default: "2.0",
        ..ours(
            Flag::StragglerRatio,
            "straggler-ratio",
            Kind::Float,
            Group::Checks,
            "A node is slow when it takes this many times as long as the mean of the others",
        )
    },
    OptionSpec {
        value: "CMD",
        ..ours(
            Flag::CheckCommand,
            "check-command",
            Kind::Text,
            Group::Checks,
            "Run this by /bin/sh on both nodes of a pair, or on the only node of a job, in place of the built-in test (docs/network-check.md)",
        )
    },
    OptionSpec {
        value: "SECONDS",
        default: "0",
        ..ours(
            Flag::CheckTtl,
            "check-ttl",
            Kind::Float,
            Group::Checks,
            "A restart with the same nodes reuses a check younger than this; 0 checks before every start",
        )
    },
    OptionSpec {
        value: "N",
        default: "8",
        ..ours(
            Flag::CheckMaxRounds,
            "check-max-rounds",
            Kind::Int,
            Group::Checks,
            "Rounds of tests after which what is not known stays inconclusive",
        )
    },
    OptionSpec {
        value: "S",
        ..ours(
            Flag::NetworkCheckTimeout,
            "network-check-timeout",
            Kind::Text,
            Group::Checks,
            "The longest that one test may take, in seconds [env: NETWORK_CHECK_TIMEOUT] [default: 15; 180 with --check-command]",
        )
    },
    OptionSpec {
        value: "WHAT",
        default: "fail",
        ..ours(
            Flag::OnInconclusive,
            "on-inconclusive",
            Kind::Choice(&["fail", "proceed", "relaunch"]),
            Group::Checks,
            "When it cannot be told which node is at fault: fail the job, proceed with the nodes, or relaunch them (they exit with 202)",
        )
    },
    OptionSpec {
        value: "WHAT",
        default: "exclude",
        ..ours(
            Flag::OnBadPath,
            "on-bad-path",
            Kind::Choice(&["exclude", "fail", "proceed"]),
            Group::Checks,
            "When a path between fit nodes is known to be cut: exclude the nodes that the others cannot reach (201), fail the job (202), or proceed with all",
        )
    },
    OptionSpec {
        value: "WHEN",
        default: "confirmed",
        ..ours(
            Flag::TaintFlaky,
            "taint-flaky",
            Kind::Choice(&["now", "confirmed", "never"]),
            Group::Checks,
            "When a node that passes and fails by turns, or goes away during a check, is tainted: now, confirmed by a second check, or never",
        )
    },
    OptionSpec {
        value: "PERCENT",
        default: "30",
        ..ours(
            Flag::BusyGpuThreshold,
            "busy-gpu-threshold",
            Kind::Float,
            Group::Checks,
            "An accelerator is in use by others when more of its memory is taken than this",
        )
    },
    ours(
        Flag::GpuMemEnforce,
        "gpu-mem-enforce",
        Kind::Switch,
        Group::Devices,
        "Kill a worker that holds over 110 % of its share of an accelerator that containers share (gpushare), three seconds in a row",
    ),
    OptionSpec {
        value: "N",
        default: "1",
        ..ours(
            Flag::NodeUnit,
            "node-unit",
            Kind::Int,
            Group::Nodes,
            "The number of nodes is always a multiple of this",
        )
    },
    ours(
        Flag::SwitchboxCheck,
        "switchbox-check",
        Kind::Switch,
        Group::Checks,
        "Also check the optical links between switchbox and accelerators; needs --network-check",
    ),
    OptionSpec {
        value: "A:B ...",
        default: "0:1 2:4 3:5 6:7",
        ..ours(
            Flag::BoxPairs,
            "box-pairs",
            Kind::Pairs,
            Group::Checks,
            "The pairs of switchbox sockets to check",
        )
    },
    OptionSpec {
        value: "MB/S",
        default: "10000",
        ..ours(
            Flag::MinBandwidth,
            "min-bandwidth",
            Kind::Float,
            Group::Checks,
            "A switchbox pair below this bandwidth is faulty",
        )
    },
    OptionSpec {
        value: "N",
        ..ours(
            Flag::MinChannels,
            "min-channels",
            Kind::Int,
            Group::Checks,
            "A node with fewer working switchbox pairs is faulty [default: 2, or all of fewer pairs]",
        )
    },
    OptionSpec {
        value: "PROBE",
        default: "auto",
        ..ours(
            Flag::SwitchboxProbe,
            "switchbox-probe",
            Kind::Text,
            Group::Checks,
            "What measures the pairs: MetaX's tool (mxom), copies between NVIDIA devices (cuda), whichever of the two fits (auto), a copy between two processes that tests no link (host), or a program of your own (docs/switchbox.md) [env: DLROVER_SWITCHBOX_PROBE]",
        )
    },
    OptionSpec {
        value: "PATH",
        default: "auto",
        ..ours(
            Flag::SwitchboxPath,
            "switchbox-path",
            Kind::Choice(SWITCHBOX_PATHS),
            Group::Checks,
            "Which way the bytes of a pair must take: metaxlink, nvlink, any, or over a link where any other pair goes over one (auto)",
        )
    },
    ours(
        Flag::ProbeLoopback,
        "probe-loopback",
        Kind::Switch,
        Group::Checks,
        "Let --box-pairs pair a socket with itself, to try a probe on one device",
    ),
    OptionSpec {
        value: "NAME",
        default: "nvidia.com/gpu",
        ..ours(
            Flag::Accelerator,
            "accelerator",
            Kind::Choice(ACCELERATORS),
            Group::Devices,
            "The kind of accelerator that checks run on",
        )
    },
    ours(
        Flag::AutoConfig,
        "auto-config",
        Kind::Switch,
        Group::Nodes,
        "Nodes from NODE_NUM, workers from the accelerators found, and a network check from 4 nodes on",
    ),
    ours(
        Flag::NumaAffinity,
        "numa-affinity",
        Kind::Switch,
        Group::Devices,
        "As --numa-binding=node, but without accelerators nothing is bound",
    ),
    OptionSpec {
        value: "HOW",
        default: "first",
        ..ours(
            Flag::GpuSelect,
            "gpu-select",
            Kind::Text,
            Group::Devices,
            "Which accelerators workers get: first (nothing is changed), topology (those with the best ring), pack (and the next job gets good ones too), or a list such as 4,5 or GPU-...; docs/gpus.md",
        )
    },
    ours(
        Flag::GpuSelectOnly,
        "gpu-select-only",
        Kind::Switch,
        Group::Devices,
        "Hide the accelerators that --gpu-select did not choose; without it they follow the chosen ones",
    ),
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::GpuTopology,
            "gpu-topology",
            Kind::Text,
            Group::Devices,
            "What --gpu-select reads instead of asking nvidia-smi or mx-smi: the table that topo -m prints, or GB/s with commas between",
        )
    },
    ours(
        Flag::PropagateExitCode,
        "propagate-exit-code",
        Kind::Switch,
        Group::Failures,
        "Exit with the code of the worker that failed first (128+N for signal N) instead of 1",
    ),
    OptionSpec {
        value: "PORT",
        ..ours(Flag::TrainingPort, "training-port", Kind::Int, Group::Compatibility, "Has no effect here")
    },
    ours(Flag::AutoTunning, "auto-tunning", Kind::Switch, Group::Compatibility, "Has no effect here"),
    OptionSpec {
        value: "TYPE",
        ..ours(Flag::UcpDeviceType, "ucp-device-type", Kind::Text, Group::Compatibility, "Has no effect here")
    },
    OptionSpec {
        value: "POLICY",
        ..ours(Flag::MembindPolicy, "membind-policy", Kind::Text, Group::Compatibility, "Has no effect here")
    },
    ours(
        Flag::SaveAtBreakpoint,
        "save-at-breakpoint",
        Kind::Switch,
        Group::Compatibility,
        "Has no effect here",
    ),
    OptionSpec {
        value: "ADDRESS",
        ..ours(
            Flag::NodeIp,
            "node-ip",
            Kind::Text,
            Group::Nodes,
            "The address that the topology file lists this node under [default: NODE_IP, HOST_IP or POD_IP]",
        )
    },
    ours(
        Flag::RequireUniform,
        "require-uniform",
        Kind::Switch,
        Group::Nodes,
        "Refuse nodes that bring another number of workers than the first",
    ),
    OptionSpec {
        value: "N",
        default: "3",
        ..ours(
            Flag::RestartCount,
            "restart-count",
            Kind::Int,
            Group::Master,
            "How often the node of one rank may be replaced after a loss before the job fails",
        )
    },
    OptionSpec {
        value: "SECONDS",
        default: "2",
        ..ours(
            Flag::ReconnectGrace,
            "reconnect-grace",
            Kind::Float,
            Group::Master,
            "How long a node whose connection broke may take to come back before it is lost",
        )
    },
    OptionSpec {
        value: "SECONDS",
        default: "15",
        ..ours(
            Flag::HeartbeatTimeout,
            "heartbeat-timeout",
            Kind::Float,
            Group::Master,
            "How long a node may say nothing before it is lost; at least 6 beats, of 1 s each up to 1000 nodes",
        )
    },
    OptionSpec {
        value: "DIR",
        ..ours(
            Flag::StateDir,
            "state-dir",
            Kind::Text,
            Group::Master,
            "Where the job master keeps its state, so that the same launcher, started again, goes on with the job [default: nowhere, and the job ends with that launcher]",
        )
    },
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::TaintReport,
            "taint-report",
            Kind::Text,
            Group::Master,
            "Write what each network check found here, as JSON (dlrover.taint-report/v1)",
        )
    },
    OptionSpec {
        value: "KEY",
        default: "dlrover.io/node-check",
        ..ours(Flag::TaintKey, "taint-key", Kind::Text, Group::Master, "The key of the taints in that report")
    },
    OptionSpec {
        value: "SHARE",
        default: "0.3",
        ..ours(
            Flag::TaintGuard,
            "taint-guard",
            Kind::Float,
            Group::Master,
            "When more than this share of the nodes (and more than 2) deserve a taint, none is given and the job fails",
        )
    },
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::TopologyConfig,
            "topology-config",
            Kind::Text,
            Group::Master,
            "Lines of `asw psw address`: nodes below one switch get adjacent ranks; read again for each round [default: DLROVER_TOPOLOGY_CONFIG, else none]",
        )
    },
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::JobTokenFile,
            "job-token-file",
            Kind::Text,
            Group::Nodes,
            "The job's shared secret: the job master listens only to nodes that have the same [default: DLROVER_JOB_TOKEN, or the file DLROVER_JOB_TOKEN_FILE]",
        )
    },
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::TlsCa,
            "tls-ca",
            Kind::Text,
            Group::Nodes,
            "Speak TLS with the job master: the PEM file of the CA that signed its certificate [default: DLROVER_TLS_CA]",
        )
    },
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::TlsCert,
            "tls-cert",
            Kind::Text,
            Group::Nodes,
            "This node's certificate; a launcher that serves the job master shows it, and wants one of every node [default: DLROVER_TLS_CERT]",
        )
    },
    OptionSpec {
        value: "FILE",
        ..ours(
            Flag::TlsKey,
            "tls-key",
            Kind::Text,
            Group::Nodes,
            "The key of --tls-cert [default: DLROVER_TLS_KEY]",
        )
    },
    OptionSpec {
        short: Some('V'),
        ..ours(Flag::Version, "version", Kind::Version, Group::Information, "Print the version")
    },
];

/// The choices of `--switchbox-path`.
pub const SWITCHBOX_PATHS: &[&str] = &["auto", "any", "metaxlink", "nvlink"];

/// The values of `--accelerator`, as dlrover's and the MetaX guide's.
pub(crate) const ACCELERATORS: &[&str] =
    &["nvidia.com/gpu", "metax-tech.com/gpu", "mthreads.com/gpu", "ascend-npu"];
