//! What a job is told, and what it answers.

use std::{collections::BTreeSet, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound},
    fence::FenceTerms,
    ids::{NodeId, NodeRank, Round},
    liveness::LossCause,
    node::{JoinRequest, NodeName, Terms},
    pending::Pending,
    taint_report::TaintReport,
    topology::Topology,
    verdict::JobVerdict,
    world::Assignment,
};
use diagnosis::{exclusion::Exclusion, gpus::Inventory, network_check::Probed};

/// What the master itself was told.
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
    /// How long members of a round may take to come back to a master that has lost its memory.
    pub reconnect_grace: Duration,
    /// What the launcher that serves this master expects of the job. `None`: the first nodes say it.
    pub terms: Option<Terms>,
    /// Anybody who reaches the port may join: nothing that a node must show keeps strangers out.
    pub is_open: bool,
    /// The share of the nodes, in thousandths, above which a check taints nobody and the job fails.
    pub taint_guard_permille: u32,
    /// How long workers may run without a sign of the master, at least; `None`: for ever, as where nodes do not beat.
    pub lease: Option<Duration>,
}

/// What follows when a node gives up: its own restarts are spent, or it cannot start its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnGiveUp {
    /// The job fails (torchrun lines, and a job of one node).
    FailJob,
    /// Another node may take its place, as after a loss.
    Replace,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A node opened its stream.
    Subscribed { node: NodeId },
    /// A node's stream broke off. It may come back.
    LinkBroken { node: NodeId },
    /// A node joins, for the first time or again after its workers are gone.
    Joined(JoinRequest),
    /// A node whose stream was broken says where it stands.
    Resumed { request: JoinRequest, claim: Claim },
    /// The topology file was read.
    TopologyRead(Result<Topology, String>),
    /// The host of a round serves the store here. Without an address, the node's own is taken.
    Hosted { node: NodeId, round: Round, master_addr: Option<String>, master_port: u16 },
    /// A node has heard of its seat and takes it.
    AssignmentTaken { node: NodeId, round: Round },
    /// What a node's accelerators are.
    InventoryReported { node: NodeId, inventory: Box<Inventory> },
    /// What a node's part in a round of a check came to.
    CheckReported { node: NodeId, report: CheckReport },
    /// How far a node's part in a round of a check has come.
    CheckProgressed { node: NodeId, at: CheckRound, probed: Probed },
    /// Workers of a node failed. It stops the rest of them, and then joins again unless it gives up.
    WorkersFailed { node: NodeId, round: Round, reason: String, gives_up: bool },
    /// A node's part is over.
    NodeEnded { node: NodeId, end: NodeEnd },
    /// A node is given up.
    NodeLost { node: NodeId, cause: LossCause },
    /// A node has heard that the job is over.
    EndAcknowledged { node: NodeId },
    /// Workers of nodes that were given up have ended, as follows from when those and others were heard.
    WorkersGone { nodes: BTreeSet<NodeId> },
    /// The master was started again and knows what was journalled.
    Restarted,
    /// The moment of [`super::Job::deadline`] has come.
    Deadline,
}

impl Event {
    /// Whether the event says that its node lives.
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
            | Self::NodeEnded { node, .. }
            | Self::EndAcknowledged { node } => Some(node),
            Self::Joined(request) | Self::Resumed { request, .. } => Some(&request.node_id),
            Self::LinkBroken { .. }
            | Self::TopologyRead(_)
            | Self::NodeLost { .. }
            | Self::WorkersGone { .. }
            | Self::Restarted
            | Self::Deadline => None,
        }
    }
}

/// Where a node says it stands, when its stream is open again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The round it has a seat in.
    pub round: Round,
    /// Its seat.
    pub node_rank: NodeRank,
    /// Nodes in that round.
    pub nodes: u32,
    /// `MASTER_ADDR` of that round.
    pub master_addr: String,
    /// `MASTER_PORT` of that round.
    pub master_port: u16,
    /// What its workers do.
    pub workers_state: WorkersState,
    /// When its workers may go on without the master; `None`: always.
    pub fence: Option<FenceTerms>,
}

/// What a node's workers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkersState {
    /// They run, or are about to.
    Running,
    /// They are being stopped; the node joins again when they are gone.
    Stopping,
    /// All of them ended well.
    Succeeded,
}

/// How one node's part ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEnd {
    /// All its workers of this round ended well. It stays a member and waits for the others.
    Succeeded { round: Round },
    /// It gave up, in its words.
    Failed { reason: String },
    /// It was told to end by this signal: an announced leave.
    Left { signal: i32 },
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask a node to serve the store of a round; on another port than before, when workers of a lost node may
    /// still speak to the old one.
    RequestHost { node: NodeId, round: Round, fresh_port: bool },
    /// Read the topology file.
    ReadTopology,
    /// Tell a node what to do in a round of a check.
    Check { node: NodeId, order: CheckOrder },
    /// Tell a node to end its part in this round now, and to report how far it came.
    CancelCheck { node: NodeId, at: CheckRound },
    /// Tell a node that passed that the check is over, and how.
    CheckOver { node: NodeId, message: String },
    /// Tell a node that a check keeps it out of the job. It leaves for good.
    Exclude { node: NodeId, exclusion: Exclusion },
    /// What a check came to, for the operator.
    Report(Box<TaintReport>),
    /// Tell a node its place in a round.
    Assign { node: NodeId, assignment: Assignment },
    /// Tell a node to stop its workers and join again.
    Regroup { node: NodeId, round: Round, why: Regroup },
    /// Tell a node why it has no seat yet, beside what all are told that wait.
    SendPending { node: NodeId, pending: Pending },
    /// Tell a node that it cannot take part. It leaves for good.
    Refuse { node: NodeId, reason: Refusal },
    /// Tell a node that the job is over.
    SendEnd { node: NodeId, verdict: JobVerdict },
    /// Nothing is expected of a node any more.
    Forget { node: NodeId },
    /// A node is given up: its stream is ended, so that it finds out should it live.
    HangUp { node: NodeId },
    /// A line for the master's log.
    Log(Log),
    /// Everybody who was there knows how the job ended. Nothing follows.
    Finish { verdict: JobVerdict },
}

/// Why a round is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Regroup {
    /// Workers of a node failed.
    WorkersFailed { node: NodeName, reason: String },
    /// A node was lost, or left.
    NodeGone { node: NodeName, reason: String },
    /// Nodes came that the job has room for.
    Growth { nodes: u32 },
    /// A member joined again by itself.
    Rejoined { node: NodeName },
    /// Not all members of the round came back to the restarted master.
    NotAllCameBack { back: u32, nodes: u32 },
    /// This node speaks of a round that is over.
    Late,
    /// This node is in a round that the master never heard of: of its own rounds, `next` would be the next.
    UnknownRound { next: Round },
}

impl Regroup {
    /// Whether a failure of the told node's own workers in that round followed from this: the master heard of this
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
            Self::NodeGone { node, reason } => write!(f, "{node} is gone: {reason}"),
            Self::Growth { nodes } => {
                write!(f, "{} joined", diagnosis::counted::counted(*nodes, "more node"))
            }
            Self::Rejoined { node } => write!(f, "{node} joins again"),
            Self::NotAllCameBack { back, nodes } => {
                write!(f, "{back} of {nodes} nodes came back to the restarted job master")
            }
            Self::Late => f.write_str("the job went on without this node while it could not be reached"),
            Self::UnknownRound { next } => write!(
                f,
                "the job master that was started again does not know this node's round: its memory is older than the \
                 job and ends before round {next}"
            ),
        }
    }
}

/// Why a node cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It expects another job.
    Differs { point: String },
    /// It has another number of workers, and the job wants them equal.
    NotUniform { job: u32, node: u32 },
    /// Its rank is held by a node that lives.
    Held { rank: NodeRank, holder: NodeName, newcomer: NodeName },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs { point } => write!(f, "{point}; give every node the same line"),
            Self::NotUniform { job, node } => write!(
                f,
                "the job's nodes must have the same number of workers: they have {job}, this one has {node}",
            ),
            Self::Held { rank, holder, newcomer } => write!(
                f,
                "node rank {rank} is held by {holder}, which is alive, so {newcomer} cannot take it; give each node \
                 a node rank of its own (NODE_RANK), or stop the other launcher first"
            ),
        }
    }
}

/// What the master's log says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Log {
    /// A round has its members: address, host and switch by rank.
    Placed { round: Round, nodes: Vec<(String, String, Option<String>)> },
    /// The file does not list these addresses; they come last.
    Unlisted { addresses: Vec<String> },
    /// The file could not be used; the one before it, or none, still holds.
    TopologyUnusable { reason: String },
    /// A node told of accelerators of which some need a look.
    Accelerators { node: NodeName, message: String },
    /// A node came for another job, before it is settled whose job this is.
    Aside { node: NodeName, point: String },
    /// A check has begun.
    Checking { check: u32, nodes: u32 },
    /// A further round of a check has begun.
    CheckRound { check: u32, round: u32, tests: u32 },
    /// A check is over: its table.
    Checked { report: String },
    /// Nodes train over a way that is known to be cut, as they were told to.
    Proceeds { cut: String, nodes: u32 },
    /// A node is gone.
    Gone { node: NodeName, reason: String, losses: u32, limit: u32 },
    /// A round is over.
    Regrouped { round: Round, why: Regroup },
    /// A master without a memory takes over a running job.
    Restoring { round: Round, nodes: u32 },
    /// It has, and this is what it cannot know.
    Restored { round: Round, nodes: u32 },
    /// A node is in a round that this master never heard of, and its memory ends before `next`.
    OldMemory { node: NodeName, round: Round, next: Round },
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Placed { round, nodes } => {
                write!(f, "round {round}: {}", diagnosis::counted::counted(nodes.len(), "node"))?;
                for (rank, (address, host, switch)) in nodes.iter().enumerate() {
                    write!(f, "\n  rank {rank} {address} {host}")?;
                    if let Some(switch) = switch {
                        write!(f, " {switch}")?;
                    }
                }
                Ok(())
            }
            Self::Unlisted { addresses } => {
                write!(f, "warning: the topology file does not list {}; they come last", addresses.join(", "))
            }
            Self::TopologyUnusable { reason } => {
                write!(f, "warning: the topology file cannot be used, the last good one holds: {reason}")
            }
            Self::Accelerators { node, message } => write!(f, "{node}: {message}"),
            Self::Aside { node, point } => write!(
                f,
                "{node} came for another job: {point}; whichever has enough nodes first is the job of this master"
            ),
            Self::Checking { check, nodes } => {
                write!(f, "network check {check} of {} begins", diagnosis::counted::counted(*nodes, "node"))
            }
            Self::CheckRound { check, round, tests } => {
                write!(
                    f,
                    "network check {check}, round {round}: {}",
                    diagnosis::counted::counted(*tests, "test")
                )
            }
            Self::Checked { report } => f.write_str(report),
            Self::Proceeds { cut, nodes } => write!(
                f,
                "warning: {} over a cut, as the policy is to proceed: {cut}",
                if *nodes == 1 { "1 node trains".to_owned() } else { format!("{nodes} nodes train") }
            ),
            Self::Gone { node, reason, losses, limit } => {
                write!(f, "{node} is gone: {reason} ({losses} of {limit} replacements used for this rank)")
            }
            Self::Regrouped { round, why } => write!(f, "round {round} is over: {why}"),
            Self::Restoring { round, nodes } => write!(
                f,
                "nodes report round {round} of {}, which this master does not know: it has no state directory, or an empty \
                 one; waiting for the others",
                diagnosis::counted::counted(*nodes, "node")
            ),
            Self::Restored { round, nodes } => write!(
                f,
                "took over round {round} of {}; how often ranks were replaced before is not known and starts from 0",
                diagnosis::counted::counted(*nodes, "node")
            ),
            Self::OldMemory { node, round, next } => write!(
                f,
                "warning: {node} is in round {round}, and what this master remembers ends before round {next}: its \
                 state directory is an older copy of the job's state, or the job continued without one. Nodes of rounds \
                 that it does not know stop their workers and join again. Start a master again with the state directory \
                 as the last one left it, or with an empty one: then it asks the nodes and restarts none"
            ),
        }
    }
}
