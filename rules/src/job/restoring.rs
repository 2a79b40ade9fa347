//! Nodes come back: to a master that never died, that has its journal, or that has lost its state.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Claim, Effect, Job, Log, NodeEnd, Phase, Regroup, WorkersState, absent_nodes::GenerationId, count,
};
use crate::{
    ids::{NodeId, NodeRank, Round},
    liveness::return_grace,
    node::JoinRequest,
    push::Push,
    world::World,
};
use diagnosis::moment::Moment;

/// The highest round that nodes may report to a master that does not know it. A job that restarts every second
/// reaches it after 34 years, and as many numbers again are left.
const LAST_CONTACT: u32 = 1 << 30;

/// How long nodes may take to stop their workers whose round this master knows by their claims only, and never took
/// over: a forged claim delays the others no longer.
const CLAIMANTS_TIMEOUT: Duration = Duration::from_secs(30);

impl Job {
    /// A node reports its state after its stream was broken, and receives what it has missed.
    pub(super) fn on_resumed(&mut self, now: Moment, request: JoinRequest, claim: Claim) -> Vec<Effect> {
        let node = request.node_id.clone();
        if let Phase::Over { .. } = self.phase {
            return self.notify_of_end(&node);
        }
        let known = self.nodes.get(&node);
        let is_known = known.is_some();
        // A message that was overtaken by a later one: its workers are gone.
        let has_left = known.is_some_and(|known| known.request.after >= Some(claim.round));
        let (name, run_id) = (request.name(), request.terms.run_id.clone());
        let mut effects = match self.admit(now, request, Some(&claim)) {
            Ok(effects) => effects,
            Err(refused) => {
                let is_of_this_job = self.terms.as_ref().is_some_and(|terms| terms.run_id == run_id);
                if is_of_this_job && matches!(refused[..], [Effect::Refuse { .. }]) {
                    self.record_absent_refused(now, name, &claim);
                }
                return refused;
            }
        };
        let next = self.next_round;
        self.learn_round(claim.round);
        if !is_known && !self.has_run && matches!(self.phase, Phase::Gathering { .. }) {
            self.begin_restoring(now, &claim, &mut effects);
        }
        let is_restored = self.restored() == Some(GenerationId::claimed(&claim));
        let is_new = self.learn_generation(&claim) && !is_restored;
        // It was lost, or this master has no state and continued without it. It has workers, and so may others.
        self.is_port_stale |= !is_known && !is_restored;
        if is_new && !self.policy.is_open {
            self.record_absent_generation(now, GenerationId::claimed(&claim));
        }
        if next <= claim.round && claim.round < self.next_round && !is_restored {
            effects.push(self.on_unknown_round(&node, claim.round, next));
        }
        if !has_left && !self.is_claim_good(&node, &claim, is_known) {
            self.record_absent_claimant(now, &node, &claim);
        }
        effects.extend(self.accept_claim(now, &node, claim, is_known));
        effects
    }

    /// This master has no such round, and now it will not use the number of it or of those in between.
    fn on_unknown_round(&mut self, node: &NodeId, round: Round, next: Round) -> Effect {
        let before = self.unknown.take().filter(|unknown| unknown.end().0.saturating_add(1) == next.0);
        self.unknown = Some(before.map_or(next, |unknown| *unknown.start())..=round);
        Effect::Log(Log::OldState { node: self.name_of(node), round, next })
    }

    /// A node reports a round: those that follow have higher numbers, also where this master does not know it. But a
    /// number that no job reaches is forged, and must not use the numbers up.
    pub(super) fn learn_round(&mut self, round: Round) {
        if round.0 < LAST_CONTACT {
            self.next_round = self.next_round.max(Round(round.0.saturating_add(1)));
        }
    }

    fn accept_claim(&mut self, now: Moment, node: &NodeId, claim: Claim, is_known: bool) -> Vec<Effect> {
        if claim.workers_state == WorkersState::Running {
            let _nothing = self.on_assignment_taken(node, claim.round);
        }

        let unknown = self.unknown.as_ref().filter(|unknown| unknown.contains(&claim.round));
        let why = unknown.map_or(Regroup::Late, |unknown| Regroup::UnknownRound { next: *unknown.start() });
        let late = |node: &NodeId, round| {
            vec![Effect::Push { node: node.clone(), push: Push::regroup(round, &why) }]
        };
        match &mut self.phase {
            Phase::Over { .. } => self.notify_of_end(node),
            // All come back at once to a restarted master; only one that has left is searched for.
            Phase::Running { world, .. }
                if GenerationId::of(world) == GenerationId::claimed(&claim)
                    && (self.node_ranks.contains_key(node) || world.node_rank_of(node).is_some()) =>
            {
                match claim.workers_state {
                    WorkersState::Running => self.repeat_hang(node),
                    WorkersState::Succeeded => {
                        let end = NodeEnd::Succeeded { round: claim.round };
                        self.on_node_ended(now, node, end)
                    }
                    WorkersState::Stopping => {
                        let why = Regroup::Rejoined { node: self.name_of(node) };
                        self.regroup(now, why, Some(node))
                    }
                }
            }
            // Of two that claim one rank the first is accepted; the other stops and joins again.
            Phase::Restoring { round, nodes, master_addr, master_port, claims, .. }
                if (*round, &*master_addr, *master_port)
                    == (claim.round, &claim.master_addr, claim.master_port)
                    && *nodes == claim.nodes
                    && claims.get(&claim.node_rank).is_none_or(|holder| holder == node) =>
            {
                self.on_claim(now, node, claim)
            }
            Phase::Gathering { awaited, since, .. } => {
                // It has workers, so it does not wait; the next round waits for it as for any other member. Not for
                // an unknown one: it was lost, or is forged, and its workers use another port.
                since.get_or_insert(now);
                if is_known {
                    awaited.insert(node.clone());
                }
                self.waiting.remove(node);
                late(node, claim.round)
            }
            Phase::Running { .. }
            | Phase::Restoring { .. }
            | Phase::Placing { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_)
            | Phase::Hosting { .. } => late(node, claim.round),
        }
    }

    /// Whether a node's claim fits the phase.
    fn is_claim_good(&self, node: &NodeId, claim: &Claim, is_known: bool) -> bool {
        match &self.phase {
            Phase::Running { world, .. } => {
                GenerationId::of(world) == GenerationId::claimed(claim)
                    && (self.node_ranks.contains_key(node) || world.node_rank_of(node).is_some())
            }
            Phase::Restoring { nodes, claims, .. } => {
                self.restored() == Some(GenerationId::claimed(claim))
                    && *nodes == claim.nodes
                    && claims.get(&claim.node_rank).is_none_or(|holder| holder == node)
            }
            // It is waited for from now on.
            Phase::Gathering { .. } => is_known,
            Phase::Over { .. } => true,
            Phase::Placing { .. } | Phase::Checking(_) | Phase::Measuring(_) | Phase::Hosting { .. } => false,
        }
    }

    fn begin_restoring(&mut self, now: Moment, claim: &Claim, effects: &mut Vec<Effect>) {
        let Claim { round, nodes, master_addr, master_port, .. } = claim.clone();
        // A claim of more nodes than the job may have delays no others.
        let most = self.terms.as_ref().map_or(nodes, |terms| terms.most());
        effects.push(Effect::Log(Log::Restoring { round, nodes }));
        self.phase = Phase::Restoring {
            round,
            nodes,
            master_addr,
            master_port,
            claims: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            until: now + return_grace(self.policy.reconnect_grace, nodes.min(most)),
        };
    }

    fn on_claim(&mut self, now: Moment, node: &NodeId, claim: Claim) -> Vec<Effect> {
        let Phase::Restoring { nodes, claims, succeeded, .. } = &mut self.phase else { return Vec::new() };
        claims.retain(|_, holder| holder != node);
        claims.insert(claim.node_rank, node.clone());
        self.node_ranks.insert(node.clone(), claim.node_rank);
        self.waiting.remove(node);
        match claim.workers_state {
            WorkersState::Running => {}
            WorkersState::Succeeded => {
                succeeded.insert(node.clone());
            }
            WorkersState::Stopping => {
                let why = Regroup::Rejoined { node: self.name_of(node) };
                return self.regroup(now, why, Some(node));
            }
        }
        let node_ranks = (0..*nodes).map(NodeRank);
        if count(claims.len()) != *nodes || !claims.keys().copied().eq(node_ranks) {
            return Vec::new();
        }
        self.take_over(now)
    }

    /// Every member is back: the round continues as if nothing had happened.
    fn take_over(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Restoring { round, nodes, master_addr, master_port, claims, succeeded, .. } = &self.phase
        else {
            return Vec::new();
        };
        let members = claims.values().filter_map(|node| self.nodes.get(node));
        let members = members.map(|node| node.request.member(false));
        let world = World {
            round: *round,
            members: members.collect(),
            master_addr: master_addr.clone(),
            master_port: *master_port,
            fence: self.restored().and_then(|it| self.absent_nodes.terms_of(&it).cloned()),
            restore: Vec::new(),
        };
        let mut effects = vec![Effect::Log(Log::Restored { round: *round, nodes: *nodes })];
        let (round, members) = (*round, world.members.clone());
        for node in claims.values() {
            if let Some(known) = self.nodes.get_mut(node) {
                known.has_taken_assignment = true;
            }
        }
        self.node_ranks = claims.iter().map(|(node_rank, node)| (node.clone(), *node_rank)).collect();
        let succeeded = succeeded.clone();
        self.first_failure = None;
        self.phase = Phase::Running { world, succeeded, grow_at: None };
        self.memory_of_running_round(round, &members);
        effects.extend(self.settle());
        effects.extend(self.end_if_all_succeeded(now));
        effects.extend(self.consider_growth(now));
        effects
    }

    /// Not all members came back in time.
    pub(super) fn on_restoring_deadline(&mut self, now: Moment) -> Vec<Effect> {
        if !matches!(self.phase, Phase::Restoring { .. }) {
            return Vec::new();
        }
        if let Some(effects) = self.switch_job(now) {
            return effects;
        }
        let Phase::Restoring { nodes, claims, .. } = &self.phase else { return Vec::new() };
        let why = Regroup::NotAllCameBack { back: count(claims.len()), nodes: *nodes };
        let mut effects = self.regroup(now, why, None);
        if let Phase::Gathering { awaited_until, .. } = &mut self.phase {
            *awaited_until = Some(now + CLAIMANTS_TIMEOUT);
        }
        effects.extend(self.complete(now));
        effects
    }
}
