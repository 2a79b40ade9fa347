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
    node::{JoinRequest, Terms},
    pending::Pending,
};
use diagnosis::moment::Moment;

/// A node of another job than the one that gathers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Aside {
    request: JoinRequest,
    /// Its claim, if it has workers.
    claim: Option<Claim>,
    since: Moment,
}

/// All nodes that wait for another job. Each node is added to a party by its terms once, when it joins: there may be
/// many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asides {
    nodes: BTreeMap<NodeId, Aside>,
    parties: Vec<Party>,
}

/// Those of them with the same terms, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Party {
    terms: Terms,
    nodes: BTreeSet<NodeId>,
}

impl Asides {
    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    pub(super) fn remove(&mut self, node: &NodeId) -> Option<Aside> {
        let aside = self.nodes.remove(node)?;
        for party in &mut self.parties {
            party.nodes.remove(node);
        }
        self.parties.retain(|party| !party.nodes.is_empty());
        Some(aside)
    }

    /// Whether it is new.
    fn insert(&mut self, aside: Aside) -> bool {
        let (node, terms) = (aside.request.node_id.clone(), aside.request.terms.clone());
        let is_new = self.remove(&node).is_none();
        match self.parties.iter_mut().find(|party| party.terms.difference(&terms).is_none()) {
            Some(party) => {
                party.nodes.insert(node.clone());
            }
            None => self.parties.push(Party { terms, nodes: [node.clone()].into() }),
        }
        self.nodes.insert(node, aside);
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
    pub(super) fn set_aside(
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
        let since = self.aside.nodes.get(&node).map_or(now, |aside| aside.since);
        let is_new = self.aside.insert(Aside { request, claim: claim.cloned(), since });
        if let Some(effects) = self.give_way(now) {
            return effects;
        }
        let mut effects = Vec::new();
        if is_new {
            effects.push(Effect::Log(Log::Aside { node: name, point: point.clone() }));
        }
        effects.push(Effect::SendPending { node, pending: Pending::Aside { point } });
        effects
    }

    /// When the nodes here are replaced by others of another job: that has enough of them and this one has not, or
    /// more of them, or there are no nodes here. `None`: never.
    pub(super) fn give_way(&mut self, now: Moment) -> Option<Vec<Effect>> {
        let has_enough = match &self.phase {
            _ if !self.is_unsettled() => return None,
            Phase::Gathering { .. } => {
                self.terms.as_ref().is_some_and(|terms| terms.world_of(self.waiting.len()).is_some())
            }
            Phase::Restoring { .. } => false,
            _ => return None,
        };
        let Party { terms, nodes: largest } = self.aside.largest()?;
        let is_enough = terms.world_of(largest.len()).is_some();
        let gives_way =
            self.nodes.is_empty() || is_enough && (!has_enough || largest.len() > self.nodes.len());
        let party: Vec<NodeId> = largest.iter().filter(|_| gives_way).cloned().collect();
        gives_way.then(|| self.change_job(now, &party))
    }

    /// From now on this is the job of these nodes.
    fn change_job(&mut self, now: Moment, party: &[NodeId]) -> Vec<Effect> {
        let taken: Vec<Aside> = party.iter().filter_map(|node| self.aside.remove(node)).collect();
        let Some(terms) = taken.first().map(|first| first.request.terms.clone()) else { return Vec::new() };
        let before: Vec<NodeId> = self.nodes.keys().cloned().collect();
        let mut effects = Vec::new();
        for node in before {
            let theirs = self.nodes.get(&node).map(|known| &known.request.terms);
            let point = theirs.and_then(|theirs| terms.difference(theirs)).unwrap_or_default();
            self.remove(&node);
            effects.push(Effect::Refuse { node, reason: Refusal::Differs { point } });
        }
        self.terms = Some(terms);
        self.phase = Phase::gathering(now, BTreeSet::new());
        for Aside { request, claim, .. } in taken {
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
        let aside = std::mem::take(&mut self.aside).nodes;
        aside.into_values().map(|aside| self.refuse_aside(&aside)).collect()
    }

    fn refuse_aside(&self, aside: &Aside) -> Effect {
        let theirs = &aside.request.terms;
        let point = self.terms.as_ref().and_then(|terms| terms.difference(theirs)).unwrap_or_default();
        Effect::Refuse { node: aside.request.node_id.clone(), reason: Refusal::Differs { point } }
    }

    /// When one of the waiting nodes has waited for the timeout of its own job.
    pub(super) fn aside_deadline(&self) -> Option<Moment> {
        self.aside.nodes.values().map(|aside| aside.since + aside.request.terms.join_timeout).min()
    }

    pub(super) fn refuse_who_waited_aside(&mut self, now: Moment) -> Vec<Effect> {
        let is_over = |aside: &Aside| aside.since + aside.request.terms.join_timeout <= now;
        let over: Vec<NodeId> = self
            .aside
            .nodes
            .iter()
            .filter(|(_, aside)| is_over(aside))
            .map(|(node, _)| node.clone())
            .collect();
        let over = over.into_iter().filter_map(|node| self.aside.remove(&node)).collect::<Vec<_>>();
        over.iter().map(|aside| self.refuse_aside(aside)).collect()
    }

    /// Members that are known by their own claims only have had their time to stop their workers: they are not waited
    /// for any longer.
    pub(super) fn give_up_the_awaited(&mut self, now: Moment) {
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
