//! The configuration of an agent: plain data, no clap, no environment reads.

use std::{collections::BTreeSet, ffi::OsString, ops::RangeInclusive, path::PathBuf, time::Duration};

use diagnosis::gpus::{health::GpuTerms, share::ShareTerms};
use master_proto::trust::NodeSecret;
use rules::{
    NodeId, NodeRank, RunId,
    node::{NodeAttributes, Terms},
};

use crate::{streams::Streams, warm::WarmConfig};
use probes::SwitchboxTask;

/// The configuration of one node's agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The job's name, `TORCHELASTIC_RUN_ID`.
    pub run_id: RunId,
    /// This launcher's own id.
    pub node_id: NodeId,
    /// Proves to the master that a request is from this launcher; `node_id` is its digest.
    pub secret: NodeSecret,
    /// The requested node rank; `None`: any.
    pub node_rank: Option<NodeRank>,
    /// The terms of the job; they must be the same on every node.
    pub terms: Terms,
    /// Attributes known to the launcher (accelerators, pod); the agent adds the rest.
    pub attributes: NodeAttributes,
    /// Workers on this node, at least 1.
    pub local_world_size: u32,
    /// `ROLE_NAME`.
    pub role: String,
    /// The address at which workers of all nodes reach this one, `MASTER_ADDR` when it is group rank 0; `None`: the
    /// address that the master sees.
    pub address: Option<String>,
    /// Its address in the topology file, if it differs.
    pub node_ip: Option<String>,
    /// The command of the workers.
    pub command: WorkerCommand,
    /// Restarts after the first attempt.
    pub max_restarts: u32,
    /// From SIGTERM to SIGKILL, for workers.
    pub shutdown_timeout: Duration,
    /// Where MASTER_PORT comes from.
    pub master_port: MasterPort,
    /// Only members of the round may connect to the store (`DLROVER_STORE_ALLOW=members`).
    pub is_store_for_members: bool,
    /// The ports that MASTER_PORT may take, in order of preference (`HOST_PORTS`); empty: any free one. Not applied
    /// to the port of a static line.
    pub port_choices: Vec<RangeInclusive<u16>>,
    /// Names of signals that end the run, as given (`SIGTERM`, ...). Unknown names are warned about.
    pub signals: Vec<String>,
    /// Run by `/bin/sh -c` on each node of a pair in place of the built-in test, if the terms ask for checks.
    pub check_command: Option<OsString>,
    /// The job's requirements of this node's accelerators.
    pub gpus: GpuTerms,
    /// Directories that are searched for vendors' tools, in the form of `PATH`.
    pub tool_path: OsString,
    /// The workers' share of a device that is shared with other containers.
    pub gpu_share: Option<ShareTerms>,
    /// The switchbox check, if it is part of the self-test.
    pub switchbox: Option<SwitchboxTask>,
    /// Where output goes.
    pub logs: LogConfig,
    /// Python workers count the optimizer steps of torch by themselves.
    pub counts_steps: bool,
    /// The user asked for the detection of hangs, and is told when workers show no progress.
    pub reports_missing_progress: bool,
    /// Where what a worker writes in a hang is copied to: the first of these directories that takes files.
    pub stack_folders: Vec<PathBuf>,
    /// Python workers are forked from a template; `None`: never.
    pub warm: Option<WarmConfig>,
    /// The memory of this node in which checkpoints may be kept, in bytes; `None`: 40 % of what there is.
    pub checkpoint_memory: Option<u64>,
    /// How worker environments are made.
    pub env: EnvConfig,
    /// CPUs each local rank may run on, by local rank; empty: no binding.
    pub cpus: Vec<Vec<usize>>,
}

/// The command of every worker. `${local_rank}` in any argument is replaced at the start.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// Program and arguments; never empty. `argv[0]` is looked up in PATH when it has no slash.
    pub argv: Vec<OsString>,
    /// Its name in the failure report: the script, the module or the program, as given.
    pub title: String,
}

/// Where workers find their store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasterPort {
    /// The launcher serves the store on a port of its own (`TORCHELASTIC_USE_AGENT_STORE=True`).
    Served,
    /// Rank 0 binds a port that was just found free (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`).
    LeftToRankZero,
}

/// Where workers' output goes.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Where run directories are made.
    pub dir: LogDir,
    /// Streams written to files only, by local rank; as long as the local world.
    pub redirects: Vec<Streams>,
    /// Streams written to files and the console, by local rank; as long as the local world.
    pub tee: Vec<Streams>,
    /// Prefix of every tee'd line. Macros: `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}`.
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

/// Where run directories are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// A fresh directory `torchelastic_<8 random>` in this directory (`TMPDIR`, else `/tmp`).
    Temporary(PathBuf),
    /// Under this directory, made with its parents when it is missing.
    At(PathBuf),
    /// `--log-dir=/dev/null`: no files at all, and no error files.
    Nowhere,
}

/// How worker environments are made.
#[derive(Debug, Clone)]
pub struct EnvConfig {
    /// The launcher's own environment, byte for byte, except for the accelerators that the launcher has chosen.
    pub inherited: Vec<(OsString, OsString)>,
    /// `--virtual-local-rank`: every worker sees LOCAL_RANK=0 and one device.
    pub virtual_local_rank: bool,
    /// `TORCHELASTIC_SIGNALS_TO_HANDLE` as the user gave it.
    pub signals_to_handle: String,
}

/// The variables that select the visible accelerators and their numbering.
const VISIBLE: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MACA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

impl EnvConfig {
    /// The variables that limit programs to this job's accelerators before workers start: the launcher's own
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
    fn variables_of_visible_devices_are_selected() {
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
