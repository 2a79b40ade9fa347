//! Nodes of two jobs at one master, before either of them has run. Without a token, the master cannot know which of
//! them is meant: the first to join may be forged. So no node is refused because others joined first. Those that
//! differ wait, and the job is the one that has enough nodes first, or the most.
//!
//! A master whose launcher is part of the job knows its terms, and one with a token knows its nodes: both refuse
//! differing nodes at once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Claim, Effect, Job, Log, Phase, Refusal};
use crate::{
    ids::NodeId,
    node::{JoinRequest, NodeName, Terms},
    pending::Pending,
    push::Push,
    verdict::RefusedNodes,
};
use diagnosis::moment::Moment;

/// A node of another job than the one that gathers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Candidate {
    request: JoinRequest,
    /// Its claim, if it has workers.
    claim: Option<Claim>,
    since: Moment,
}

/// All nodes that wait for another job. Each node is added to the job of its terms once, when it joins: there may be
/// many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OtherJobs {
    nodes: BTreeMap<NodeId, Candidate>,
    parties: Vec<Party>,
}

/// Those of them with the same terms, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Party {
    terms: Terms,
    nodes: BTreeSet<NodeId>,
}

impl OtherJobs {
    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    pub(super) fn remove(&mut self, node: &NodeId) -> Option<Candidate> {
        let candidate = self.nodes.remove(node)?;
        for party in &mut self.parties {
            party.nodes.remove(node);
        }
        self.parties.retain(|party| !party.nodes.is_empty());
        Some(candidate)
    }

    /// Whether it is new.
    fn insert(&mut self, candidate: Candidate) -> bool {
        let (node, terms) = (candidate.request.node_id.clone(), candidate.request.terms.clone());
        let is_new = self.remove(&node).is_none();
        match self.parties.iter_mut().find(|party| party.terms.difference(&terms).is_none()) {
            Some(party) => {
                party.nodes.insert(node.clone());
            }
            None => self.parties.push(Party { terms, nodes: [node.clone()].into() }),
        }
        self.nodes.insert(node, candidate);
        is_new
    }

    /// Of parties of the same size the last.
    fn largest(&self) -> Option<&Party> {
        self.parties.iter().max_by_key(|party| party.nodes.len())
    }

    pub(super) fn into_nodes(self) -> impl Iterator<Item = NodeId> {
        self.nodes.into_keys()
    }
}

impl Job {
    /// Whether it is open which job this master serves.
    pub(super) fn is_unsettled(&self) -> bool {
        let may_be_anybody = self.policy.is_open && self.policy.terms.is_none();
        may_be_anybody && !self.has_run && !matches!(self.phase, Phase::Over { .. })
    }

    /// Keeps a node of another job, and switches to that job when it is time.
    pub(super) fn keep_for_other_job(
        &mut self,
        now: Moment,
        request: JoinRequest,
        claim: Option<&Claim>,
        point: String,
    ) -> Vec<Effect> {
        let (node, name) = (request.node_id.clone(), self.name_in(&request));
        // It was there for the other job, under the same id. Without it that may be another one, or none.
        if self.nodes.contains_key(&node) {
            let mut effects = self.give_up_for_another_job(now, &node, &point);
            effects.extend(match claim {
                None => self.on_joined(now, request),
                Some(claim) => self.on_resumed(now, request, claim.clone()),
            });
            return effects;
        }
        let since = self.other_jobs.nodes.get(&node).map_or(now, |candidate| candidate.since);
        let is_new = self.other_jobs.insert(Candidate { request, claim: claim.cloned(), since });
        if let Some(effects) = self.switch_job(now) {
            return effects;
        }
        let mut effects = Vec::new();
        if is_new {
            effects.push(Effect::Log(Log::OtherJob { node: name, point: point.clone() }));
        }
        effects.push(Effect::Push { node, push: Push::Pending(Pending::OtherJob { point }) });
        effects
    }

    /// When the nodes here are replaced by others of another job: that has enough of them and this one has not, or
    /// more of them, or there are no nodes here. `None`: never.
    pub(super) fn switch_job(&mut self, now: Moment) -> Option<Vec<Effect>> {
        let has_enough = match &self.phase {
            _ if !self.is_unsettled() => return None,
            Phase::Gathering { .. } => {
                self.terms.as_ref().is_some_and(|terms| terms.world_of(self.waiting.len()).is_some())
            }
            Phase::Restoring { .. } => false,
            _ => return None,
        };
        let Party { terms, nodes: largest } = self.other_jobs.largest()?;
        let is_enough = terms.world_of(largest.len()).is_some();
        let switches =
            self.nodes.is_empty() || is_enough && (!has_enough || largest.len() > self.nodes.len());
        let party: Vec<NodeId> = largest.iter().filter(|_| switches).cloned().collect();
        switches.then(|| self.change_job(now, &party))
    }

    /// From now on this is the job of these nodes.
    fn change_job(&mut self, now: Moment, party: &[NodeId]) -> Vec<Effect> {
        let taken: Vec<Candidate> = party.iter().filter_map(|node| self.other_jobs.remove(node)).collect();
        let Some(terms) = taken.first().map(|first| first.request.terms.clone()) else { return Vec::new() };
        let before: Vec<NodeId> = self.nodes.keys().cloned().collect();
        let mut effects = Vec::new();
        for node in before {
            let theirs = self.nodes.get(&node).map(|known| &known.request.terms);
            let point = theirs.and_then(|theirs| terms.difference(theirs)).unwrap_or_default();
            let name = self.name_of(&node);
            self.remove(&node);
            effects.push(self.refuse(name, Refusal::Differs { point }));
        }
        self.terms = Some(terms);
        self.phase = Phase::gathering(now, BTreeSet::new());
        for Candidate { request, claim, .. } in taken {
            effects.extend(match claim {
                None => self.on_joined(now, request),
                Some(claim) => self.on_resumed(now, request, claim),
            });
        }
        effects
    }

    /// A round runs: nodes of another job do not take part.
    pub(super) fn settle(&mut self) -> Vec<Effect> {
        self.has_run = true;
        let candidate = std::mem::take(&mut self.other_jobs).nodes;
        candidate.into_values().map(|candidate| self.refuse_other_job(&candidate)).collect()
    }

    fn refuse_other_job(&mut self, candidate: &Candidate) -> Effect {
        self.refuse(candidate.request.name(), self.other_job(candidate))
    }

    fn other_job(&self, candidate: &Candidate) -> Refusal {
        let theirs = &candidate.request.terms;
        let point = self.terms.as_ref().and_then(|terms| terms.difference(theirs)).unwrap_or_default();
        Refusal::Differs { point }
    }

    /// Refuses a node, and remembers it for the case that the others wait in vain.
    pub(super) fn refuse(&mut self, name: NodeName, reason: Refusal) -> Effect {
        self.remember_refused(name.clone(), &reason);
        Effect::Refuse { node: name.node_id.clone(), name, reason }
    }

    fn remember_refused(&mut self, last: NodeName, reason: &Refusal) {
        let nodes = match &self.refused {
            Some(before) if before.last.node_id == last.node_id => before.nodes,
            Some(before) => before.nodes.saturating_add(1),
            None => 1,
        };
        self.refused = Some(RefusedNodes { nodes, last, reason: reason.to_string() });
    }

    /// The nodes that were refused since the last round began, with those of another job that wait.
    pub(super) fn take_refused(&mut self) -> Option<Box<RefusedNodes>> {
        let candidates = self.other_jobs.nodes.values();
        let waiting: Vec<_> = candidates.map(|it| (it.request.name(), self.other_job(it))).collect();
        for (name, reason) in waiting {
            self.remember_refused(name, &reason);
        }
        self.refused.take().map(Box::new)
    }

    /// When one of the waiting nodes has waited for the timeout of its own job.
    pub(super) fn other_jobs_deadline(&self) -> Option<Moment> {
        self.other_jobs
            .nodes
            .values()
            .map(|candidate| candidate.since + candidate.request.terms.join_timeout)
            .min()
    }

    pub(super) fn refuse_all_other_jobs(&mut self, now: Moment) -> Vec<Effect> {
        let is_over = |candidate: &Candidate| candidate.since + candidate.request.terms.join_timeout <= now;
        let over: Vec<NodeId> = self
            .other_jobs
            .nodes
            .iter()
            .filter(|(_, candidate)| is_over(candidate))
            .map(|(node, _)| node.clone())
            .collect();
        let over = over.into_iter().filter_map(|node| self.other_jobs.remove(&node)).collect::<Vec<_>>();
        over.iter().map(|candidate| self.refuse_other_job(candidate)).collect()
    }

    /// Members that are known by their own claims only have had their time to stop their workers: they are not waited
    /// for any longer.
    pub(super) fn lose_awaited_members(&mut self, now: Moment) {
        if let Phase::Gathering { awaited, awaited_until, .. } = &mut self.phase
            && awaited_until.is_some_and(|until| until <= now)
        {
            *awaited_until = None;
            // They may still use the store of their round.
            self.is_port_stale |= !awaited.is_empty();
            awaited.clear();
        }
    }
}
