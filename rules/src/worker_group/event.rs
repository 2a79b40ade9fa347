//! What a node's machine is told, and what it answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound},
    failure::{ExitCause, Outcome},
    fence::{Answer, Juror},
    ids::{Attempt, LocalRank, NodeId, Round},
    job::{Claim, NodeEnd},
    notice::Notice,
    pending::Pending,
    verdict::JobVerdict,
    world::Assignment,
};
use diagnosis::{
    exclusion::Exclusion,
    gpus::{GpuUse, Inventory, share::ShareTerms},
    moment::Moment,
    network_check::{LocalCheck, Probed},
};

/// What this node was told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// This launcher.
    pub node_id: NodeId,
    /// Restarts after the first attempt.
    pub max_restarts: u32,
    /// Time between the polite signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// How long a master that is away is waited for once it is needed.
    pub join_timeout: Duration,
    /// This node checks itself before each start, unless it did so less than this ago; `None`: never.
    pub check: Option<Duration>,
    /// The node shows accelerators: what they are is found out once workers run.
    pub has_accelerators: bool,
    /// The workers have a share of one of them.
    pub gpu_share: Option<ShareTerms>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The master asks this node to serve the store of a round it completed; on a port of its own, when
    /// somebody may still speak to the last one.
    HostRequested { round: Round, fresh_port: bool },
    /// The store of that round is open here. Without an address, the master takes the node's own.
    Hosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// The store of that round could not be opened.
    CannotHost { reason: String },
    /// The master completed a round and this node has a seat in it.
    Assigned { assignment: Assignment },
    /// Why there is no seat yet.
    Pending(Pending),
    /// What the check of this node alone has to say meanwhile.
    SelfCheckProgress { message: String },
    /// The check of this node alone cannot be made as it was asked for.
    CannotCheck { reason: String },
    /// What this node found out about itself.
    LocallyChecked { checked: LocalCheck },
    /// The master asks for a test with others.
    CheckOrdered { order: CheckOrder },
    /// The test of this round is to end now.
    CheckCancelled { at: CheckRound },
    /// How far the test of this round has come.
    Probing { at: CheckRound, probed: Probed },
    /// The test ended.
    Probed { report: CheckReport },
    /// The check is over and this node passed.
    CheckOver { message: String },
    /// A check keeps this node out of the job.
    Excluded { exclusion: Exclusion },
    /// The master does not let this node take part.
    Refused { reason: String },
    /// Folders, files and pipes of the round's workers are ready. The OOM killer has killed so many processes of this
    /// cgroup by now; `None`: unknown.
    Prepared { round: Round, oom_kills: Option<u64> },
    /// They could not be made ready.
    CannotPrepare { round: Round, reason: String },
    /// A worker could not be started. No further worker of the round was.
    CannotStart { round: Round, local_rank: LocalRank, reason: String },
    /// What this node's accelerators are.
    InventoryTaken { inventory: Box<Inventory> },
    /// The driver told of an error of an accelerator: NVIDIA's `Xid`.
    GpuError { gpu: u32, code: u64 },
    /// Who holds memory of accelerators.
    GpuMemory { uses: Vec<GpuUse> },
    /// A worker runs.
    WorkerStarted { round: Round, local_rank: LocalRank, pid: i32 },
    /// A worker ended. The OOM killer has killed so many processes of this cgroup by now; `None`: unknown.
    WorkerExited { round: Round, exit: WorkerExit, oom_kills: Option<u64> },
    /// These workers have connected to the store; with `is_unsure`, so has a process that was not found.
    StoreReached { round: Round, workers: Vec<LocalRank>, is_unsure: bool },
    /// Of all that the round's workers ever started, no process is left.
    TreeGone { round: Round },
    /// Somebody asked the launcher to end, by this signal.
    Signalled { signal: i32 },
    /// A signal that workers want to see and that does not end the run (SIGUSR1, SIGUSR2).
    Forwarded { signal: i32 },
    /// The round is over for all its members, and why. With `excuses` that came before any failure of our own
    /// workers, which then followed from it.
    Regroup { round: Round, why: String, is_secondary: bool },
    /// The job is over.
    JobEnded { verdict: JobVerdict },
    /// A stream to the master is open, for the first time or again.
    MasterBack,
    /// There is none. It is being tried again; another reason may follow.
    MasterAway { reason: String },
    /// The master has answered a word that was sent then.
    Heard { sent: Moment },
    /// What those said that were asked of this round and were reached, and whether the only host where the master may be
    /// says that it is not there.
    Answered { round: Round, answers: Vec<Answer>, is_master_gone: bool },
    /// The master has taken note of this node's end.
    EndNoted,
    /// The guard process died; the shell has already cleared away whatever was left of the workers.
    GuardDied { cause: ExitCause },
    /// The moment of [`WorkerGroup::deadline`] has come.
    Deadline,
}

/// A worker's end, as the shell saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerExit {
    /// Which worker.
    pub local_rank: LocalRank,
    /// Its process id.
    pub pid: i32,
    /// How it ended.
    pub cause: ExitCause,
    /// When, in whole seconds since 1970.
    pub unix_secs: i64,
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask the master for a seat, having left this round.
    Join { attempt: Attempt, after: Option<Round>, checked: Option<LocalCheck> },
    /// Find out what this node's accelerators are, beside everything else.
    TakeInventory,
    /// Tell the master.
    ReportInventory { inventory: Box<Inventory> },
    /// Listen to what the accelerators' driver tells, until the end; and look who holds memory, now and then.
    WatchGpus { and_memory: bool },
    /// SIGKILL to one worker.
    KillWorker { local_rank: LocalRank },
    /// Find out what this node can know of itself alone.
    CheckLocally,
    /// Do this test with others. One before it that has not ended is ended first.
    Probe { order: CheckOrder },
    /// End the test of this round now.
    CancelProbe { at: CheckRound },
    /// Tell the master what a test came to.
    ReportCheck { report: CheckReport },
    /// Tell the master how far it has come. Not worth a retry.
    ReportProgress { at: CheckRound, probed: Probed },
    /// Tell the master where this node stands, after the stream was broken.
    Resume { claim: Claim },
    /// Open the store for this round, with nothing in it of any other.
    HostStore { round: Round, fresh_port: bool },
    /// Tell the master where it is.
    ReportHosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// Tell the master, and so all nodes, that workers failed.
    ReportFailure { round: Round, reason: String, gives_up: bool },
    /// Tell the master that this node has heard of the job's end.
    AcknowledgeEnd,
    /// Make folders, files and pipes for the workers of this round.
    Prepare { assignment: Assignment, attempt: Attempt },
    /// Start the workers that were prepared.
    Spawn { round: Round },
    /// Send a signal to every process the workers have started, and to the workers.
    SignalTree { signal: i32 },
    /// Send a signal to the workers alone.
    SignalWorkers { signal: i32 },
    /// SIGKILL to every process the workers have started, and to the workers.
    KillTree,
    /// The processes that are left cannot be killed: say so at the end, and go on without waiting for them.
    AbandonTree,
    /// Ask each of these launchers whether it hears the master in this round, for no longer than this; and the host of the
    /// master, when its word is good, whether it is there.
    Ask { round: Round, jury: Vec<Juror>, timeout: Duration, of_master: bool },
    /// Tell a person.
    Notify(Notice),
    /// Tell the master how this node's part ended.
    ReportEnd { end: NodeEnd },
    /// Leave. Nothing follows.
    Finish { outcome: Outcome },
}
