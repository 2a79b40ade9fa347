//! What a job is doing, as data: for `dlrover-diag status`, the page and the metrics of the master.
//!
//! The fields are those of the JSON document `dlrover.job-status/v1` (docs/job-status.v1.schema.json). Times are
//! seconds, and ages where they concern the past: clocks of hosts differ.

use serde::{Deserialize, Serialize};

use crate::progress::RankState;

/// The most ranks of a job that are all listed.
pub const MAX_RANKS: u32 = 1024;

/// The most troubles of its accelerators that are listed for a node: two for each of 8.
pub const MAX_GPU_TROUBLES: usize = 16;

/// The version of the document.
pub const SCHEMA: &str = "dlrover.job-status/v1";

/// What a job is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// [`SCHEMA`].
    pub schema: String,
    /// The run id; `None` before the first node.
    pub job: Option<String>,
    pub phase: JobPhase,
    /// For how long it has been in this phase.
    pub phase_seconds: f64,
    /// Since the first node joined.
    pub age_seconds: f64,
    /// The round that runs or is being started, else the last one.
    pub round: Option<u32>,
    /// Fewest and most nodes; `None` before the first node.
    pub min_nodes: Option<u32>,
    pub max_nodes: Option<u32>,
    /// Of the round that runs.
    pub world_size: Option<u32>,
    /// Why the next round waits for nodes, and until when.
    pub pending: Option<String>,
    /// By node rank; nodes without one come last.
    pub nodes: Vec<NodeStatus>,
    /// The last failure or loss.
    pub last_failure: Option<FailureStatus>,
    /// The last hang.
    pub hang: Option<HangStatus>,
    /// Checkpoints that nodes have in memory, by directory.
    pub checkpoints: Vec<CheckpointStatus>,
    /// The last network check.
    pub check: Option<CheckStatus>,
    /// How the job ended; `None` while it has not.
    pub end: Option<EndStatus>,
    /// The last rounds, oldest first.
    pub rounds: Vec<RoundStatus>,
    pub totals: Totals,
    /// The last events, oldest first.
    pub events: Vec<JobEvent>,
    /// The master itself.
    pub master: MasterStatus,
}

/// The phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobPhase {
    /// Too few nodes have joined.
    Pending,
    /// Enough nodes have joined; the round is being completed, or its store opened.
    Rendezvous,
    /// Nodes are checked, or their bandwidth is measured.
    Check,
    /// Workers of the last round are being stopped, or nodes come back to a restarted master.
    Restart,
    /// Workers run.
    Running,
    /// The job has ended.
    Over,
}

impl JobPhase {
    /// All phases, in order.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Rendezvous, Self::Check, Self::Restart, Self::Running, Self::Over];

    /// As the document and the metrics name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Rendezvous => "rendezvous",
            Self::Check => "check",
            Self::Restart => "restart",
            Self::Running => "running",
            Self::Over => "over",
        }
    }
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Its workers run.
    Running,
    /// Its workers all exited with code 0.
    Succeeded,
    /// Its workers of the last round are being stopped.
    Stopping,
    /// It waits for a round to begin.
    Waiting,
    /// The job runs with all the nodes it needs; this one waits for a free node rank.
    Spare,
    /// It is being checked.
    Checking,
    /// It is chosen for the round that is about to begin.
    Starting,
    /// Its connection is broken, and it may come back.
    Disconnected,
}

impl NodeState {
    /// All states, in order.
    pub const ALL: [Self; 8] = [
        Self::Running,
        Self::Succeeded,
        Self::Stopping,
        Self::Waiting,
        Self::Spare,
        Self::Checking,
        Self::Starting,
        Self::Disconnected,
    ];

    /// As the document and the metrics name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Stopping => "stopping",
            Self::Waiting => "waiting",
            Self::Spare => "spare",
            Self::Checking => "checking",
            Self::Starting => "starting",
            Self::Disconnected => "disconnected",
        }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node rank that it has, else had last, else asks for.
    pub node_rank: Option<u32>,
    pub host: String,
    pub address: String,
    pub state: NodeState,
    /// Workers on this node.
    pub workers: u32,
    /// `RANK` of its first worker; `None` outside a running round.
    pub first_rank: Option<u32>,
    /// Restarts of the job's workers after failures of workers of this node rank.
    pub restarts: u32,
    /// Replacements of this node rank that were used, and how many are allowed.
    pub replacements: u32,
    pub max_replacements: u32,
    /// Since it joined.
    pub seconds: f64,
    /// Its accelerators in one line; `None` when it has reported none.
    pub accelerators: Option<String>,
    /// How many accelerators it has reported, and how many of them are broken.
    pub gpus: u32,
    pub broken_gpus: u32,
    /// What is wrong with them, each once: `GPU 3 (NVIDIA H100): it has fallen off the bus`. At most
    /// [`MAX_GPU_TROUBLES`].
    pub gpu_troubles: Vec<String>,
    /// The progress of its ranks, as far as it has reported any. Of more than [`MAX_RANKS`] in the job, each node has
    /// the one that is furthest behind.
    pub ranks: Vec<RankStatus>,
}

/// The progress of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    pub rank: u32,
    pub state: RankState,
    /// The last step that it has declared.
    pub step: Option<u64>,
    /// Over the last minute.
    pub steps_per_second: Option<f64>,
    /// How long ago it advanced last; since its start, if it never has.
    pub idle_seconds: f64,
    /// It makes fewer steps than its peers.
    pub slow: bool,
}

/// A hang: a time in which no rank advanced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HangStatus {
    /// How many hangs there were, this one included.
    pub count: u32,
    pub round: u32,
    /// A rank advances again, or the round is over.
    pub is_over: bool,
    /// When it was declared, as an age.
    pub seconds_ago: f64,
    /// For how long no rank has advanced, or had.
    pub idle_seconds: f64,
    /// What the stacks say.
    pub sentence: String,
    /// The odd ranks.
    pub ranks: Vec<u32>,
    /// Where the stacks are, on the host of the job master; empty: nowhere.
    pub folder: String,
}

/// A failure of workers, or the loss of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureStatus {
    pub round: Option<u32>,
    /// The node, for people.
    pub node: String,
    /// What the node reported at once.
    pub reason: String,
    /// How long ago.
    pub seconds_ago: f64,
    /// The worker that failed first and its error, in one line; `None` while its node has not said.
    pub root_cause: Option<String>,
    /// The last lines of that worker's standard error, at most 20.
    pub last_lines: Vec<String>,
}

/// The last network check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckStatus {
    /// Counted from 0.
    pub check: u32,
    pub seconds_ago: f64,
    pub nodes: Vec<CheckedNodeStatus>,
    /// At most [`MAX_TESTS`], the last ones.
    pub tests: Vec<TestStatus>,
}

/// The most tests that a status lists.
pub const MAX_TESTS: usize = 4096;

/// The verdict on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckedNodeStatus {
    /// The number of the node in the check.
    pub number: u32,
    pub host: String,
    pub address: String,
    /// As in the taint report.
    pub verdict: String,
    pub excluded: bool,
    pub tainted: bool,
    /// The first piece of evidence, where it is not healthy.
    pub evidence: Option<String>,
}

/// A test of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestStatus {
    pub round: u32,
    /// The numbers of its nodes.
    pub nodes: Vec<u32>,
    /// `pass`, `slow` or `fail`.
    pub result: String,
    /// Bytes a second between the nodes; `None` when nothing was measured.
    pub bytes_per_second: Option<f64>,
}

/// The checkpoints of one directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    pub folder: String,
    /// The newest step that every node has in memory, as they said last.
    pub memory_step: Option<u64>,
    /// The newest step that is complete on disk, as far as the job master knows.
    pub disk_step: Option<u64>,
    /// The newest step that is being written to disk.
    pub writing: Option<CheckpointWriteStatus>,
}

/// A step that is being written to disk: how far all nodes together are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointWriteStatus {
    pub step: u64,
    pub bytes: u64,
    pub total_bytes: u64,
}

/// How the job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndStatus {
    pub succeeded: bool,
    /// Why, in words.
    pub message: String,
}

/// A round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundStatus {
    pub round: u32,
    pub nodes: u32,
    /// From the beginning of the rendezvous to the assignments.
    pub rendezvous_seconds: f64,
    /// When its workers were started, as an age.
    pub started_seconds_ago: f64,
    /// For how long it has run.
    pub ran_seconds: f64,
    /// Why it ended; `None` while it runs.
    pub ended: Option<String>,
}

/// Sums since the first node joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub rounds: u64,
    /// Restarts of the workers after a failure of workers.
    pub worker_restarts: u64,
    /// The same by the node rank on which workers failed, of all node ranks that ever had one.
    pub restarts_by_node: Vec<NodeRestarts>,
    pub node_losses: u64,
    /// The time during which workers ran.
    pub training_seconds: f64,
    /// The rest, by cause.
    pub lost_seconds: LostSeconds,
    /// `training_seconds` over all the time; `None` before the first node.
    pub effective_training_ratio: Option<f64>,
    /// From the first join of a rendezvous to the assignments.
    pub rendezvous: Histogram,
    /// From a failure or loss to the next assignments.
    pub failure_to_running: Histogram,
}

/// The restarts after failures of workers of a node rank, whether the job still has that rank or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRestarts {
    /// `None`: of nodes that had no rank.
    pub node_rank: Option<u32>,
    pub restarts: u64,
}

/// The time during which no workers ran, by cause, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LostSeconds {
    pub pending: f64,
    pub rendezvous: f64,
    pub check: f64,
    pub restart: f64,
}

impl LostSeconds {
    /// Each cause with its time, in the order in which they come up in the life of a job.
    #[must_use]
    pub const fn by_cause(&self) -> [(&'static str, f64); 4] {
        let Self { pending, rendezvous, check, restart } = *self;
        [("pending", pending), ("rendezvous", rendezvous), ("check", check), ("restart", restart)]
    }
}

/// A cumulative histogram, as Prometheus has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending, and how many values are at most that.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

/// An event of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// Counted from 1, without gaps.
    pub number: u64,
    pub seconds_ago: f64,
    pub message: String,
}

/// The master.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MasterStatus {
    pub version: String,
    /// How long this process has served the job.
    pub seconds: u64,
    /// Distinguishes this life of the master from any other.
    pub epoch: String,
    /// It keeps its state in a directory, and a restarted master continues.
    pub has_state_dir: bool,
}
