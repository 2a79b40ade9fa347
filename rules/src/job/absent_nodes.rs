//! Lost nodes whose workers may still run. No round begins before they have ended, for two generations of workers
//! must never run at once: an old rank 0 would overwrite a new one's checkpoint.
//!
//! [`crate::contacts`] has their contacts; here is which nodes they are, for that must survive a restart of the
//! master.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Claim, Effect, Job, Phase, WorkersState};
use crate::{
    fence::FenceTerms,
    ids::{NodeId, Round},
    liveness::silence_of,
    node::NodeName,
    pending::Pending,
    world::World,
};
use diagnosis::moment::Moment;

/// The most names in a line.
const NAMES: usize = 3;

/// The most generations that are remembered; older ones count as known, because a master without state learns of
/// those before it in its first rounds.
const REMEMBERED: usize = 16;

/// The workers of one round, identified by it and by the address where they meet: a master without state counts its
/// rounds from 0 again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct GenerationId {
    round: Round,
    master_addr: String,
    master_port: u16,
}

impl GenerationId {
    pub(super) fn of(world: &World) -> Self {
        Self { round: world.round, master_addr: world.master_addr.clone(), master_port: world.master_port }
    }

    pub(super) fn claimed(claim: &Claim) -> Self {
        Self { round: claim.round, master_addr: claim.master_addr.clone(), master_port: claim.master_port }
    }
}

/// A node that may have workers of the last round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AbsentNode {
    name: NodeName,
    generation: GenerationId,
    /// Nothing was received from it since then, if this run of the master has received nothing.
    away: Moment,
}

/// All of them, and how long they may run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct AbsentNodes {
    /// The last generation that began, as far as this master knows.
    begun: Option<GenerationId>,
    /// The generations that this master began or learned of.
    known: BTreeSet<GenerationId>,
    /// The terms of the last one, and of those that the absent nodes were in: one that this master does not know may
    /// have had other members than its own.
    terms: BTreeMap<GenerationId, FenceTerms>,
    nodes: BTreeMap<NodeId, AbsentNode>,
}

impl AbsentNodes {
    /// A round begins: no workers of any other are left.
    pub(super) fn begin(&mut self, generation: GenerationId, terms: Option<FenceTerms>) {
        let _is_new = self.learn_of(&generation);
        self.terms = terms.into_iter().map(|terms| (generation.clone(), terms)).collect();
        self.begun = Some(generation);
    }

    /// Whether this master has neither begun it nor learned of it before.
    pub(super) fn learn_of(&mut self, generation: &GenerationId) -> bool {
        let is_old = self.known.len() >= REMEMBERED && self.known.first().is_some_and(|it| generation < it);
        let is_new = !is_old && self.known.insert(generation.clone());
        if self.known.len() > REMEMBERED {
            let _oldest = self.known.pop_first();
        }
        is_new
    }

    /// Those of this one, if it is known and may end by them.
    pub(super) fn terms_of(&self, generation: &GenerationId) -> Option<&FenceTerms> {
        self.terms.get(generation)
    }

    /// Its terms, in place of those that no absent node refers to any more.
    fn learn(&mut self, generation: GenerationId, terms: FenceTerms) {
        let mut used: BTreeSet<&GenerationId> =
            self.nodes.values().map(|absent_node| &absent_node.generation).collect();
        used.extend(&self.begun);
        self.terms.retain(|generation, _| used.contains(generation));
        self.terms.insert(generation, terms);
    }
}

impl Job {
    /// The nodes that may have workers that no launcher stops, since when each is away, and the terms of its round.
    pub fn absent(&self) -> impl Iterator<Item = (&NodeId, Moment, &FenceTerms)> {
        let AbsentNodes { terms, nodes, .. } = &self.absent_nodes;
        let found = nodes
            .iter()
            .map(|(node, absent_node)| (node, absent_node.away, terms.get(&absent_node.generation)));
        found.filter_map(|(node, away, terms)| Some((node, away, terms?)))
    }

    /// Whether messages of this node matter, although it is not part of the job.
    #[must_use]
    pub fn is_watched(&self, node: &NodeId) -> bool {
        let is_juror = |terms: &FenceTerms| terms.jury.iter().any(|juror| juror.node == *node);
        self.absent_nodes.nodes.contains_key(node) || self.absent_nodes.terms.values().any(is_juror)
    }

    /// Whether there is any.
    #[must_use]
    pub fn has_absent(&self) -> bool {
        !self.absent_nodes.nodes.is_empty()
    }

    /// The generation of a node's workers, as far as this master knows.
    pub(super) fn workers_of(&self, node: &NodeId) -> Option<GenerationId> {
        match &self.phase {
            Phase::Gathering { awaited, .. } => {
                self.absent_nodes.begun.clone().filter(|_| awaited.contains(node))
            }
            Phase::Running { world, succeeded, .. } => {
                let has_workers = self.node_ranks.contains_key(node) && !succeeded.contains(node);
                has_workers.then(|| GenerationId::of(world))
            }
            Phase::Restoring { claims, succeeded, .. } => {
                let has_workers = claims.values().any(|it| it == node) && !succeeded.contains(node);
                self.restored().filter(|_| has_workers)
            }
            Phase::Placing { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_)
            | Phase::Hosting { .. }
            | Phase::Over { .. } => None,
        }
    }

    /// The generation whose members are coming back.
    pub(super) fn restored(&self) -> Option<GenerationId> {
        let Phase::Restoring { round, master_addr, master_port, .. } = &self.phase else { return None };
        Some(GenerationId { round: *round, master_addr: master_addr.clone(), master_port: *master_port })
    }

    /// A node leaves the job, and its workers may still run.
    pub(super) fn record_absent(&mut self, now: Moment, node: &NodeId, generation: GenerationId) {
        if self.absent_nodes.terms.contains_key(&generation) {
            let mut name = self.name_of(node);
            // The rank that people know it by.
            name.rank = self.nodes.get(node).and_then(|known| known.request.wish).or(name.rank);
            self.absent_nodes.nodes.insert(node.clone(), AbsentNode { name, generation, away: now });
        }
    }

    /// Members of this generation of which nothing is known, not even their ids.
    pub(super) fn record_absent_generation(&mut self, now: Moment, generation: GenerationId) {
        let GenerationId { round, master_addr, master_port } = &generation;
        let node = NodeId(format!("members of round {round} at {master_addr}:{master_port}"));
        let name = NodeName::of_unknown_members(*round);
        if self.absent_nodes.terms.contains_key(&generation) {
            self.absent_nodes.nodes.insert(node, AbsentNode { name, generation, away: now });
        }
    }

    /// A node reports workers of a round that this job does not run. If any node may join the job, the claim may be
    /// forged and so delays no round, unless the node was a member.
    pub(super) fn record_absent_claimant(&mut self, now: Moment, node: &NodeId, claim: &Claim) {
        if claim.workers_state == WorkersState::Succeeded {
            self.absent_nodes.nodes.remove(node);
        } else if self.absent_nodes.nodes.contains_key(node) || !self.policy.is_open {
            self.record_absent(now, node, GenerationId::claimed(claim));
        }
    }

    /// A node that has workers is refused. They end when it receives that, and those of others of its round may still
    /// run.
    pub(super) fn record_absent_refused(&mut self, now: Moment, name: NodeName, claim: &Claim) {
        if self.policy.is_open || claim.workers_state == WorkersState::Succeeded {
            return;
        }
        let generation = GenerationId::claimed(claim);
        self.learn_round(claim.round);
        if self.learn_generation(claim) {
            self.record_absent_generation(now, generation.clone());
        }
        if self.absent_nodes.terms.contains_key(&generation) {
            self.absent_nodes.nodes.insert(name.node_id.clone(), AbsentNode { name, generation, away: now });
        }
    }

    /// A node has left a round that this master does not know. The others of that round may exist: they are given a
    /// lease.
    pub(super) fn note_round(&mut self, now: Moment, round: Round) {
        if let Some(timeout) = self.policy.lease.filter(|_| !self.policy.is_open) {
            let lease = silence_of(timeout, super::count(self.nodes.len()));
            // It does not report where they met.
            let generation = GenerationId { round, master_addr: String::new(), master_port: 0 };
            let terms = FenceTerms { lease, jury: Vec::new(), is_master_within: false };
            self.absent_nodes.learn(generation.clone(), terms);
            self.record_absent_generation(now, generation);
        }
    }

    /// A node reports the generation of its workers. Returns whether it is new.
    pub(super) fn learn_generation(&mut self, claim: &Claim) -> bool {
        let generation = GenerationId::claimed(claim);
        if self.absent_nodes.terms_of(&generation).is_none_or(|terms| terms.jury.is_empty()) {
            self.take_terms_of(claim);
        }
        self.absent_nodes.learn_of(&generation)
    }

    /// A node reports its round's fence, where this master has none: the number of nodes is unknown.
    fn take_terms_of(&mut self, claim: &Claim) {
        let generation = GenerationId::claimed(claim);
        // The members of a round that runs, or was left, are those of that one.
        let is_ours = match &self.phase {
            Phase::Running { .. } => true,
            Phase::Gathering { awaited, .. } => !awaited.is_empty(),
            _ => false,
        };
        if !is_ours && self.absent_nodes.begun.as_ref().is_none_or(|begun| begun.round < claim.round) {
            self.absent_nodes.begun = Some(generation.clone());
        }
        if let (Some(lease), Some(terms)) = (self.policy.lease, &claim.fence) {
            // A forged jury would delay the job.
            let jury = if self.policy.is_open { Vec::new() } else { terms.jury.clone() };
            let lease = terms.lease.clamp(lease, lease * 8);
            let terms = FenceTerms { lease, jury, is_master_within: terms.is_master_within };
            self.absent_nodes.learn(generation, terms);
        }
    }

    /// A node joins, and so its workers of that round and of all before are gone. A lost one does so on a stream that
    /// it has opened since: if it did not receive that round, it never will, because its assignment was sent to the
    /// stream before. One that has reported workers on the present stream must have left their round.
    pub(super) fn is_back_without_workers(&mut self, node: &NodeId, after: Option<Round>, was_known: bool) {
        if let Some(absent_node) = self.absent_nodes.nodes.get(node)
            && (after >= Some(absent_node.generation.round) || !was_known)
        {
            self.absent_nodes.nodes.remove(node);
        }
    }

    /// Their workers have ended.
    pub(super) fn on_workers_gone(&mut self, now: Moment, nodes: &BTreeSet<NodeId>) -> Vec<Effect> {
        for node in nodes {
            self.absent_nodes.nodes.remove(node);
        }
        self.complete(now)
    }

    /// A restarted master does not know when nodes last sent a message, but not after it died.
    pub(super) fn absent_since(&mut self, now: Moment) {
        for absent_node in self.absent_nodes.nodes.values_mut() {
            absent_node.away = now;
        }
    }

    pub(super) fn pending_absent(&self, now: Moment, since: Moment) -> Option<Pending> {
        let names = self
            .absent_nodes
            .nodes
            .values()
            .take(NAMES)
            .map(|absent_node| absent_node.name.clone())
            .collect();
        Some(Pending::Fenced {
            nodes: names,
            more: super::count(self.absent_nodes.nodes.len().saturating_sub(NAMES)),
            lease: self.absent().map(|(.., terms)| terms.lease).max()?,
            waited: now - since,
            limit: self.terms.as_ref()?.join_timeout,
        })
    }
}
