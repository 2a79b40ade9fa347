//! Events and effects of a node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use checkpoint::message::{FromSaver, ShardState, ToSaver};

use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound},
    checkpoints::{CheckpointProgress, CheckpointReport},
    failure::{ExitCause, Outcome, WorkerFailure},
    fence::{Answer, Juror},
    hang::HangTerms,
    ids::{Attempt, LocalRank, NodeId, Round},
    job::{Claim, NodeEnd},
    notice::Notice,
    progress::{ProgressReport, Sample},
    push::Push,
    warm::{LeftOut, WarmTerms},
    world::Assignment,
};
use diagnosis::{
    gpus::{GpuUse, Inventory, share::ShareTerms},
    moment::Moment,
    network_check::{LocalCheck, Probed},
};

/// The settings of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// This launcher.
    pub node_id: NodeId,
    /// Restarts after the first attempt.
    pub max_restarts: u32,
    /// The time between the first signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// How long a master that is needed and away is waited for.
    pub join_timeout: Duration,
    /// This node tests itself before each start, unless it did so less than this ago; `None`: never.
    pub check: Option<Duration>,
    /// The node has accelerators; they are queried once workers run.
    pub has_accelerators: bool,
    /// Those that the workers see, in the form of `CUDA_VISIBLE_DEVICES`; `None`: all.
    pub visible_accelerators: Option<String>,
    /// The workers have a share of one of them.
    pub gpu_share: Option<ShareTerms>,
    /// When the job counts as hanging; `None`: that is not watched.
    pub hang: Option<HangTerms>,
    /// The user asked for that, and is notified when workers show no progress by which it could be seen.
    pub reports_missing_progress: bool,
    /// Python workers are forked from a template; `None`: never.
    pub warm: Option<WarmTerms>,
    /// When workers fail for good, the newest checkpoint in memory is written to disk too.
    pub save_at_breakpoint: bool,
}

/// An event of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The master sent a message.
    Pushed(Push),
    /// The store of that round is open here. Without an address, the master takes the node's own.
    Hosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// The store of that round could not be opened.
    CannotHost { reason: String },
    /// Progress of the self-test.
    SelfCheckProgress { message: String },
    /// The self-test cannot be made as configured.
    CannotCheck { reason: String },
    /// The result of the self-test.
    LocallyChecked { checked: LocalCheck },
    /// Progress of the test of this round.
    Probing { at: CheckRound, probed: Probed },
    /// The test ended.
    Probed { report: CheckReport },
    /// Directories, files and pipes of the round's workers are ready. The OOM killer has killed so many processes of
    /// this cgroup by now; `None`: unknown.
    Prepared { round: Round, oom_kills: Option<u64> },
    /// Directories, files and pipes of the round's workers could not be made.
    CannotPrepare { round: Round, reason: String },
    /// A worker could not be started. No further worker of the round was.
    CannotStart { round: Round, local_rank: LocalRank, reason: String },
    /// The node's accelerators.
    InventoryTaken { inventory: Box<Inventory> },
    /// The driver reported an error of an accelerator: NVIDIA's `Xid`.
    GpuError { gpu: u32, code: u64 },
    /// The processes that use memory of accelerators.
    GpuMemory { uses: Vec<GpuUse> },
    /// What the workers of this round have shown of their progress.
    ProgressSampled { round: Round, samples: Vec<Sample> },
    /// The stacks that the master has ordered are taken, and sent.
    StacksTaken,
    /// The template of warm workers is ready, without these packages: those that are started from now on are forked from
    /// it.
    TemplateReady { kib: u64, left_out: Vec<LeftOut> },
    /// The template has ended, because it cannot be used.
    TemplateUnfit { reason: String },
    /// The template has ended, because a worker could not be forked from it. That worker is started without it.
    TemplateRefused { reason: String },
    /// A worker connects to the socket for checkpoints, and no saver has ever run.
    SaverWanted,
    /// The saver says something.
    SaverSaid { said: Box<FromSaver> },
    /// The saver ended, or could not be started.
    SaverEnded { reason: String },
    /// A worker runs.
    WorkerStarted { round: Round, local_rank: LocalRank, pid: i32 },
    /// A worker ended. The OOM killer has killed so many processes of this cgroup by now; `None`: unknown.
    WorkerExited { round: Round, exit: WorkerExit, oom_kills: Option<u64> },
    /// These workers have connected to the store; with `is_unsure`, so has a process that was not found.
    StoreReached { round: Round, workers: Vec<LocalRank>, is_unsure: bool },
    /// No process of the round's workers and their children is left.
    TreeGone { round: Round },
    /// The launcher received this signal, which ends the run.
    Signalled { signal: i32 },
    /// The launcher received a signal for the workers that does not end the run (SIGUSR1, SIGUSR2).
    Forwarded { signal: i32 },
    /// A stream to the master is open, for the first time or again.
    MasterBack,
    /// There is no stream to the master, for this reason. The agent keeps trying; another reason may follow.
    MasterAway { reason: String },
    /// The master has answered a message that was sent then.
    MasterAnswered { sent: Moment },
    /// The answers of the jurors of this round that were reached, and whether the only host where the master may be
    /// refuses the connection.
    Answered { round: Round, answers: Vec<Answer>, is_master_gone: bool },
    /// The master has acknowledged this node's end.
    EndNoted,
    /// The guard process died; the shell has already killed what was left of the workers.
    GuardDied { cause: ExitCause },
    /// [`super::WorkerGroup::deadline`] is reached.
    Deadline,
}

/// A worker's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerExit {
    pub local_rank: LocalRank,
    pub pid: i32,
    pub cause: ExitCause,
    /// When, in whole seconds since 1970.
    pub unix_secs: i64,
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask the master for an assignment, having left this round, with these checkpoints in memory.
    Join { attempt: Attempt, after: Option<Round>, checked: Option<LocalCheck>, shards: Vec<ShardState> },
    /// Query this node's accelerators in the background.
    TakeInventory,
    /// Report them to the master.
    ReportInventory { inventory: Box<Inventory> },
    /// Subscribe to the driver's errors until the end, and sample which processes hold memory.
    WatchGpus { and_memory: bool },
    /// SIGKILL to one worker.
    KillWorker { local_rank: LocalRank },
    /// Run the self-test.
    CheckLocally,
    /// Run this test with others. A running one is ended first.
    Probe { order: CheckOrder },
    /// Cancel the test of this round.
    CancelProbe { at: CheckRound },
    /// Report the result of a test.
    ReportCheck { report: CheckReport },
    /// Report the progress of a test. Not worth a retry.
    ReportTestProgress { at: CheckRound, probed: Probed },
    /// Report the state of this node, after the stream was broken.
    Resume { claim: Claim },
    /// Open the store for this round, empty.
    HostStore { round: Round, fresh_port: bool },
    /// Report its address.
    ReportHosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// Report to the master, and so to all nodes, that workers failed. `worker` is the one that failed first: what is
    /// known of it is gathered, and reported when it is there.
    ReportFailure { round: Round, reason: String, gives_up: bool, worker: Option<Box<WorkerFailure>> },
    /// Report the progress of the workers. Not worth a retry: it is reported again when the master is back.
    ReportProgress { report: ProgressReport },
    /// Take the stacks of the workers of this assignment, and send them to the master. [`Event::StacksTaken`] follows.
    DumpStacks { assignment: Assignment, episode: u32 },
    /// Acknowledge the end of the job.
    AcknowledgeEnd,
    /// Make directories, files and pipes for the workers of this round.
    Prepare { assignment: Assignment, attempt: Attempt },
    /// Start the workers that were prepared.
    Spawn { round: Round },
    /// Start the template of warm workers, with the command and the environment of local rank 0; beside workers that
    /// train, at idle priority.
    StartTemplate { is_idle: bool },
    /// End it.
    EndTemplate,
    /// Start the saver, to which workers connect from now on.
    StartSaver,
    /// Send it a line.
    TellSaver { message: Box<ToSaver> },
    /// Report what the saver said to the master.
    ReportCheckpoint { report: Box<CheckpointReport> },
    /// Report how far the checkpoints are, for people. Not worth a retry.
    ReportCheckpointProgress { progress: CheckpointProgress },
    /// Send a signal to the workers and all their children.
    SignalTree { signal: i32 },
    /// Send a signal to the workers alone.
    SignalWorkers { signal: i32 },
    /// SIGKILL to the workers and all their children.
    KillTree,
    /// The processes that are left cannot be killed: report them at the end, and do not wait for them.
    AbandonTree,
    /// Ask each of these launchers whether it has the master in this round, and, with `of_master`, the host of the
    /// master whether it refuses connections.
    Ask { round: Round, jury: Vec<Juror>, timeout: Duration, of_master: bool },
    /// Show the user a message.
    Notify(Notice),
    /// Report how this node's part ended.
    ReportEnd { end: NodeEnd },
    /// The run is over: exit. Nothing follows.
    Finish { outcome: Outcome },
}
