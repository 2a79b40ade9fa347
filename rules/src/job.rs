//! The master's state machine: nodes join, a round is completed, its host opens the store, all are assigned, all end.
//!
//! ```text
//! Gathering --enough nodes--> (Placing --> Checking -->) Hosting --Hosted--> Running --all succeeded / gave up--> Over
//!     ^                                                            |
//!     +---- a failure, a loss, a leave, newcomers: all stop -------+
//! Restoring: a master without state learns of a round that runs; it becomes Running, or Gathering.
//! ```
//!
//! "What happens when a node is lost" is `on_lost` in [`leaving`]; which nodes may join is `on_joined` in
//! [`gathering`].
//!
//! A round's store is open before any member learns of the round, and a member joins again only when its old workers
//! are gone. So no worker of an old generation can write into the new one's keys; and where a lost node may still
//! have workers, the round gets a new port.
//!
//! Every message of a node may come twice, or late, or in a state that has moved on. The sender is identified by its
//! [`NodeId`], one run of a launcher, and the subject by a round.

mod absent_nodes;
mod check_history;
mod checking;
mod checkpoints;
mod competing_jobs;
mod event;
mod gathering;
mod gone;
mod hangs;
mod history;
mod inventory;
mod leaving;
mod measuring;
mod restoring;
mod savers;
mod status;
#[cfg(test)]
mod tests;
mod withheld;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use checkpoint::job::JobCheckpoints;
use serde::{Deserialize, Serialize};

pub use self::event::{Claim, Effect, Event, Log, NodeEnd, OnGiveUp, Policy, Refusal, Regroup, WorkersState};
pub use self::gone::Gone;
pub use self::withheld::DETAIL_TIMEOUT;
use self::{
    absent_nodes::AbsentNodes,
    check_history::CheckHistory,
    checking::{Checking, LastCheck},
    competing_jobs::OtherJobs,
    hangs::Hangs,
    history::History,
    measuring::Measuring,
    savers::Savers,
    withheld::FirstFailure,
};
use crate::{
    ids::{NodeId, NodeRank, Round, RunId},
    missing::Missing,
    node::{JoinRequest, NodeName, Terms},
    pending::Pending,
    verdict::{JobVerdict, RefusedNodes},
    world::{Member, World},
};
use diagnosis::{exclusion::Exclusion, gpus::Inventory, moment::Moment};

/// How long nodes may take to acknowledge the end of the job.
pub const FAREWELL: Duration = Duration::from_secs(10);

/// How long the host of a round may take to open its store by default.
pub const HOST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the topology file may take to be read.
pub const TOPOLOGY_TIMEOUT: Duration = Duration::from_secs(5);

/// The most reasons of losses that a timeout repeats.
const LOSSES_SHOWN: usize = 3;

/// A node that takes part, or waits to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    request: JoinRequest,
    is_connected: bool,
    /// The round of its assignment that was sent over the stream that is open: the node knows of it.
    assigned: Option<Round>,
    /// It has acknowledged an assignment once: if it is lost, a rank is lost.
    has_taken_assignment: bool,
    /// Counted from the first to join.
    arrival: u64,
    /// When it joined first.
    joined: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// No round is running.
    Gathering {
        /// When the first of them joined, or the last round ended. `None` without nodes.
        since: Option<Moment>,
        /// When the last newcomer joined.
        last_join: Moment,
        /// Members of the last round that are still stopping their workers.
        awaited: BTreeSet<NodeId>,
        /// The time until which they are waited for, if this master knows them by their own claims only.
        awaited_until: Option<Moment>,
    },
    /// The members of a round are chosen, and the topology file is read for their order.
    Placing { members: Vec<NodeId>, until: Moment },
    /// The members are checked.
    Checking(Box<Checking>),
    /// The members passed, and their bandwidth is measured.
    Measuring(Box<Measuring>),
    /// The first of them opens the store.
    Hosting { round: Round, members: Vec<Member>, fresh_port: bool, until: Moment },
    /// The members have their assignments.
    Running {
        world: World,
        /// Members whose workers all exited with code 0.
        succeeded: BTreeSet<NodeId>,
        /// When newcomers are admitted.
        grow_at: Option<Moment>,
    },
    /// Nodes claim a round that this master does not know.
    Restoring {
        round: Round,
        nodes: u32,
        master_addr: String,
        master_port: u16,
        claims: BTreeMap<NodeRank, NodeId>,
        succeeded: BTreeSet<NodeId>,
        until: Moment,
    },
    /// The job ended.
    Over {
        verdict: JobVerdict,
        /// Nodes that have not acknowledged it.
        unaware: BTreeSet<NodeId>,
        /// When no node is waited for any more; `None` once that was reported.
        until: Option<Moment>,
        /// No node is notified before the root cause is known, or this.
        withheld_until: Option<Moment>,
        /// Nodes that have failed, are not waited for, and are notified with the others.
        failed: BTreeSet<NodeId>,
    },
}

impl Phase {
    /// Nodes gather from now on, and these are still stopping their workers.
    fn gathering(now: Moment, awaited: BTreeSet<NodeId>) -> Self {
        Self::Gathering { since: Some(now), last_join: now, awaited, awaited_until: None }
    }
}

/// The master's state machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    policy: Policy,
    /// The terms of the first node.
    terms: Option<Terms>,
    next_round: Round,
    has_run: bool,
    arrivals: u64,
    nodes: BTreeMap<NodeId, Node>,
    /// The holders of ranks that were asked for.
    wishes: BTreeMap<NodeRank, NodeId>,
    /// Of `nodes`: those that have no workers and want to join.
    waiting: BTreeSet<NodeId>,
    /// The accelerators of nodes, from before they join until they are gone.
    inventories: BTreeMap<NodeId, Box<Inventory>>,
    /// The node ranks of the last round.
    node_ranks: BTreeMap<NodeId, NodeRank>,
    /// How often the holder of a rank was lost.
    losses: BTreeMap<NodeRank, u32>,
    /// The reasons of the last of them.
    lost: Vec<String>,
    /// The nodes that were refused since the last round began.
    refused: Option<RefusedNodes>,
    /// What ended the last round, if that was a failure of workers, until the next one runs.
    first_failure: Option<FirstFailure>,
    /// Failures of other nodes in the same round, while the first one may follow from one of them.
    later_failures: BTreeMap<NodeId, FirstFailure>,
    /// A node was lost whose workers may still use the store of the last round.
    is_port_stale: bool,
    topology: crate::topology::Topology,
    /// How many checks there were.
    checks: u32,
    last_check: Option<LastCheck>,
    /// The excluded nodes, with the reason until they have acknowledged it.
    excluded: BTreeMap<NodeId, Exclusion>,
    check_history: CheckHistory,
    /// Nodes of another job, while it is not settled which of the two this master serves.
    other_jobs: OtherJobs,
    absent_nodes: AbsentNodes,
    /// Rounds that nodes were in and this master does not know: its state is older than the job.
    unknown: Option<RangeInclusive<Round>>,
    /// What it has done so far, for people.
    history: History,
    hangs: Hangs,
    /// Checkpoints that nodes have in memory, once one has.
    checkpoints: Option<JobCheckpoints<NodeId>>,
    /// Nodes that have checkpoints to write before the job is finished.
    savers: Savers,
    phase: Phase,
}

impl Job {
    /// A job without nodes.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            terms: policy.terms.clone(),
            policy,
            next_round: Round(0),
            has_run: false,
            arrivals: 0,
            nodes: BTreeMap::new(),
            wishes: BTreeMap::new(),
            waiting: BTreeSet::new(),
            inventories: BTreeMap::new(),
            node_ranks: BTreeMap::new(),
            losses: BTreeMap::new(),
            lost: Vec::new(),
            refused: None,
            first_failure: None,
            later_failures: BTreeMap::new(),
            is_port_stale: false,
            topology: crate::topology::Topology::default(),
            checks: 0,
            last_check: None,
            excluded: BTreeMap::new(),
            check_history: CheckHistory::default(),
            other_jobs: OtherJobs::default(),
            absent_nodes: AbsentNodes::default(),
            unknown: None,
            history: History::default(),
            hangs: Hangs::default(),
            checkpoints: None,
            savers: Savers::default(),
            phase: Phase::Gathering {
                since: None,
                last_join: Moment::START,
                awaited: BTreeSet::new(),
                awaited_until: None,
            },
        }
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let due = [
            self.phase_deadline(),
            self.other_jobs_deadline(),
            self.hang_deadline(),
            self.checkpoint_deadline(),
        ];
        due.into_iter().flatten().min()
    }

    fn phase_deadline(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Gathering { since, awaited, awaited_until, .. } => {
                let timeout = since.zip(self.terms.as_ref()).map(|(since, terms)| since + terms.join_timeout);
                let awaited = awaited_until.filter(|_| !awaited.is_empty());
                timeout.into_iter().chain(awaited).chain(self.last_call()).min()
            }
            Phase::Placing { until, .. } | Phase::Hosting { until, .. } | Phase::Restoring { until, .. } => {
                Some(*until)
            }
            Phase::Checking(checking) => checking.deadline(),
            Phase::Measuring(measuring) => Some(measuring.deadline()),
            Phase::Running { grow_at, .. } => *grow_at,
            Phase::Over { until, withheld_until, .. } => withheld_until.or(*until),
        }
    }

    /// Handles `event` and returns what to do.
    #[must_use = "an effect not carried out leaves the nodes and this state apart"]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let before = self.before();
        let effects = self.decide(now, event);
        self.end_hang_with_round(now);
        self.record(now, before, &effects);
        effects
    }

    fn decide(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        match event {
            Event::Subscribed { node } => self.on_subscribed(&node),
            Event::LinkBroken { node } => self.on_link_broken(now, &node),
            Event::Joined(request) => self.on_joined(now, request),
            Event::Resumed { request, claim } => self.on_resumed(now, request, claim),
            Event::TopologyRead(topology) => self.on_topology_read(now, topology),
            Event::Hosted { node, round, master_addr, master_port } => {
                self.on_hosted(now, &node, round, master_addr, master_port)
            }
            Event::AssignmentTaken { node, round } => self.on_assignment_taken(&node, round),
            Event::InventoryReported { node, inventory } => self.on_inventory_reported(&node, inventory),
            Event::CheckReported { node, report } => self.on_check_reported(now, &node, report),
            Event::CheckProgressed { node, at, probed } => self.on_check_progressed(now, &node, at, probed),
            Event::WorkersFailed { node, round, reason, gives_up, has_detail, age } => {
                let failed = self.first_failure_of(now, &node, round, gives_up, has_detail, age);
                self.on_workers_failed(now, &node, failed, reason)
            }
            Event::FailureDetailed { node, round, detail } => self.on_detail(now, &node, round, *detail),
            Event::NodeEnded { node, end } => self.on_node_ended(now, &node, end),
            Event::NodeLost { node, cause } => self.on_lost(now, &node, cause),
            Event::EndAcknowledged { node } => self.on_end_acknowledged(&node),
            Event::WorkersGone { nodes } => self.on_workers_gone(now, &nodes),
            Event::TrainingStalled { round, idle } => self.on_training_stalled(now, round, idle),
            Event::TrainingAdvanced => self.on_training_advanced(now),
            Event::SlowRank { rank, permille } => vec![Effect::Log(Log::SlowRank { rank, permille })],
            Event::CheckpointReported { node, report } => self.on_checkpoint_reported(now, &node, *report),
            Event::StacksSent { node, episode } => self.on_stacks_sent(now, &node, episode),
            Event::HangJudged { episode, verdict } => self.on_hang_judged(now, episode, *verdict),
            Event::Restarted => self.on_restarted(now),
            Event::Deadline => self.on_deadline(now),
        }
    }

    /// The terms of the job, once a node has joined.
    #[must_use]
    pub fn terms(&self) -> Option<&Terms> {
        self.terms.as_ref()
    }

    /// The job's name, once a node has joined.
    #[must_use]
    pub fn name(&self) -> Option<&RunId> {
        self.terms.as_ref().map(|terms| &terms.run_id)
    }

    /// The world that runs.
    #[must_use]
    pub fn world(&self) -> Option<&World> {
        match &self.phase {
            Phase::Running { world, .. } => Some(world),
            _ => None,
        }
    }

    /// How the job ended, when it has.
    #[must_use]
    pub fn verdict(&self) -> Option<&JobVerdict> {
        match &self.phase {
            Phase::Over { verdict, .. } => Some(verdict),
            _ => None,
        }
    }

    /// All nodes that take part or wait.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeId> {
        self.nodes.keys()
    }

    /// Whether a node takes part or waits.
    #[must_use]
    pub fn knows(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node) || self.other_jobs.contains(node)
    }

    /// Whether this acknowledgement of an assignment is the first of the node.
    #[must_use]
    pub fn is_assignment_untaken(&self, node: &NodeId, round: Round) -> bool {
        let is_on = matches!(&self.phase, Phase::Running { world, .. } if world.round == round);
        is_on
            && self.node_ranks.contains_key(node)
            && self.nodes.get(node).is_some_and(|known| !known.has_taken_assignment)
    }

    /// A node that joins and hangs up before costs the job a restart, and no rank's budget.
    fn on_assignment_taken(&mut self, node: &NodeId, round: Round) -> Vec<Effect> {
        if self.is_assignment_untaken(node, round)
            && let Some(known) = self.nodes.get_mut(node)
        {
            known.has_taken_assignment = true;
        }
        Vec::new()
    }

    /// Whether some node has no assignment and waits for one.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Nodes without an assignment, and the reason.
    #[must_use]
    pub fn pending(&self, now: Moment) -> Option<(Pending, &BTreeSet<NodeId>)> {
        let pending = match &self.phase {
            Phase::Gathering { since, awaited, .. } => {
                let terms = self.terms.as_ref()?;
                let needed = terms.least();
                if self.has_absent() && awaited.is_empty() && terms.world_of(self.waiting.len()).is_some() {
                    let pending = self.pending_absent(now, (*since)?)?;
                    return (!self.waiting.is_empty()).then_some((pending, &self.waiting));
                }
                Pending::Gathering {
                    joined: count(self.waiting.len()),
                    needed,
                    most: terms.most(),
                    missing: self.missing(needed),
                    stopping: count(awaited.len()),
                    starts_in: self.last_call().map(|due| due.max(now) - now),
                    waited: now - (*since)?,
                    limit: terms.join_timeout,
                }
            }
            Phase::Running { world, succeeded, grow_at: None } => {
                let terms = self.terms.as_ref()?;
                let nodes = count(world.members.len());
                let may_grow = succeeded.is_empty() && nodes < terms.most();
                let lacking = if may_grow {
                    terms.node_unit.max(1).saturating_sub(count(self.waiting.len()))
                } else {
                    0
                };
                Pending::Spare { nodes, lacking }
            }
            Phase::Running { .. }
            | Phase::Placing { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_)
            | Phase::Hosting { .. }
            | Phase::Restoring { .. }
            | Phase::Over { .. } => return None,
        };
        (!self.waiting.is_empty()).then_some((pending, &self.waiting))
    }

    /// The ranks below `needed` that no node has asked for; `None` when some node has no rank of its own.
    fn missing(&self, needed: u32) -> Option<Missing> {
        let all_have_one = self.nodes.values().all(|node| node.request.wish.is_some());
        let free = (0..needed).map(NodeRank).filter(|rank| !self.wishes.contains_key(rank));
        all_have_one.then(|| free.collect())
    }

    /// A node's name for people, with its rank in the last round, else the one that it asked for.
    fn name_of(&self, node: &NodeId) -> NodeName {
        match self.nodes.get(node) {
            Some(known) => self.name_in(&known.request),
            None => NodeName {
                rank: self.node_ranks.get(node).copied(),
                host: String::new(),
                address: String::new(),
                node_id: node.clone(),
            },
        }
    }

    fn name_in(&self, request: &JoinRequest) -> NodeName {
        let last = self.node_ranks.get(&request.node_id).copied();
        let rank = last.or(request.wish).or_else(|| self.node_rank_of(&request.node_id));
        NodeName { rank, ..request.name() }
    }

    /// The node's rank in the last round, else in the one that is being completed.
    fn node_rank_of(&self, node: &NodeId) -> Option<NodeRank> {
        let next = || match &self.phase {
            Phase::Hosting { members, .. } => members
                .iter()
                .position(|member| member.node_id == *node)
                .map(|node_rank| NodeRank(count(node_rank))),
            Phase::Checking(checking) => checking.node_rank_of(node).map(NodeRank),
            Phase::Measuring(measuring) => measuring.place_of(node).map(NodeRank),
            _ => None,
        };
        self.node_ranks.get(node).copied().or_else(next)
    }

    fn on_subscribed(&mut self, node: &NodeId) -> Vec<Effect> {
        if let Some(known) = self.nodes.get_mut(node) {
            known.is_connected = true;
            known.assigned = None;
        }
        self.savers.connected(node);
        Vec::new()
    }

    fn on_link_broken(&mut self, now: Moment, node: &NodeId) -> Vec<Effect> {
        if let Some(known) = self.nodes.get_mut(node) {
            known.is_connected = false;
            known.assigned = None;
        } else {
            self.inventories.remove(node);
            self.other_jobs.remove(node);
        }
        let mut effects = self.saver_disconnected(now, node);
        effects.extend(self.expect_no_detail_of(now, node));
        effects.extend(self.expect_no_stacks_of(now, node));
        effects
    }

    /// No node is connected yet, and effects may not have been carried out.
    fn on_restarted(&mut self, now: Moment) -> Vec<Effect> {
        // They are repeated.
        self.other_jobs = OtherJobs::default();
        self.absent_since(now);
        self.savers.all_disconnected(now);
        for node in self.nodes.values_mut() {
            node.is_connected = false;
            node.assigned = None;
        }
        match &mut self.phase {
            Phase::Placing { until, .. } => {
                *until = now + TOPOLOGY_TIMEOUT;
                vec![Effect::ReadTopology]
            }
            // It is unknown which tests are running.
            Phase::Checking(_) | Phase::Measuring(_) => self.check_anew(now),
            Phase::Hosting { until, .. } => {
                *until = now + self.policy.host_timeout;
                Vec::new()
            }
            Phase::Over { until, withheld_until, .. } => {
                *until = Some(now + FAREWELL);
                *withheld_until = withheld_until.map(|_| now + DETAIL_TIMEOUT);
                Vec::new()
            }
            Phase::Running { .. } => self.dump_anew(now),
            Phase::Gathering { .. } | Phase::Restoring { .. } => Vec::new(),
        }
    }

    fn on_deadline(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects = self.refuse_all_other_jobs(now);
        effects.extend(self.on_hang_deadline(now));
        effects.extend(self.on_checkpoint_deadline(now));
        if self.phase_deadline().is_some_and(|deadline| deadline <= now) {
            effects.extend(self.on_phase_deadline(now));
        }
        effects
    }

    fn on_phase_deadline(&mut self, now: Moment) -> Vec<Effect> {
        match &self.phase {
            Phase::Gathering { .. } => self.on_gathering_deadline(now),
            Phase::Placing { .. } => {
                let reason =
                    format!("the topology file could not be read within {} s", TOPOLOGY_TIMEOUT.as_secs());
                self.on_topology_read(now, Err(reason))
            }
            Phase::Checking(_) => self.on_check_deadline(now),
            Phase::Measuring(_) => self.on_measuring_deadline(now),
            Phase::Hosting { .. } => self.on_host_silent(now),
            Phase::Running { .. } => self.grow(now),
            Phase::Restoring { .. } => self.on_restoring_deadline(now),
            Phase::Over { withheld_until: Some(_), .. } => self.release(now),
            Phase::Over { .. } => self.on_farewell_over(now),
        }
    }
}

fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
