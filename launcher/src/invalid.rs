//! Values that can be read but not used. Each sentence names the value and where it came from, and says what
//! would be right.

use diagnosis::gpus::share::ShareError;
use master_proto::trust::TokenError;

use crate::{cli::Said, gpu_choice::BadList, numa::CannotBind, redirects::BadStreams};

/// Why a run cannot be started as it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("`{said}` is neither on nor off: a switch is set to 1 or 0")]
    PetSwitch { said: Said },
    #[error("`{said}` is not valid UTF-8, which only --log-dir and the script's own arguments may be")]
    NotUtf8 { said: Said },
    #[error("`{said}` is not in MIN:MAX format: give the number of nodes as N or MIN:MAX, such as 2 or 1:4")]
    Nnodes { said: Said },
    #[error(
        "`{said}` asks for {min} to {max} nodes: the smaller number comes first, and both are at least 1 \
         (min_nodes must be > 0 and <= max_nodes)"
    )]
    NodeRange { said: Said, min: i64, max: i64 },
    // These keep torchrun's own words, which wrappers look for.
    #[error(
        "`{said}` is not a number of workers: give a number from 1 on, or auto, cpu or gpu (Unsupported nproc_per_node \
         value: {value})"
    )]
    Nproc { said: Said, value: String },
    #[error(
        "`{said}` asks for one worker for each accelerator, but accelerators are not available on this node: give a number, or cpu \
         (nproc_per_node: Cuda is not available.)"
    )]
    NoDevices { said: Said },
    #[error(
        "`{said}` is not available: this launcher cannot count Intel XPUs; give the number of workers (nproc_per_node: Xpu is \
         not available.)"
    )]
    Uncountable { said: Said },
    #[error("`{said}` is out of range: {range}")]
    OutOfRange { said: Said, range: &'static str },
    #[error("`{said}` names a rendezvous backend that is not registered: there are static and c10d")]
    Backend { said: Said },
    #[error("`{said}` is not an address: {why}")]
    Endpoint { said: Said, why: &'static str },
    #[error(
        "`{said}` lets nodes meet at a file, which is done here for one node only, and this job may have {nodes}: leave \
         store_type out and give --rdzv-endpoint=HOST:PORT, where the launcher on HOST serves the meeting"
    )]
    FileStore { said: Said, nodes: u32 },
    #[error("`{said}` is not a rendezvous configuration: {why}")]
    RdzvConf { said: Said, why: String },
    #[error(
        "`{said}` is not served here: use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT, where the launcher on HOST \
         serves the meeting, or DLROVER_MASTER_ADDR=HOST:PORT with a dlrover-master"
    )]
    Etcd { said: Said },
    #[error("`{said}` is not a rank: give a whole number from 0 on, or leave it out")]
    NodeRank { said: Said },
    #[error("`{said}` is a file (not a directory): give a folder, which is made when it is missing")]
    StateDirIsFile { said: Said },
    #[error("`{said}` cannot be read: {source}; give the path of a text file that this user may read")]
    Unreadable { said: Said, source: std::io::Error },
    #[error(
        "`{said}` is not known: use `members` (the workers' store accepts connections from the round's members only), or leave it unset"
    )]
    StoreAllow { said: Said },
    #[error("`{said}` cannot be used: {why}")]
    Token { said: Said, why: TokenError },
    #[error("a certificate and its key go together: give both of --tls-cert and --tls-key")]
    HalfACertificate,
    #[error("a job master with TLS is known by its CA: give --tls-ca (or DLROVER_TLS_CA) too")]
    NoCa,
    #[error("`{said}` is beyond the last node rank: with {} the node ranks are 0 to {}", diagnosis::counted::counted(*.nodes, "node"), .nodes.saturating_sub(1))]
    NodeRankBeyondNodes { said: Said, nodes: u32 },
    #[error("--standalone runs on this node alone, but `{said}` waits for more: leave one of the two out")]
    StandaloneIsOneNode { said: Said },
    #[error(
        "`{said}` does not fit a job of at most {}: the number of nodes would never be a multiple of it", diagnosis::counted::counted(*.nodes, "node")
    )]
    NodeUnit { said: Said, nodes: u32 },
    #[error(
        "--no-python and --module exclude each other: a module is started by Python, and --no-python starts the \
         script without it"
    )]
    ModuleWithoutPython,
    #[error(
        "no Python found: neither PYTHON_EXEC nor VIRTUAL_ENV names one, and there is no python3 or python beside \
         {beside} nor on PATH; set PYTHON_EXEC, or use --no-python for a program"
    )]
    NoPython { beside: String },
    #[error("cannot run {}: {why}: {remedy}", .path.display())]
    Script { path: std::path::PathBuf, why: std::io::Error, remedy: &'static str },
    #[error("`{said}` is a file (not a directory): give a folder, or /dev/null for no logs")]
    LogDirIsFile { said: Said },
    #[error("`{said}` is not a choice of streams: {why}")]
    Streams { said: Said, why: BadStreams },
    #[error(
        "`{said}` is not a list of local ranks: it must be a comma-separated list of integers such as 0,1,2"
    )]
    LocalRanks { said: Said },
    #[error("`{said}` names no event log handler: there are null and console")]
    EventLog { said: Said },
    #[error(
        "`{said}` is not a list of ports: give ports or ranges of them from 1 to 65535, such as 20000,20010-20020"
    )]
    HostPorts { said: Said },
    #[error(
        "--virtual-local-rank gives each of the {workers} workers a device of its own, but `{said}` lists only {listed}"
    )]
    TooFewDevices { said: Said, workers: u32, listed: usize },
    #[error("cannot bind workers as `{said}` asks: {why}")]
    Binding { said: Said, why: CannotBind },
    #[error(
        "`{said}` is no choice of GPUs: give first, topology, pack, or a list of numbers or ids such as 0,3 or GPU-..."
    )]
    GpuSelect { said: Said },
    #[error("`{said}` cannot be used: {why}")]
    GpuList { said: Said, why: BadList },
    #[error("`{said}` is not one of {}", .choices.join(", "))]
    Choice { said: Said, choices: &'static [&'static str] },
    #[error("`{said}` is not usable: {why}")]
    BoxPairs { said: Said, why: String },
    #[error("`{said}` asks for more working pairs than the {pairs} of --box-pairs")]
    MinChannels { said: Said, pairs: usize },
    #[error("`{said}` is out of range: {range}")]
    SwitchboxRange { said: Said, range: &'static str },
    #[error("`{said}` cannot be used: {}", rules::taint_key::TaintKey::FORM)]
    TaintKey { said: Said },
    #[error("`{said}` is no probe: give auto, mxom, cuda, host, or a command line whose program is on PATH")]
    SwitchboxProbe { said: Said },
    #[error("`{said}` is not a whole number of nodes from 1 on, which --auto-config needs")]
    NodeNum { said: Said },
    /// Refused like an unreadable command line.
    #[error("{said} needs --network-check: it acts on what that check finds")]
    NeedsNetworkCheck { said: Said },
    /// The same.
    #[error(
        "`{said}` cannot be used: it names a Python plug-in, and this launcher is not Python; see --log-dir, --redirects and --tee"
    )]
    LogsSpecs { said: Said },
    #[error(transparent)]
    GpuShare(#[from] ShareError),
}

impl Invalid {
    /// Whether the options themselves contradict each other, which is answered as argparse would: usage, exit 2.
    pub(crate) const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NeedsNetworkCheck { .. }
                | Self::LogsSpecs { .. }
                | Self::BoxPairs { .. }
                | Self::MinChannels { .. }
                | Self::SwitchboxRange { .. }
                | Self::SwitchboxProbe { .. }
                | Self::GpuSelect { .. }
        )
    }
}
