//! Events and effects of a job.

use std::{collections::BTreeSet, fmt, time::Duration};

use checkpoint::job::Note;
use serde::{Deserialize, Serialize};

use super::Gone;
use crate::{
    check_order::{CheckReport, CheckRound},
    checkpoints::CheckpointReport,
    fence::FenceTerms,
    hang::{HangNotice, HangReport, HangVerdict},
    ids::{NodeId, NodeRank, Rank, Round},
    liveness::LossCause,
    node::{JoinRequest, NodeName, Terms},
    push::Push,
    root_cause::{FailureDetail, RootCause},
    taint_report::TaintReport,
    topology::Topology,
    verdict::JobVerdict,
    world::World,
};
use diagnosis::{counted::counted, gpus::Inventory, network_check::Probed};

/// The settings of the master itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// How often each rank may be replaced after a loss.
    pub restart_count: u32,
    /// What follows when a node gives up.
    pub on_give_up: OnGiveUp,
    /// The launcher that serves this master inside itself and cannot come back: the job ends with it.
    pub host: Option<NodeId>,
    /// Ranks follow a topology file, which is read again for each round.
    pub has_topology: bool,
    /// How long the host of a round may take to open its store.
    pub host_timeout: Duration,
    /// How long members of a round may take to come back to a master without state.
    pub reconnect_grace: Duration,
    /// The terms of the launcher that serves this master. `None`: those of the first nodes.
    pub terms: Option<Terms>,
    /// No token is needed to join.
    pub is_open: bool,
    /// The share of the nodes, in thousandths, above which a check taints no node and the job fails.
    pub taint_guard_permille: u32,
    /// How long workers may run without contact to the master, at least; `None`: for ever, as where there are no
    /// heartbeats.
    pub lease: Option<Duration>,
}

/// What follows when a node gives up: it has no restart left, or cannot start its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnGiveUp {
    /// The job fails (torchrun lines, and a job of one node).
    FailJob,
    /// Another node may replace it, as after a loss.
    Replace,
}

/// An event of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A node opened its stream.
    Subscribed { node: NodeId },
    /// A node's stream broke. It may come back.
    LinkBroken { node: NodeId },
    /// A node joins, for the first time or again after its workers are gone.
    Joined(JoinRequest),
    /// A node whose stream was broken reports its state.
    Resumed { request: JoinRequest, claim: Claim },
    /// The topology file was read.
    TopologyRead(Result<Topology, String>),
    /// The host of a round serves the store here. Without an address, the node's own is taken.
    Hosted { node: NodeId, round: Round, master_addr: Option<String>, master_port: u16 },
    /// A node has received its assignment.
    AssignmentTaken { node: NodeId, round: Round },
    /// A node reports its accelerators.
    InventoryReported { node: NodeId, inventory: Box<Inventory> },
    /// A node reports the result of its part in a round of a check.
    CheckReported { node: NodeId, report: CheckReport },
    /// A node reports progress of its part in a round of a check.
    CheckProgressed { node: NodeId, at: CheckRound, probed: Probed },
    /// Workers of a node failed, so long ago. It stops the rest of them, and then joins again unless it gives up. With
    /// `has_detail`, [`Event::FailureDetailed`] follows.
    WorkersFailed {
        node: NodeId,
        round: Round,
        reason: String,
        gives_up: bool,
        has_detail: bool,
        age: Duration,
    },
    /// What a node knows of the worker that failed first.
    FailureDetailed { node: NodeId, round: Round, detail: Box<FailureDetail> },
    /// A node's part is over.
    NodeEnded { node: NodeId, end: NodeEnd },
    /// A node is lost.
    NodeLost { node: NodeId, cause: LossCause },
    /// A node has received the end of the job.
    EndAcknowledged { node: NodeId },
    /// No rank of the round that runs has advanced for so long.
    TrainingStalled { round: Round, idle: Duration },
    /// A rank advances again.
    TrainingAdvanced,
    /// A rank makes fewer steps than its peers: their steps to its own, in thousandths.
    SlowRank { rank: Rank, permille: u64 },
    /// A node reports on its checkpoints in memory.
    CheckpointReported { node: NodeId, report: Box<CheckpointReport> },
    /// A node has sent the stacks of all its workers.
    StacksSent { node: NodeId, episode: u32 },
    /// What the stacks of all nodes say.
    HangJudged { episode: u32, verdict: Box<HangVerdict> },
    /// The workers of lost nodes have ended, as follows from the last messages of those and others.
    WorkersGone { nodes: BTreeSet<NodeId> },
    /// The master was restarted from the journal.
    Restarted,
    /// [`super::Job::deadline`] is reached.
    Deadline,
}

impl Event {
    /// The node that sent the event.
    #[must_use]
    pub fn speaker(&self) -> Option<&NodeId> {
        match self {
            Self::Subscribed { node }
            | Self::Hosted { node, .. }
            | Self::AssignmentTaken { node, .. }
            | Self::InventoryReported { node, .. }
            | Self::CheckReported { node, .. }
            | Self::CheckProgressed { node, .. }
            | Self::WorkersFailed { node, .. }
            | Self::FailureDetailed { node, .. }
            | Self::StacksSent { node, .. }
            | Self::CheckpointReported { node, .. }
            | Self::NodeEnded { node, .. }
            | Self::EndAcknowledged { node } => Some(node),
            Self::Joined(request) | Self::Resumed { request, .. } => Some(&request.node_id),
            Self::LinkBroken { .. }
            | Self::TopologyRead(_)
            | Self::NodeLost { .. }
            | Self::WorkersGone { .. }
            | Self::TrainingStalled { .. }
            | Self::TrainingAdvanced
            | Self::SlowRank { .. }
            | Self::HangJudged { .. }
            | Self::Restarted
            | Self::Deadline => None,
        }
    }
}

/// The state that a node reports when its stream is open again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub round: Round,
    pub node_rank: NodeRank,
    /// Nodes in that round.
    pub nodes: u32,
    /// `MASTER_ADDR` of that round.
    pub master_addr: String,
    /// `MASTER_PORT` of that round.
    pub master_port: u16,
    /// What its workers do.
    pub workers_state: WorkersState,
    /// When its workers may run without the master; `None`: always.
    pub fence: Option<FenceTerms>,
}

/// The state of a node's workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkersState {
    /// They run, or are about to.
    Running,
    /// They are being stopped; the node joins again when they are gone.
    Stopping,
    /// All of them exited with code 0.
    Succeeded,
}

/// How one node's part ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEnd {
    /// All its workers of this round exited with code 0. It stays a member and waits for the others.
    Succeeded { round: Round },
    /// It gave up for this reason.
    Failed { reason: String },
    /// It was stopped by this signal: an announced leave.
    Left { signal: i32 },
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Send a message to a node.
    Push { node: NodeId, push: Push },
    /// Read the topology file.
    ReadTopology,
    /// The outcome of a check, for the operator.
    Report(Box<TaintReport>),
    /// Refuse a node ([`Push::Refused`]), and end its stream.
    Refuse { node: NodeId, name: NodeName, reason: Refusal },
    /// Nothing is expected of a node any more.
    Forget { node: NodeId },
    /// A node is lost: its stream is closed, so that it notices if it lives.
    HangUp { node: NodeId },
    /// The stacks that nodes will send belong to this episode; those of earlier ones are of no use any more.
    CollectStacks { episode: u32 },
    /// Merge and write what was sent, and say what it means ([`Event::HangJudged`]). Ranks without stacks are part of it.
    JudgeStacks { episode: u32, world: Box<World> },
    /// A hang, for the operator.
    ReportHang(Box<HangReport>),
    /// A line for the master's log.
    Log(Log),
    /// All nodes know how the job ended. Nothing follows.
    Finish { verdict: JobVerdict },
}

/// Why a round is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Regroup {
    /// Workers of a node failed.
    WorkersFailed { node: NodeName, reason: String },
    /// A node was lost, or left.
    NodeGone { node: NodeName, gone: Gone },
    /// Nodes joined that the job has room for.
    Growth { nodes: u32 },
    /// A member joined again by itself.
    Rejoined { node: NodeName },
    /// Not all members of the round came back to the restarted master.
    NotAllCameBack { back: u32, nodes: u32 },
    /// This node reports a round that is over.
    Late,
    /// This node is in a round that the master does not know; `next` is the round that the master would begin next.
    UnknownRound { next: Round },
}

impl Regroup {
    /// Whether a failure of the notified node's own workers in that round is secondary: the master learned of this
    /// first, and workers fail when their peers are gone.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        !matches!(self, Self::Late | Self::UnknownRound { .. })
    }
}

impl fmt::Display for Regroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkersFailed { node, reason } => write!(f, "workers of {node} failed: {reason}"),
            Self::NodeGone { node, gone } => write!(f, "{node} {gone}"),
            Self::Growth { nodes } => {
                write!(f, "{} joined", counted(*nodes, "more node"))
            }
            Self::Rejoined { node } => write!(f, "{node} joined again"),
            Self::NotAllCameBack { back, nodes } => {
                let nodes = counted(*nodes, "node");
                write!(f, "{back} of {nodes} reconnected to the restarted job master")
            }
            Self::Late => f.write_str("the job continued without this node while it was unreachable"),
            Self::UnknownRound { next } => write!(
                f,
                "the restarted job master does not know this node's round: the master's state is out of date and \
                 ends before round {next}"
            ),
        }
    }
}

/// Why a node is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The terms that the node expects differ from those of the job.
    Differs { point: String },
    /// The joining node has another number of workers, and the job requires the same on each node.
    NotUniform { job: u32, node: u32 },
    /// The node rank that the joining node asks for is held by a connected node.
    Held { rank: NodeRank, holder: NodeName, newcomer: NodeName },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs { point } => {
                write!(f, "{point}; give every node the same command line and environment")
            }
            Self::NotUniform { job, node } => write!(
                f,
                "the job's nodes must have the same number of workers: they have {job}, the joining node has \
                 {node}; give every node the same nproc-per-node, or leave out require-uniform",
            ),
            Self::Held { rank, holder, newcomer } => write!(
                f,
                "node rank {rank} is held by {holder}, which is connected, so {newcomer} cannot take it; give each \
                 node a node rank of its own, or stop the other launcher first"
            ),
        }
    }
}

/// A message of the master's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Log {
    /// A round has its members: address, host and switch by rank.
    Placed { round: Round, nodes: Vec<(String, String, Option<String>)> },
    /// The file does not list these addresses; they are ordered last.
    Unlisted { addresses: Vec<String> },
    /// The file could not be used; the last good one, or none, stays in force.
    TopologyUnusable { reason: String },
    /// A node reported accelerators, some of which need attention.
    Accelerators { node: NodeName, message: String },
    /// A node of another job joined, before it is settled which job this master serves.
    OtherJob { node: NodeName, point: String },
    /// A check has begun.
    Checking { check: u32, nodes: u32 },
    /// Another round of a check has begun.
    CheckRound { check: u32, round: u32, tests: u32 },
    /// A check is over: its table.
    Checked { report: String },
    /// Nodes train although a check found paths that are down (`--on-bad-path=proceed`).
    Proceeds { cut: String, nodes: u32 },
    /// What ended a round, in the words of the worker.
    RootCause(Box<RootCause>),
    /// The job hangs.
    Hang(HangNotice),
    /// What became of a checkpoint.
    Checkpoint(Note),
    /// No rank advances because one of them writes a checkpoint.
    HangHeld { idle: Duration, rank: Rank },
    /// A rank advances again, after no rank had for `idle`.
    HangOver { idle: Duration },
    /// A rank makes fewer steps than its peers.
    SlowRank { rank: Rank, permille: u64 },
    /// A node is gone, and how often its node rank has lost one, if it has a rank.
    Gone { node: NodeName, gone: Gone, losses: Option<u32>, limit: u32 },
    /// A round is over.
    Regrouped { round: Round, why: Regroup },
    /// A master without state takes over a running job.
    Restoring { round: Round, nodes: u32 },
    /// A master without state has taken over a running job; what it cannot know.
    Restored { round: Round, nodes: u32 },
    /// A node is in a round that this master does not know: its state ends before `next`.
    OldState { node: NodeName, round: Round, next: Round },
}

impl Log {
    /// Whether a person may have to act, or workers were lost.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Unlisted { .. }
            | Self::TopologyUnusable { .. }
            | Self::Accelerators { .. }
            | Self::OtherJob { .. }
            | Self::Proceeds { .. }
            | Self::RootCause(_)
            | Self::Hang(_)
            | Self::SlowRank { .. }
            | Self::Gone { .. }
            | Self::OldState { .. }
            | Self::Checkpoint(Note::Failed { .. } | Note::NotFetched { .. }) => true,
            Self::Regrouped { why, .. } => match why {
                Regroup::WorkersFailed { .. } | Regroup::NodeGone { .. } | Regroup::NotAllCameBack { .. } => {
                    true
                }
                Regroup::Growth { .. }
                | Regroup::Rejoined { .. }
                | Regroup::Late
                | Regroup::UnknownRound { .. } => false,
            },
            Self::Placed { .. }
            | Self::Checking { .. }
            | Self::CheckRound { .. }
            | Self::Checked { .. }
            | Self::Checkpoint(
                Note::Committed { .. } | Note::SavedAtBreakpoint { .. } | Note::Fetched { .. },
            )
            | Self::HangHeld { .. }
            | Self::HangOver { .. }
            | Self::Restoring { .. }
            | Self::Restored { .. } => false,
        }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Placed { round, nodes } => {
                write!(f, "round {round}: {}", counted(nodes.len(), "node"))?;
                for (rank, (address, host, switch)) in nodes.iter().enumerate() {
                    write!(f, "\n  node rank {rank}: {address} {host}")?;
                    if let Some(switch) = switch {
                        write!(f, " {switch}")?;
                    }
                }
                Ok(())
            }
            Self::Unlisted { addresses } => {
                write!(
                    f,
                    "warning: addresses that the topology file does not list, ordered last: {}",
                    addresses.join(", ")
                )
            }
            Self::TopologyUnusable { reason } => {
                write!(
                    f,
                    "warning: {reason}; node ranks follow its last usable content, or are assigned without a topology \
                     if there is none"
                )
            }
            Self::Accelerators { node, message } => write!(f, "{node}: {message}"),
            Self::OtherJob { node, point } => write!(
                f,
                "{node} joined for another job: {point}; the job that first has enough nodes is served"
            ),
            Self::Checking { check, nodes } => {
                write!(f, "network check {check} begins ({})", counted(*nodes, "node"))
            }
            Self::CheckRound { check, round, tests } => {
                write!(f, "network check {check}, round {round}: {}", counted(*tests, "test"))
            }
            Self::Checked { report } => f.write_str(report),
            Self::Proceeds { cut, nodes } => write!(
                f,
                "warning: {} although paths are down (on-bad-path=proceed): {cut}",
                if *nodes == 1 { "1 node trains".to_owned() } else { format!("{nodes} nodes train") }
            ),
            Self::RootCause(root_cause) => write!(f, "root cause: {root_cause}"),
            Self::Hang(notice) => write!(f, "warning: {notice}"),
            Self::Checkpoint(note) => checkpoint(note, f),
            Self::HangHeld { idle, rank } => f.write_str(&super::hangs::held_message(*idle, *rank)),
            Self::HangOver { idle } => {
                write!(f, "training continues; no rank had made progress for {} s", idle.as_secs())
            }
            Self::SlowRank { rank, permille } => write!(
                f,
                "warning: rank {rank} is slow in training: the median rank completes {}.{:02} times as many steps",
                permille / 1000,
                permille % 1000 / 10
            ),
            Self::Gone { node, gone, losses: None, .. } => write!(f, "{node} {gone}"),
            Self::Gone { node, gone, losses: Some(losses), limit } => {
                // The loss that ends the job is counted too, but no replacement was used for it.
                let used = losses.min(limit);
                write!(
                    f,
                    "{node} {gone} ({used} of {} used for this node rank)",
                    counted(*limit, "replacement")
                )
            }
            // Its reason precedes it: `Gone`.
            Self::Regrouped { round, why: Regroup::NodeGone { node, .. } } => {
                write!(f, "round {round} is over: {node} is gone")
            }
            Self::Regrouped { round, why } => write!(f, "round {round} is over: {why}"),
            Self::Restoring { round, nodes } => write!(
                f,
                "nodes report round {round} ({}), which this master does not know: it has no state directory, or \
                 an empty \
                 one; waiting for the other nodes of the round",
                counted(*nodes, "node")
            ),
            Self::Restored { round, nodes } => write!(
                f,
                "took over round {round} ({}); earlier replacements of nodes are unknown and count as 0",
                counted(*nodes, "node")
            ),
            Self::OldState { node, round, next } => write!(
                f,
                "warning: {node} is in round {round}, and the state of this master ends before round {next}: its \
                 state directory is an older copy of the job's state, or the job continued without one. Nodes of \
                 rounds \
                 that it does not know stop their workers and join again. Restart the master with the state \
                 directory as the last master left it, or with an empty one: then it asks the nodes for their \
                 state and restarts no workers"
            ),
        }
    }
}

fn checkpoint(note: &Note, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match note {
        Note::Committed { dir, step, .. } => write!(f, "checkpoints: step {step} in {dir} is on disk"),
        Note::Failed { dir, step, reason } => {
            write!(f, "warning: checkpoints: step {step} in {dir} is not complete on disk: {reason}")
        }
        Note::SavedAtBreakpoint { dir, step } => write!(
            f,
            "checkpoints: the workers have ended; writing step {step}, the newest in memory, to {dir}"
        ),
        Note::Fetched { dir, step, nodes } => write!(
            f,
            "checkpoints: restoring step {step} in {dir} from memory; fetched from the memory of other nodes by {}",
            counted(*nodes, "node")
        ),
        Note::NotFetched { dir, step, reason } => write!(
            f,
            "warning: checkpoints: step {step} in {dir} is in memory, but not restored: {reason}; restoring what all \
             ranks have in memory, or else the newest step on disk"
        ),
    }
}
