//! Values that can be parsed but not used. Each message has the value, its origin, and what is allowed.

use diagnosis::gpus::share::ShareError;
use master_proto::trust::TokenError;

use crate::{cli::Given, gpu_choice::BadList, numa::CannotBind, resolve::redirects::BadStreams};

/// Why a run cannot be started as requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("`{given}` is neither on nor off: set it to 1 or 0")]
    PetSwitch { given: Given },
    #[error("`{given}` is not valid UTF-8, which this option requires")]
    NotUtf8 { given: Given },
    #[error("`{given}` is not in MIN:MAX format: give the number of nodes as N or MIN:MAX, such as 2 or 1:4")]
    Nnodes { given: Given },
    #[error(
        "`{given}` asks for {min} to {max} nodes: the smaller number comes first, and both are at least 1 \
         (min_nodes must be > 0 and <= max_nodes)"
    )]
    NodeRange { given: Given, min: i64, max: i64 },
    // These keep torchrun's own text, which wrappers search for.
    #[error(
        "`{given}` is not a number of workers: give a number of at least 1, or auto, cpu or gpu (Unsupported \
         nproc_per_node \
         value: {value})"
    )]
    Nproc { given: Given, value: String },
    #[error(
        "`{given}` asks for one worker for each accelerator, but accelerators are not available on this node: give \
         a number, or cpu \
         (nproc_per_node: Cuda is not available.)"
    )]
    NoDevices { given: Given },
    #[error(
        "`{given}` is not available: this launcher cannot count Intel XPUs; give the number of workers \
         (nproc_per_node: Xpu is \
         not available.)"
    )]
    Uncountable { given: Given },
    #[error("`{given}` is invalid: expected {range}")]
    OutOfRange { given: Given, range: &'static str },
    #[error("`{given}` names a rendezvous backend that is not registered; available: static, c10d")]
    Backend { given: Given },
    #[error("`{given}` is not an address: {why}")]
    Endpoint { given: Given, why: &'static str },
    #[error(
        "`{given}` is a rendezvous over a file, supported for one node only, and this job may have {nodes} \
         nodes: leave store_type out and give --rdzv-endpoint=HOST:PORT, where the launcher on HOST serves the \
         rendezvous"
    )]
    FileStore { given: Given, nodes: u32 },
    #[error("`{given}` is not a rendezvous configuration: {why}")]
    RdzvConf { given: Given, why: String },
    #[error(
        "`{given}` is not supported: use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT, where the launcher on HOST \
         serves the rendezvous, or DLROVER_MASTER_ADDR=HOST:PORT with a dlrover-master"
    )]
    Etcd { given: Given },
    #[error("`{given}` is not a rank: give a non-negative whole number, or leave it out")]
    NodeRank { given: Given },
    #[error("`{given}` is a file (not a directory): give a directory, which is created if it is missing")]
    StateDirIsFile { given: Given },
    #[error("`{given}` cannot be read: {source}; give the path of a text file that this user may read")]
    Unreadable { given: Given, source: std::io::Error },
    #[error(
        "`{given}` is not a known value: use `members` (the workers' store then accepts connections from the \
         round's members only), or leave the variable unset"
    )]
    StoreAllow { given: Given },
    #[error("`{given}` cannot be used: {why}")]
    Token { given: Given, why: TokenError },
    #[error("a certificate and its key go together: give both --tls-cert and --tls-key, or neither")]
    HalfACertificate,
    #[error("TLS needs the CA of the job master: give --tls-ca (or DLROVER_TLS_CA) too")]
    NoCa,
    #[error("`{given}` is not a node rank of a job of {}: expected {}", diagnosis::counted::counted(*.nodes, "node"),
        if *.nodes <= 1 { "0".to_owned() } else { format!("0 to {}", .nodes - 1) })]
    NodeRankBeyondNodes { given: Given, nodes: u32 },
    #[error(
        "--standalone runs on this node alone, but `{given}` requires more nodes: leave one of the two out"
    )]
    StandaloneIsOneNode { given: Given },
    #[error(
        "`{given}` does not fit a job of at most {}: the number of nodes would never be a multiple of \
         it", diagnosis::counted::counted(*.nodes, "node")
    )]
    NodeUnit { given: Given, nodes: u32 },
    #[error(
        "--no-python and --module cannot be used together: a module is started by Python, and --no-python starts \
         the script without it; leave one of the two out"
    )]
    ModuleWithoutPython,
    #[error(
        "no Python found: neither PYTHON_EXEC nor VIRTUAL_ENV names one, and there is no python3 or python in \
         {beside}, the directory of this program, or on PATH; set PYTHON_EXEC, or use --no-python for a program"
    )]
    NoPython { beside: String },
    #[error("cannot run {}: {why}: {remedy}", .path.display())]
    Script { path: std::path::PathBuf, why: std::io::Error, remedy: &'static str },
    #[error("cannot run {}: not found on PATH; give its path, such as ./program", .path.display())]
    NotOnPath { path: std::path::PathBuf },
    #[error("`{given}` is a file (not a directory): give a directory, or /dev/null for no logs")]
    LogDirIsFile { given: Given },
    #[error("`{given}` is not a choice of streams: {why}")]
    Streams { given: Given, why: BadStreams },
    #[error(
        "`{given}` is not a list of local ranks: it must be a comma-separated list of integers such as 0,1,2"
    )]
    LocalRanks { given: Given },
    #[error("`{given}` is not an event log handler; available: null, console")]
    EventLog { given: Given },
    #[error(
        "`{given}` is not a list of ports: give ports or ranges of them from 1 to 65535, such as 20000,20010-20020"
    )]
    HostPorts { given: Given },
    #[error(
        "--virtual-local-rank gives each of the {workers} workers an accelerator of its own, but `{given}` lists only \
         {}", diagnosis::counted::counted(*.listed, "device")
    )]
    TooFewDevices { given: Given, workers: u32, listed: usize },
    #[error("cannot bind workers as `{given}` asks: {why}")]
    Binding { given: Given, why: CannotBind },
    #[error(
        "`{given}` is not a choice of GPUs: give first, topology, pack, or a list of numbers or ids such as 0,3 or \
         GPU-..."
    )]
    GpuSelect { given: Given },
    #[error("`{given}` cannot be used: {why}")]
    GpuList { given: Given, why: BadList },
    #[error("`{given}` is not one of {}", .choices.join(", "))]
    Choice { given: Given, choices: &'static [&'static str] },
    #[error("`{given}`: the report of the run cannot be written there: {source}")]
    Report { given: Given, source: std::io::Error },
    /// Options contradict each other: usage and exit code 2, as when the command line cannot be parsed.
    #[error("--quiet and --verbose contradict each other: give one of them")]
    QuietAndVerbose,
    #[error("`{given}` cannot be used: {why}")]
    BoxPairs { given: Given, why: String },
    #[error("`{given}` asks for more good pairs than the {pairs} of --box-pairs")]
    MinChannels { given: Given, pairs: usize },
    #[error("`{given}` is invalid: expected {range}")]
    SwitchboxRange { given: Given, range: &'static str },
    #[error("`{given}` cannot be used: {}", rules::taint_key::TaintKey::FORM)]
    TaintKey { given: Given },
    #[error(
        "`{given}` is not a probe: give auto, mxom, cuda, host, or a command line whose program is on PATH"
    )]
    SwitchboxProbe { given: Given },
    #[error("`{given}` is not a whole number of at least 1, which --auto-config needs")]
    NodeNum { given: Given },
    /// An option requires the network check: usage and exit code 2, as when the command line cannot be parsed.
    #[error("{given} requires --network-check")]
    NeedsNetworkCheck { given: Given },
    /// An option that is not supported: usage and exit code 2, as when the command line cannot be parsed.
    #[error(
        "`{given}` cannot be used: it names a Python plug-in, and this launcher is not written in Python; see --log-dir, \
         --redirects and --tee"
    )]
    LogsSpecs { given: Given },
    #[error(transparent)]
    GpuShare(#[from] ShareError),
}

impl Invalid {
    /// Whether the options themselves contradict each other, which is answered as argparse would: usage, exit 2.
    pub(crate) const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NeedsNetworkCheck { .. }
                | Self::QuietAndVerbose
                | Self::LogsSpecs { .. }
                | Self::BoxPairs { .. }
                | Self::MinChannels { .. }
                | Self::SwitchboxRange { .. }
                | Self::SwitchboxProbe { .. }
                | Self::GpuSelect { .. }
        )
    }
}
