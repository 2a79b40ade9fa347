//! Nodes that are given up and whose workers may run yet. No round begins before they have ended, for two generations of
//! workers must never run at once: an old rank 0 would write over a new one's checkpoint.
//!
//! What is known of them is [`crate::presence`]'s; here is who they are, for that must outlive a restart of the master.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Claim, Effect, Job, Phase, Standing};
use crate::{
    fence::FenceTerms,
    ids::{NodeId, Round},
    liveness::silence_of,
    moment::Moment,
    node::NodeName,
    pending::Pending,
};

/// Names that a line tells.
const NAMES: usize = 3;

/// A node that may have workers of the last round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Absence {
    name: NodeName,
    round: Round,
    /// Not heard by this life of the master, it was not heard since then.
    away: Moment,
}

/// All of them, and how long they may run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Absences {
    /// The last round that began, as far as this master knows.
    begun: Option<Round>,
    /// The terms of that round, and of the rounds that those who are away were in: one that this master never heard of may
    /// have had other members than its own.
    terms: BTreeMap<Round, FenceTerms>,
    nodes: BTreeMap<NodeId, Absence>,
}

impl Absences {
    /// A round begins: no workers of any other are left.
    pub(super) fn begin(&mut self, round: Round, terms: Option<FenceTerms>) {
        self.begun = Some(round);
        self.terms = terms.into_iter().map(|terms| (round, terms)).collect();
    }

    /// Those of this round, if it is known and may end by them.
    pub(super) fn terms_of(&self, round: Round) -> Option<&FenceTerms> {
        self.terms.get(&round)
    }

    /// Terms of a round, in the place of those of which nothing hangs any more.
    fn learn(&mut self, round: Round, terms: FenceTerms) {
        let mut used: BTreeSet<Round> = self.nodes.values().map(|absence| absence.round).collect();
        used.extend(self.begun);
        self.terms.retain(|round, _| used.contains(round));
        self.terms.insert(round, terms);
    }
}

impl Job {
    /// The nodes that may have workers that nobody stops, since when each is away, and the terms of the round it was in.
    pub fn absent(&self) -> impl Iterator<Item = (&NodeId, Moment, &FenceTerms)> {
        let Absences { terms, nodes, .. } = &self.absences;
        nodes.iter().filter_map(|(node, absence)| Some((node, absence.away, terms.get(&absence.round)?)))
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

    /// Whether a node has, as far as this master knows, workers of a round; which.
    pub(super) fn round_of_workers(&self, node: &NodeId) -> Option<Round> {
        match &self.phase {
            Phase::Gathering { awaited, .. } => self.absences.begun.filter(|_| awaited.contains(node)),
            Phase::Running { world, succeeded, .. } => {
                let has_workers = self.seats.contains_key(node) && !succeeded.contains(node);
                has_workers.then_some(world.round)
            }
            Phase::Restoring { round, claims, succeeded, .. } => {
                let has_workers = claims.values().any(|it| it == node) && !succeeded.contains(node);
                has_workers.then_some(*round)
            }
            Phase::Placing { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_)
            | Phase::Hosting { .. }
            | Phase::Over { .. } => None,
        }
    }

    /// A node is taken out of the job, and its workers of this round may run on.
    pub(super) fn miss(&mut self, now: Moment, node: &NodeId, round: Round) {
        if self.absences.terms.contains_key(&round) {
            let name = self.name_of(node);
            self.absences.nodes.insert(node.clone(), Absence { name, round, away: now });
        }
    }

    /// Members of this round of which nothing is known, not even who they are.
    pub(super) fn miss_unknown(&mut self, now: Moment, round: Round) {
        let host = format!("some of round {round}, which this master does not know");
        let node = NodeId(format!("members of round {round}"));
        let name = NodeName { rank: None, host, address: String::new(), node_id: node.clone() };
        if self.absences.terms.contains_key(&round) {
            self.absences.nodes.insert(node, Absence { name, round, away: now });
        }
    }

    /// A node has workers of a round that this job does not run, and says so. Of a job that is open to anybody that may
    /// be made up, and so holds up nobody, unless the node was a member.
    pub(super) fn miss_claimant(&mut self, now: Moment, node: &NodeId, claim: &Claim) {
        if claim.standing == Standing::Succeeded {
            self.absences.nodes.remove(node);
        } else if self.absences.nodes.contains_key(node) || !self.policy.is_open {
            self.miss(now, node, claim.round);
        }
    }

    /// A node has left a round that this master never heard of. What is known of the others of that round is that there
    /// may be some: they are given a lease.
    pub(super) fn hear_that_there_was(&mut self, now: Moment, round: Round) {
        if let Some(timeout) = self.policy.lease.filter(|_| !self.policy.is_open) {
            let lease = silence_of(timeout, super::count(self.nodes.len()));
            self.absences.learn(round, FenceTerms { lease, jury: Vec::new(), is_master_within: false });
            self.miss_unknown(now, round);
        }
    }

    /// Whether what a node says of its round's fence is news.
    pub(super) fn knows_no_jury_of(&self, round: Round) -> bool {
        self.absences.terms_of(round).is_none_or(|terms| terms.jury.is_empty())
    }

    /// What a node says of its round's fence, where this master knows of none: of how many nodes nobody knows.
    pub(super) fn take_terms_of(&mut self, claim: &Claim) {
        // The members of a round that runs, or is left, are those of that one.
        let is_ours = match &self.phase {
            Phase::Running { .. } => true,
            Phase::Gathering { awaited, .. } => !awaited.is_empty(),
            _ => false,
        };
        if !is_ours && self.absences.begun.is_none_or(|begun| begun < claim.round) {
            self.absences.begun = Some(claim.round);
        }
        if let (Some(lease), Some(terms)) = (self.policy.lease, &claim.fence) {
            // A made-up jury would hold up the job.
            let jury = if self.policy.is_open { Vec::new() } else { terms.jury.clone() };
            let lease = terms.lease.clamp(lease, lease * 8);
            let terms = FenceTerms { lease, jury, is_master_within: terms.is_master_within };
            self.absences.learn(claim.round, terms);
        }
    }

    /// A node joins, and so its workers of that round and of all before are gone. One that was given up says it on a stream
    /// that it has opened since: should it have heard nothing of that round, it will not, for its seat was told to the
    /// stream before. One that has said on the present stream that it has workers must have left their round.
    pub(super) fn is_back_without_workers(&mut self, node: &NodeId, after: Option<Round>, was_known: bool) {
        if let Some(absence) = self.absences.nodes.get(node)
            && (after >= Some(absence.round) || !was_known)
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
