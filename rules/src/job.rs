//! The master's machine: nodes join, a round is completed, its host names the store, all are seated,
//! all end.
//!
//! ```text
//! Gathering --enough nodes--> Hosting --Hosted--> Running --all ended well / one gave up--> Over
//!     ^                                              |
//!     +------------- a member joins again -----------+
//! ```
//!
//! A round's store is made ready before any member hears of the round, and a member joins again only when
//! its old workers are gone. So no worker of an old generation can write into the new one's key space.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{NodeId, NodeRank, Round},
    moment::Moment,
    worker_group::JobVerdict,
    world::{Member, World},
};

/// What the job was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLimits {
    /// Nodes in the job, at least 1.
    pub nodes: u32,
    /// How long nodes may gather. torchrun's `join_timeout`: 600 s.
    pub join_timeout: Duration,
    /// How long the host of a round may take to name its store.
    pub host_timeout: Duration,
}

/// A node's wish to take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The node and its workers.
    pub member: Member,
    /// The seat it asks for; nodes without a wish follow those with one, by id.
    pub wish: Option<NodeRank>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A node joins, for the first time or again after its workers are gone.
    Joined(JoinRequest),
    /// The host of a round serves the store here.
    Hosted { node: NodeId, round: Round, master_addr: String, master_port: u16 },
    /// A node's part is over.
    NodeEnded { node: NodeId, end: NodeEnd },
    /// A node's stream broke off.
    NodeLost { node: NodeId },
    /// The moment of [`Job::deadline`] has come.
    Deadline,
}

/// How one node's part ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEnd {
    /// All its workers ended well.
    Succeeded,
    /// It gave up, in its words.
    Failed { reason: String },
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask a node to serve the store of a round.
    AskToHost { node: NodeId, round: Round },
    /// Tell a node its round.
    Seat { node: NodeId, world: World },
    /// Tell a node to stop its workers and join again.
    Regroup { node: NodeId, round: Round },
    /// Tell a node that it cannot take part. Every waiting node is answered: none hangs.
    Refuse { node: NodeId, reason: Refusal },
    /// Tell a node that the job is over.
    TellEnd { node: NodeId, verdict: JobVerdict },
    /// No node is left. Nothing follows.
    Finish { verdict: JobVerdict },
}

/// Why a node cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The job has all the nodes it takes.
    Full { nodes: u32 },
    /// Not enough nodes came in time.
    TimedOut { joined: u32, nodes: u32, waited: Duration },
    /// The node that was to serve the store did not say where.
    NoHost { node: NodeId },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { nodes } => write!(f, "the job already has all its {nodes} nodes"),
            Self::TimedOut { joined, nodes, waited } => {
                write!(f, "{joined} of {nodes} nodes joined within {} s", waited.as_secs())
            }
            Self::NoHost { node } => write!(f, "node {node} did not open the store of the round in time"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Gathering { since: Option<Moment>, joined: BTreeMap<NodeId, JoinRequest> },
    Hosting { until: Moment, members: Vec<Member> },
    Running { members: Vec<Member>, succeeded: BTreeSet<NodeId> },
    Over { verdict: JobVerdict, left: BTreeSet<NodeId> },
}

/// The master's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    limits: JobLimits,
    next_round: Round,
    state: State,
}

impl Job {
    /// A job that nobody has joined.
    #[must_use]
    pub fn new(limits: JobLimits) -> Self {
        let state = State::Gathering { since: None, joined: BTreeMap::new() };
        Self { limits, next_round: Round(0), state }
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        match &self.state {
            State::Gathering { since, .. } => since.map(|since| since + self.limits.join_timeout),
            State::Hosting { until, .. } => Some(*until),
            State::Running { .. } | State::Over { .. } => None,
        }
    }

    /// What to do about `event`.
    #[must_use = "an effect not carried out leaves the nodes and this state apart"]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        match event {
            Event::Joined(request) => self.on_joined(now, request),
            Event::Hosted { node, round, master_addr, master_port } => {
                self.on_hosted(&node, round, master_addr, master_port)
            }
            Event::NodeEnded { node, end } => self.on_node_ended(node, end),
            Event::NodeLost { node } => self.on_node_lost(node),
            Event::Deadline => self.on_deadline(now),
        }
    }

    fn on_joined(&mut self, now: Moment, request: JoinRequest) -> Vec<Effect> {
        let node = request.member.node_id.clone();
        match &mut self.state {
            State::Gathering { since, joined } => {
                since.get_or_insert(now);
                joined.insert(node, request);
                self.complete_if_full(now)
            }
            State::Hosting { members, .. } | State::Running { members, .. } => {
                let nodes = self.limits.nodes;
                if !members.iter().any(|member| member.node_id == node) {
                    return vec![Effect::Refuse { node, reason: Refusal::Full { nodes } }];
                }
                // A member's workers are gone, so the round is over; the others are told and follow.
                let round = Round(self.next_round.0.saturating_sub(1));
                let others: Vec<Effect> = members
                    .iter()
                    .filter(|member| member.node_id != node)
                    .map(|member| Effect::Regroup { node: member.node_id.clone(), round })
                    .collect();
                self.state = State::Gathering { since: Some(now), joined: BTreeMap::from([(node, request)]) };
                let mut effects = others;
                effects.extend(self.complete_if_full(now));
                effects
            }
            State::Over { verdict, .. } => vec![Effect::TellEnd { node, verdict: verdict.clone() }],
        }
    }

    fn complete_if_full(&mut self, now: Moment) -> Vec<Effect> {
        let State::Gathering { joined, .. } = &mut self.state else { return Vec::new() };
        if (joined.len() as u64) < u64::from(self.limits.nodes) {
            return Vec::new();
        }
        let mut requests: Vec<JoinRequest> = std::mem::take(joined).into_values().collect();
        // Wishes order the nodes and the rest follow by id; ranks are dense either way.
        requests
            .sort_by_key(|request| (request.wish.is_none(), request.wish, request.member.node_id.clone()));
        let members: Vec<Member> = requests.into_iter().map(|request| request.member).collect();
        let round = self.next_round;
        self.next_round = Round(round.0 + 1);
        let host = members[0].node_id.clone();
        self.state = State::Hosting { until: now + self.limits.host_timeout, members };
        vec![Effect::AskToHost { node: host, round }]
    }

    fn on_hosted(
        &mut self,
        node: &NodeId,
        round: Round,
        master_addr: String,
        master_port: u16,
    ) -> Vec<Effect> {
        let State::Hosting { members, .. } = &mut self.state else { return Vec::new() };
        if round.0 + 1 != self.next_round.0 || members[0].node_id != *node {
            return Vec::new();
        }
        let members = std::mem::take(members);
        let world = World { round, members: members.clone(), master_addr, master_port };
        let seats = members
            .iter()
            .map(|member| Effect::Seat { node: member.node_id.clone(), world: world.clone() })
            .collect();
        self.state = State::Running { members, succeeded: BTreeSet::new() };
        seats
    }

    fn on_node_ended(&mut self, node: NodeId, end: NodeEnd) -> Vec<Effect> {
        match (&mut self.state, end) {
            (State::Over { verdict, left }, _) => {
                let verdict = verdict.clone();
                let mut effects = Vec::new();
                if left.remove(&node) {
                    effects.push(Effect::TellEnd { node, verdict: verdict.clone() });
                }
                if left.is_empty() {
                    effects.push(Effect::Finish { verdict });
                }
                effects
            }
            (_, NodeEnd::Failed { reason }) => {
                let verdict = JobVerdict::Failed { node: node.clone(), reason };
                self.end(verdict, &node)
            }
            (State::Running { members, succeeded }, NodeEnd::Succeeded) => {
                succeeded.insert(node.clone());
                if members.iter().all(|member| succeeded.contains(&member.node_id)) {
                    self.end(JobVerdict::Succeeded, &node)
                } else {
                    Vec::new()
                }
            }
            (State::Gathering { .. } | State::Hosting { .. }, NodeEnd::Succeeded) => Vec::new(),
        }
    }

    /// Tells every node of the job. Nodes that have not said how they ended are waited for; when the job
    /// succeeded all have.
    fn end(&mut self, verdict: JobVerdict, by: &NodeId) -> Vec<Effect> {
        let nodes: BTreeSet<NodeId> = match &self.state {
            State::Gathering { joined, .. } => joined.keys().cloned().collect(),
            State::Hosting { members, .. } | State::Running { members, .. } => {
                members.iter().map(|member| member.node_id.clone()).collect()
            }
            State::Over { left, .. } => left.clone(),
        };
        let mut effects: Vec<Effect> = nodes
            .iter()
            .chain((!nodes.contains(by)).then_some(by))
            .map(|node| Effect::TellEnd { node: node.clone(), verdict: verdict.clone() })
            .collect();
        let left: BTreeSet<NodeId> = match verdict {
            JobVerdict::Succeeded => BTreeSet::new(),
            JobVerdict::Failed { .. } => nodes.into_iter().filter(|node| node != by).collect(),
        };
        if left.is_empty() {
            effects.push(Effect::Finish { verdict: verdict.clone() });
        }
        self.state = State::Over { verdict, left };
        effects
    }

    fn on_node_lost(&mut self, node: NodeId) -> Vec<Effect> {
        match &mut self.state {
            State::Gathering { joined, since } => {
                joined.remove(&node);
                if joined.is_empty() {
                    *since = None;
                }
                Vec::new()
            }
            State::Hosting { members, .. } | State::Running { members, .. } => {
                if !members.iter().any(|member| member.node_id == node) {
                    return Vec::new();
                }
                let reason = "its connection to the master broke off".to_owned();
                self.end(JobVerdict::Failed { node: node.clone(), reason }, &node)
            }
            State::Over { verdict, left } => {
                if left.remove(&node) && left.is_empty() {
                    return vec![Effect::Finish { verdict: verdict.clone() }];
                }
                Vec::new()
            }
        }
    }

    fn on_deadline(&mut self, now: Moment) -> Vec<Effect> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match &mut self.state {
            State::Gathering { joined, since } => {
                let reason = Refusal::TimedOut {
                    joined: u32::try_from(joined.len()).unwrap_or(u32::MAX),
                    nodes: self.limits.nodes,
                    waited: self.limits.join_timeout,
                };
                *since = None;
                std::mem::take(joined)
                    .into_keys()
                    .map(|node| Effect::Refuse { node, reason: reason.clone() })
                    .collect()
            }
            State::Hosting { members, .. } => {
                let members = std::mem::take(members);
                self.state = State::Gathering { since: None, joined: BTreeMap::new() };
                let reason = Refusal::NoHost { node: members[0].node_id.clone() };
                members
                    .into_iter()
                    .map(|member| Effect::Refuse { node: member.node_id, reason: reason.clone() })
                    .collect()
            }
            State::Running { .. } | State::Over { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
