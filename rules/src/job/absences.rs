//! Nodes that are given up and whose workers may run yet. No round begins before they have ended, for two generations of
//! workers must never run at once: an old rank 0 would write over a new one's checkpoint.
//!
//! What is known of them is [`crate::presence`]'s; here is who they are, for that must outlive a restart of the master.

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

/// Names that a line tells.
const NAMES: usize = 3;

/// Generations that are remembered, of which older ones are taken for known: a master without a memory hears of those
/// before it in its first rounds.
const REMEMBERED: usize = 16;

/// The workers of one round, named by it and by the place where they meet: a master that has lost its memory counts its
/// rounds from 0 again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Generation {
    round: Round,
    master_addr: String,
    master_port: u16,
}

impl Generation {
    pub(super) fn of(world: &World) -> Self {
        Self { round: world.round, master_addr: world.master_addr.clone(), master_port: world.master_port }
    }

    pub(super) fn claimed(claim: &Claim) -> Self {
        Self { round: claim.round, master_addr: claim.master_addr.clone(), master_port: claim.master_port }
    }
}

/// A node that may have workers of the last round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Absence {
    name: NodeName,
    generation: Generation,
    /// Not heard by this life of the master, it was not heard since then.
    away: Moment,
}

/// All of them, and how long they may run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Absences {
    /// The last that began, as far as this master knows.
    begun: Option<Generation>,
    /// Those that this master began or was told of.
    heard: BTreeSet<Generation>,
    /// The terms of the last one, and of those that the nodes that are away were in: one that this master never heard of
    /// may have had other members than its own.
    terms: BTreeMap<Generation, FenceTerms>,
    nodes: BTreeMap<NodeId, Absence>,
}

impl Absences {
    /// A round begins: no workers of any other are left.
    pub(super) fn begin(&mut self, generation: Generation, terms: Option<FenceTerms>) {
        let _news = self.hear_of(&generation);
        self.terms = terms.into_iter().map(|terms| (generation.clone(), terms)).collect();
        self.begun = Some(generation);
    }

    /// Whether this master has neither begun it nor heard of it before.
    pub(super) fn hear_of(&mut self, generation: &Generation) -> bool {
        let is_old = self.heard.len() >= REMEMBERED && self.heard.first().is_some_and(|it| generation < it);
        let is_news = !is_old && self.heard.insert(generation.clone());
        if self.heard.len() > REMEMBERED {
            let _oldest = self.heard.pop_first();
        }
        is_news
    }

    /// Those of this one, if it is known and may end by them.
    pub(super) fn terms_of(&self, generation: &Generation) -> Option<&FenceTerms> {
        self.terms.get(generation)
    }

    /// Its terms, in the place of those of which nothing hangs any more.
    fn learn(&mut self, generation: Generation, terms: FenceTerms) {
        let mut used: BTreeSet<&Generation> =
            self.nodes.values().map(|absence| &absence.generation).collect();
        used.extend(&self.begun);
        self.terms.retain(|generation, _| used.contains(generation));
        self.terms.insert(generation, terms);
    }
}

impl Job {
    /// The nodes that may have workers that nobody stops, since when each is away, and the terms of the round it was in.
    pub fn absent(&self) -> impl Iterator<Item = (&NodeId, Moment, &FenceTerms)> {
        let Absences { terms, nodes, .. } = &self.absences;
        let found = nodes.iter().map(|(node, absence)| (node, absence.away, terms.get(&absence.generation)));
        found.filter_map(|(node, away, terms)| Some((node, away, terms?)))
    }

    /// Whether anybody asks when a node was heard that has no part in the job.
    #[must_use]
    pub fn is_watched(&self, node: &NodeId) -> bool {
        let is_juror = |terms: &FenceTerms| terms.jury.iter().any(|juror| juror.node == *node);
        self.absences.nodes.contains_key(node) || self.absences.terms.values().any(is_juror)
    }

    /// Whether there is any.
    #[must_use]
    pub fn has_absent(&self) -> bool {
        !self.absences.nodes.is_empty()
    }

    /// The generation of which a node has, as far as this master knows, workers.
    pub(super) fn workers_of(&self, node: &NodeId) -> Option<Generation> {
        match &self.phase {
            Phase::Gathering { awaited, .. } => {
                self.absences.begun.clone().filter(|_| awaited.contains(node))
            }
            Phase::Running { world, succeeded, .. } => {
                let has_workers = self.node_ranks.contains_key(node) && !succeeded.contains(node);
                has_workers.then(|| Generation::of(world))
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

    /// The one whose members are coming back.
    pub(super) fn restored(&self) -> Option<Generation> {
        let Phase::Restoring { round, master_addr, master_port, .. } = &self.phase else { return None };
        Some(Generation { round: *round, master_addr: master_addr.clone(), master_port: *master_port })
    }

    /// A node is taken out of the job, and its workers may run on.
    pub(super) fn miss(&mut self, now: Moment, node: &NodeId, generation: Generation) {
        if self.absences.terms.contains_key(&generation) {
            let name = self.name_of(node);
            self.absences.nodes.insert(node.clone(), Absence { name, generation, away: now });
        }
    }

    /// Members of this generation of which nothing is known, not even who they are.
    pub(super) fn miss_unknown(&mut self, now: Moment, generation: Generation) {
        let Generation { round, master_addr, master_port } = &generation;
        let host = format!("some of round {round}, which this master does not know");
        let node = NodeId(format!("members of round {round} at {master_addr}:{master_port}"));
        let name = NodeName { rank: None, host, address: String::new(), node_id: node.clone() };
        if self.absences.terms.contains_key(&generation) {
            self.absences.nodes.insert(node, Absence { name, generation, away: now });
        }
    }

    /// A node has workers of a round that this job does not run, and says so. Of a job that is open to anybody that may
    /// be made up, and so holds up nobody, unless the node was a member.
    pub(super) fn miss_claimant(&mut self, now: Moment, node: &NodeId, claim: &Claim) {
        if claim.workers_state == WorkersState::Succeeded {
            self.absences.nodes.remove(node);
        } else if self.absences.nodes.contains_key(node) || !self.policy.is_open {
            self.miss(now, node, Generation::claimed(claim));
        }
    }

    /// A node that has workers is refused. They end when it has heard of that, and those of others of its round may run on.
    pub(super) fn miss_refused(&mut self, now: Moment, name: NodeName, claim: &Claim) {
        if self.policy.is_open || claim.workers_state == WorkersState::Succeeded {
            return;
        }
        let generation = Generation::claimed(claim);
        self.hear_of_round(claim.round);
        if self.hear_of_generation(claim) {
            self.miss_unknown(now, generation.clone());
        }
        if self.absences.terms.contains_key(&generation) {
            self.absences.nodes.insert(name.node_id.clone(), Absence { name, generation, away: now });
        }
    }

    /// A node has left a round that this master never heard of. What is known of the others of that round is that there
    /// may be some: they are given a lease.
    pub(super) fn hear_that_there_was(&mut self, now: Moment, round: Round) {
        if let Some(timeout) = self.policy.lease.filter(|_| !self.policy.is_open) {
            let lease = silence_of(timeout, super::count(self.nodes.len()));
            // It does not say where they met.
            let generation = Generation { round, master_addr: String::new(), master_port: 0 };
            let terms = FenceTerms { lease, jury: Vec::new(), is_master_within: false };
            self.absences.learn(generation.clone(), terms);
            self.miss_unknown(now, generation);
        }
    }

    /// A node says of which generation its workers are. Whether that is news.
    pub(super) fn hear_of_generation(&mut self, claim: &Claim) -> bool {
        let generation = Generation::claimed(claim);
        if self.absences.terms_of(&generation).is_none_or(|terms| terms.jury.is_empty()) {
            self.take_terms_of(claim);
        }
        self.absences.hear_of(&generation)
    }

    /// What a node says of its round's fence, where this master knows of none: of how many nodes nobody knows.
    fn take_terms_of(&mut self, claim: &Claim) {
        let generation = Generation::claimed(claim);
        // The members of a round that runs, or is left, are those of that one.
        let is_ours = match &self.phase {
            Phase::Running { .. } => true,
            Phase::Gathering { awaited, .. } => !awaited.is_empty(),
            _ => false,
        };
        if !is_ours && self.absences.begun.as_ref().is_none_or(|begun| begun.round < claim.round) {
            self.absences.begun = Some(generation.clone());
        }
        if let (Some(lease), Some(terms)) = (self.policy.lease, &claim.fence) {
            // A made-up jury would hold up the job.
            let jury = if self.policy.is_open { Vec::new() } else { terms.jury.clone() };
            let lease = terms.lease.clamp(lease, lease * 8);
            let terms = FenceTerms { lease, jury, is_master_within: terms.is_master_within };
            self.absences.learn(generation, terms);
        }
    }

    /// A node joins, and so its workers of that round and of all before are gone. One that was given up says it on a stream
    /// that it has opened since: should it have heard nothing of that round, it will not, for its seat was told to the
    /// stream before. One that has said on the present stream that it has workers must have left their round.
    pub(super) fn is_back_without_workers(&mut self, node: &NodeId, after: Option<Round>, was_known: bool) {
        if let Some(absence) = self.absences.nodes.get(node)
            && (after >= Some(absence.generation.round) || !was_known)
        {
            self.absences.nodes.remove(node);
        }
    }

    /// Their workers have ended.
    pub(super) fn on_workers_gone(&mut self, now: Moment, nodes: &BTreeSet<NodeId>) -> Vec<Effect> {
        for node in nodes {
            self.absences.nodes.remove(node);
        }
        self.complete(now)
    }

    /// A master that was started again does not know when it heard nodes last, but not after it died.
    pub(super) fn absent_since(&mut self, now: Moment) {
        for absence in self.absences.nodes.values_mut() {
            absence.away = now;
        }
    }

    pub(super) fn pending_absent(&self, now: Moment, since: Moment) -> Option<Pending> {
        let names = self.absences.nodes.values().take(NAMES).map(|absence| absence.name.clone()).collect();
        Some(Pending::Fenced {
            nodes: names,
            more: super::count(self.absences.nodes.len().saturating_sub(NAMES)),
            lease: self.absent().map(|(.., terms)| terms.lease).max()?,
            waited: now - since,
            limit: self.terms.as_ref()?.join_timeout,
        })
    }
}
