//! What an agent is told before it starts: plain data, no clap, no environment reads.

use std::{collections::BTreeSet, ffi::OsString, ops::RangeInclusive, path::PathBuf, time::Duration};

use diagnosis::gpus::{health::GpuTerms, share::ShareTerms};
use master_proto::trust::NodeSecret;
use rules::{
    NodeId, NodeRank, RunId,
    node::{NodeAttributes, Terms},
};

use crate::streams::Streams;
use probes::SwitchboxTask;

/// Everything one node's agent needs to know.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The job's name, `TORCHELASTIC_RUN_ID`.
    pub run_id: RunId,
    /// This launcher's own id.
    pub node_id: NodeId,
    /// What it proves by that it is this launcher; `node_id` is its digest.
    pub secret: NodeSecret,
    /// The seat this node asks for; `None` when it has no wish. 0 is a wish.
    pub node_rank: Option<NodeRank>,
    /// What it expects of the job; every node's must be the same.
    pub terms: Terms,
    /// What the launcher knows of the machine (accelerators, pod); the agent adds the rest.
    pub attributes: NodeAttributes,
    /// Workers on this node, at least 1.
    pub local_world_size: u32,
    /// `ROLE_NAME`.
    pub role: String,
    /// The address that workers of all nodes use to reach this one, `MASTER_ADDR` when it is group rank 0;
    /// `None`: the one that the master sees.
    pub address: Option<String>,
    /// The address that the topology file lists it under, when that is another one.
    pub node_ip: Option<String>,
    /// What to run.
    pub command: WorkerCommand,
    /// Restarts after the first attempt.
    pub max_restarts: u32,
    /// How long workers may take to end after a polite signal.
    pub shutdown_timeout: Duration,
    /// Where MASTER_PORT comes from.
    pub master_port: MasterPort,
    /// Only members of the round may connect to the store (`DLROVER_STORE_ALLOW=members`).
    pub is_store_for_members: bool,
    /// The ports that MASTER_PORT may take, in order of preference (`HOST_PORTS`); empty: any free one. A
    /// static line's own port is not held to it.
    pub port_choices: Vec<RangeInclusive<u16>>,
    /// Signals that end the run, by name, as given (`SIGTERM`, ...). Unknown names were warned about.
    pub signals: Vec<String>,
    /// Run by `/bin/sh -c` on each node of a pair, in place of the built-in test. Used where the terms ask for
    /// checks.
    pub check_command: Option<OsString>,
    /// What the job asks of this node's accelerators.
    pub gpus: GpuTerms,
    /// Where the tools of their vendors are looked for, in the form of `PATH`.
    pub tool_path: OsString,
    /// What its workers have of a device that they share with other containers.
    pub gpu_share: Option<ShareTerms>,
    /// How the switchbox is checked when the node looks at itself, if it is.
    pub switchbox: Option<SwitchboxTask>,
    /// Where output goes.
    pub logs: LogConfig,
    /// How worker environments are made.
    pub env: EnvConfig,
    /// CPUs each local rank may run on, by local rank; empty: no binding.
    pub cpus: Vec<Vec<usize>>,
}

/// The command of every worker. `${local_rank}` in any argument is replaced when it is started.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// Program and arguments; never empty. argv[0] is looked up in PATH when it has no slash.
    pub argv: Vec<OsString>,
    /// What the failure report calls it: the script, the module or the program, as given.
    pub title: String,
}

/// Where workers find their store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasterPort {
    /// The launcher serves the store on a port it binds (`TORCHELASTIC_USE_AGENT_STORE=True`).
    Served,
    /// Rank 0 binds a port that was free a moment ago (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`).
    LeftToRankZero,
}

/// Where workers' output goes.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Where run folders are made.
    pub dir: LogDir,
    /// Streams written to files only, by local rank; as long as the local world.
    pub redirects: Vec<Streams>,
    /// Streams written to files and the console, by local rank; as long as the local world.
    pub tee: Vec<Streams>,
    /// Before every tee'd line. Macros: `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}`.
    pub prefix_template: String,
    /// Local ranks whose output reaches the console; `None`: all.
    pub console_ranks: Option<BTreeSet<u32>>,
    /// A tee'd line of standard output that contains one of these also goes to `filtered_stdout.log`.
    pub stdout_filters: Vec<String>,
    /// The same for standard error.
    pub stderr_filters: Vec<String>,
    /// Keep the last 64 KiB of each worker's standard error for the failure report
    /// (`DLROVER_STDERR_TAIL=0` turns it off).
    pub keep_stderr_tail: bool,
}

/// Where run folders are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// A fresh folder `torchelastic_<8 random>` in this folder (`TMPDIR`, else `/tmp`).
    Temporary(PathBuf),
    /// Under this folder, made with its parents when it is missing.
    At(PathBuf),
    /// `--log-dir=/dev/null`: no files at all, and no error files.
    Nowhere,
}

/// How worker environments are made.
#[derive(Debug, Clone)]
pub struct EnvConfig {
    /// The launcher's own environment, byte for byte, but for what the launcher has decided: the accelerators that it
    /// has chosen.
    pub inherited: Vec<(OsString, OsString)>,
    /// `--virtual-local-rank`: every worker sees LOCAL_RANK=0 and one device.
    pub virtual_local_rank: bool,
    /// `TORCHELASTIC_SIGNALS_TO_HANDLE` as the user gave it.
    pub signals_to_handle: String,
}

/// The variables that say which accelerators a program sees, and what their numbers mean.
const VISIBLE: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MACA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

impl EnvConfig {
    /// Which accelerators are this job's, for programs that compute on them before workers do: the launcher's own
    /// environment may show more.
    #[must_use]
    pub fn visible_devices(&self) -> Vec<(OsString, OsString)> {
        self.inherited.iter().filter(|(name, _)| VISIBLE.iter().any(|it| name == it)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_which_devices_are_visible_is_known() {
        let own = |(name, value): (&str, &str)| (name.into(), value.into());
        let inherited = [
            ("CUDA_VISIBLE_DEVICES", "1"),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("NVIDIA_VISIBLE_DEVICES", "all"),
            ("PATH", "/bin"),
        ];
        let inherited: Vec<(OsString, OsString)> = inherited.map(own).to_vec();
        let expected = inherited[..2].to_vec();
        let env = EnvConfig { inherited, virtual_local_rank: false, signals_to_handle: String::new() };
        assert_eq!(env.visible_devices(), expected);
    }
}
