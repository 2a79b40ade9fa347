//! Nodes end, leave, are lost; and so does the job.

use std::collections::BTreeSet;

use super::{
    Effect, FAREWELL, FirstFailure, Gone, Job, LOSSES_SHOWN, Log, NodeEnd, OnGiveUp, Phase, Regroup,
    absent_nodes::GenerationId,
};
use crate::{
    ids::{NodeId, Round},
    liveness::LossCause,
    node::NodeName,
    push::Push,
    signal_name::stop_signal,
    verdict::{JobFailure, JobVerdict},
};
use diagnosis::moment::Moment;

/// How a node left.
enum Departure {
    /// Announced: nothing is charged.
    Announced,
    /// It was lost or gave up: its rank is charged.
    Charged,
    /// It was lost because its launcher was restarted: its rank is charged, and nothing is wrong with its machine.
    StartedAgain,
}

/// Workers of a node failed while the connection of another member was broken.
fn failed_after(reason: &str, broken: &NodeName) -> String {
    format!("{reason}, after the connection of {broken} to the job master broke")
}

impl Job {
    /// Workers of a node failed: every other member is notified at once, not when the first has stopped.
    pub(super) fn on_workers_failed(
        &mut self,
        now: Moment,
        node: &NodeId,
        first: FirstFailure,
        reason: String,
    ) -> Vec<Effect> {
        let (failed, gives_up) = (first.round, first.gives_up);
        match &self.phase {
            Phase::Running { world, .. } if world.round == failed && self.node_ranks.contains_key(node) => {
                // Workers fail when their peers are gone, and a broken stream is the first sign of a lost node.
                let broken = world.members.iter().map(|member| &member.node_id).find(|member| {
                    *member != node && self.nodes.get(*member).is_some_and(|it| !it.is_connected)
                });
                let follows = broken.is_some();
                let reason = match broken {
                    Some(broken) => failed_after(&reason, &self.name_of(broken)),
                    None => reason,
                };
                self.fails_first(first);
                if gives_up && !follows {
                    return self.on_gave_up(now, node, reason);
                }
                let why = Regroup::WorkersFailed { node: self.name_of(node), reason };
                // The failures of notified nodes are secondary.
                self.regroup(now, why, (!follows).then_some(node))
            }
            Phase::Restoring { round, claims, .. }
                if *round == failed && claims.values().any(|it| it == node) && !gives_up =>
            {
                let why = Regroup::WorkersFailed { node: self.name_of(node), reason };
                self.fails_first(first);
                self.regroup(now, why, Some(node))
            }
            Phase::Gathering { awaited, .. } if awaited.contains(node) => {
                self.fails_too(node, first, reason.clone());
                // The round was over before: notified again, in case the message was lost.
                let why = Regroup::WorkersFailed { node: self.name_of(node), reason };
                match gives_up {
                    true => vec![Effect::Push { node: node.clone(), push: Push::regroup(failed, &why) }],
                    false => Vec::new(),
                }
            }
            // It follows from the one that ended the job, or precedes it. The node has yet to be told of that.
            Phase::Over { withheld_until: Some(_), verdict, .. } => {
                if matches!(verdict, JobVerdict::Failed(JobFailure::Node { .. })) {
                    self.fails_too(node, first, reason);
                }
                Vec::new()
            }
            // In any round: it will not come back.
            _ if gives_up => self.on_gave_up(now, node, reason),
            _ => Vec::new(),
        }
    }

    pub(super) fn on_node_ended(&mut self, now: Moment, node: &NodeId, end: NodeEnd) -> Vec<Effect> {
        match end {
            NodeEnd::Succeeded { round } => self.on_succeeded(now, node, round),
            NodeEnd::Failed { reason } => self.on_gave_up(now, node, reason),
            NodeEnd::Left { signal } => self.on_left(now, node, signal),
        }
    }

    fn on_succeeded(&mut self, now: Moment, node: &NodeId, ended: Round) -> Vec<Effect> {
        match &mut self.phase {
            Phase::Running { world, succeeded, grow_at } => {
                if world.round != ended || !self.node_ranks.contains_key(node) {
                    return Vec::new();
                }
                succeeded.insert(node.clone());
                *grow_at = None;
                self.end_if_all_succeeded(now)
            }
            Phase::Restoring { round, succeeded, .. } => {
                if *round == ended {
                    succeeded.insert(node.clone());
                }
                Vec::new()
            }
            Phase::Over { .. } => self.notify_of_end(node),
            Phase::Gathering { .. }
            | Phase::Placing { .. }
            | Phase::Checking(_)
            | Phase::Measuring(_)
            | Phase::Hosting { .. } => Vec::new(),
        }
    }

    pub(super) fn end_if_all_succeeded(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Running { world, succeeded, .. } = &self.phase else { return Vec::new() };
        // The count first: with ten thousand members, searching for the missing one at each end is slow.
        let may_be_all = succeeded.len() >= world.members.len();
        if may_be_all && world.members.iter().all(|member| succeeded.contains(&member.node_id)) {
            return self.end(now, JobVerdict::Succeeded);
        }
        Vec::new()
    }

    fn on_gave_up(&mut self, now: Moment, node: &NodeId, reason: String) -> Vec<Effect> {
        if let Phase::Over { .. } = self.phase {
            return self.on_end_acknowledged(node);
        }
        let is_host = self.policy.host.as_ref() == Some(node);
        let ends_the_job = match self.policy.on_give_up {
            OnGiveUp::FailJob => is_host || self.has_part(node),
            OnGiveUp::Replace => is_host,
        };
        if !ends_the_job {
            let workers = self.workers_of(node);
            return self.depart(now, node, &Gone::Failed { reason }, Departure::Charged, workers);
        }
        let failure = JobFailure::Node { node: self.name_of(node), reason };
        self.remove(node);
        let verdict = JobVerdict::Failed(failure);
        let mut effects = vec![Effect::Forget { node: node.clone() }];
        let end = self.end(now, verdict.clone());
        // It has its reason, but waits for the message that its failure is secondary. A node that failed before it may
        // not have been heard yet.
        match &mut self.phase {
            Phase::Over { withheld_until: Some(_), unaware, failed, .. } if !unaware.is_empty() => {
                failed.insert(node.clone());
            }
            _ => effects.push(Effect::Push { node: node.clone(), push: Push::JobEnd(verdict) }),
        }
        effects.extend(end);
        effects
    }

    /// A launcher received a signal, and its node leaves.
    fn on_left(&mut self, now: Moment, node: &NodeId, signal: i32) -> Vec<Effect> {
        let reason = format!("its launcher received {}", stop_signal(signal));
        if self.policy.host.as_ref() == Some(node) && !matches!(self.phase, Phase::Over { .. }) {
            let failure = match self.nodes.len() {
                0 | 1 => JobFailure::Stopped { signal },
                _ => JobFailure::MasterLeft { node: self.name_of(node), reason },
            };
            self.remove(node);
            let mut effects = vec![Effect::Forget { node: node.clone() }];
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
            return effects;
        }
        // It is sent before its workers are gone.
        let workers = self.workers_of(node);
        self.depart(now, node, &Gone::Left { reason }, Departure::Announced, workers)
    }

    /// A node is lost: its stream stayed broken, or it was silent for too long.
    pub(super) fn on_lost(&mut self, now: Moment, node: &NodeId, cause: LossCause) -> Vec<Effect> {
        self.savers.remove(node);
        let mut effects = vec![Effect::HangUp { node: node.clone() }];
        if !self.nodes.contains_key(node) || matches!(self.phase, Phase::Over { .. }) {
            effects.extend(self.memory_gone(now, node));
        }
        let how = match cause {
            LossCause::StartedAgain => Departure::StartedAgain,
            // It may come back later.
            LossCause::Slow { .. } => Departure::Announced,
            LossCause::Disconnected { .. }
            | LossCause::Silent { .. }
            | LossCause::Replaced
            | LossCause::NoStore { .. } => Departure::Charged,
        };
        // Where its machine or its rank has another launcher, it is gone itself.
        let is_off = matches!(cause, LossCause::StartedAgain | LossCause::Replaced);
        if let (
            Phase::Running { succeeded, .. },
            LossCause::Disconnected { grace: silence } | LossCause::Silent { timeout: silence },
        ) = (&self.phase, cause)
            && self.node_ranks.contains_key(node)
            && !succeeded.contains(node)
        {
            self.history.silent_for(now, silence);
        }
        let workers = self.workers_of(node).filter(|_| !is_off);
        let gone = Gone::Lost { reason: cause.to_string() };
        effects.extend(self.depart(now, node, &gone, how, workers));
        effects
    }

    /// Removes a node from the job. With enough nodes left the others restart at once; with too few they stop and
    /// wait for a replacement.
    fn depart(
        &mut self,
        now: Moment,
        node: &NodeId,
        gone: &Gone,
        how: Departure,
        workers: Option<GenerationId>,
    ) -> Vec<Effect> {
        if let Phase::Over { .. } = self.phase {
            return self.on_end_acknowledged(node);
        }
        if !self.nodes.contains_key(node) {
            self.other_jobs.remove(node);
            return Vec::new();
        }
        let (had_part, name) = (self.has_part(node), self.name_of(node));
        let had_taken_assignment = self.nodes.get(node).is_some_and(|known| known.has_taken_assignment);
        // In any case: it may leave before its workers are gone, and the next round does not wait for them.
        self.is_port_stale |= had_part;
        let is_done = matches!(&self.phase, Phase::Running { succeeded, .. } if succeeded.contains(node));
        if let Some(generation) = workers {
            self.record_absent(now, node, generation);
        }
        self.remove(node);
        let mut effects = vec![Effect::Forget { node: node.clone() }];
        // Where the round ends, that comes first: the others keep what they are about to restore.
        let ends_round = matches!(self.phase, Phase::Running { .. }) && had_part && !is_done;
        if !ends_round {
            effects.extend(self.unsaved_memory_gone(now, node));
        }
        // Its workers have all exited with code 0, so it is not missed and no rank is charged.
        if is_done {
            effects.extend(self.end_if_all_succeeded(now));
            return effects;
        }
        // A node that never acknowledged an assignment costs no rank one of its replacements: its claims are not
        // proven.
        let is_charged = had_taken_assignment && !matches!(how, Departure::Announced);
        if !had_part {
            self.history.left(now, &name, gone);
        }
        if had_part && let Some(failure) = self.charge(&name, gone, is_charged, &mut effects) {
            if ends_round {
                effects.extend(self.unsaved_memory_gone(now, node));
            }
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
            return effects;
        }
        effects.extend(self.go_on_without(now, node, name, gone, &how));
        effects
    }

    /// The memory of a node that is gone. One that has a saver still writes what it has.
    fn unsaved_memory_gone(&mut self, now: Moment, node: &NodeId) -> Vec<Effect> {
        if self.savers.contains(node) { Vec::new() } else { self.memory_gone(now, node) }
    }

    /// A node of this job joined again for another one: a round that is about to begin continues without it. Its
    /// stream stays.
    pub(super) fn give_up_for_another_job(&mut self, now: Moment, node: &NodeId, point: &str) -> Vec<Effect> {
        let gone = Gone::Left { reason: format!("it joined for another job: {point}") };
        // Its claim may be forged.
        let mut effects = self.depart(now, node, &gone, Departure::Announced, None);
        effects.retain(|effect| !matches!(effect, Effect::Forget { node: gone } if gone == node));
        effects
    }

    /// Removes a waiting node from the job for good, as one that is to be replaced.
    pub(super) fn take_out(&mut self, now: Moment, node: &NodeId, gone: &Gone) -> Vec<Effect> {
        let name = self.name_of(node);
        self.is_port_stale |= self.has_part(node);
        self.remove(node);
        let mut effects = vec![Effect::Forget { node: node.clone() }];
        if let Some(failure) = self.charge(&name, gone, true, &mut effects) {
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
        }
        effects
    }

    /// Counts the loss of a rank; the job fails when it was lost too often.
    fn charge(
        &mut self,
        name: &NodeName,
        gone: &Gone,
        is_charged: bool,
        effects: &mut Vec<Effect>,
    ) -> Option<JobFailure> {
        // A later loss is the reason that the job does not continue.
        if self.first_failure.as_ref().is_some_and(|first| first.node.node_id != name.node_id) {
            self.first_failure = None;
        }
        let limit = self.policy.restart_count;
        if self.lost.len() == LOSSES_SHOWN {
            self.lost.remove(0);
        }
        self.lost.push(format!("{name} {gone}"));
        // A node that was chosen and had no assignment yet, and requested no rank, has none: rank 0's budget is its
        // own.
        let losses = name.rank.map(|rank| {
            let losses = self.losses.entry(rank).or_default();
            *losses = losses.saturating_add(u32::from(is_charged));
            (rank, *losses)
        });
        let (node, gone) = (name.clone(), gone.clone());
        let (losses_of_rank, reason) = (losses.map(|(_, losses)| losses), gone.to_string());
        effects.push(Effect::Log(Log::Gone { node: node.clone(), gone, losses: losses_of_rank, limit }));
        let (rank, losses) = losses?;
        (losses > limit).then_some(JobFailure::Exhausted { rank, node, limit, reason })
    }

    fn go_on_without(
        &mut self,
        now: Moment,
        node: &NodeId,
        name: NodeName,
        gone: &Gone,
        how: &Departure,
    ) -> Vec<Effect> {
        match &mut self.phase {
            Phase::Gathering { awaited, .. } => {
                awaited.remove(node);
                self.wait_for_any_job();
                if let Some(effects) = self.switch_job(now) {
                    return effects;
                }
                self.complete(now)
            }
            Phase::Placing { members, .. } => {
                if !members.contains(node) {
                    return Vec::new();
                }
                let members = std::mem::take(members);
                self.gather_again(now, members)
            }
            Phase::Checking(_) => {
                self.lost_in_check(now, node, &gone.reason(), !matches!(how, Departure::Charged))
            }
            Phase::Measuring(_) => self.lost_in_measuring(now, node, gone),
            Phase::Hosting { members, .. } => {
                if members.iter().all(|member| member.node_id != *node) {
                    return Vec::new();
                }
                let members = std::mem::take(members);
                self.gather_again(now, members.into_iter().map(|member| member.node_id).collect())
            }
            Phase::Running { world, .. } => {
                if world.node_rank_of(node).is_none() {
                    return self.consider_growth(now);
                }
                let why = Regroup::NodeGone { node: name, gone: gone.clone() };
                let mut effects = self.regroup(now, why, None);
                effects.extend(self.unsaved_memory_gone(now, node));
                effects.extend(self.complete(now));
                effects
            }
            Phase::Restoring { claims, .. } => {
                claims.retain(|_, holder| holder != node);
                Vec::new()
            }
            Phase::Over { .. } => Vec::new(),
        }
    }

    /// The members of a round that no node knows of yet wait again.
    pub(super) fn gather_again(&mut self, now: Moment, members: Vec<NodeId>) -> Vec<Effect> {
        self.waiting.extend(members.into_iter().filter(|member| self.nodes.contains_key(member)));
        self.phase = Phase::gathering(now, BTreeSet::new());
        self.wait_for_any_job();
        if let Some(effects) = self.switch_job(now) {
            return effects;
        }
        self.complete(now)
    }

    /// Before the first round, a master that all nodes have left is as good as new.
    fn wait_for_any_job(&mut self) {
        if let Phase::Gathering { since, .. } = &mut self.phase
            && self.nodes.is_empty()
            && !self.has_run
        {
            *since = None;
            self.terms.clone_from(&self.policy.terms);
        }
    }

    /// Whether a node is assigned, or about to be.
    pub(super) fn has_part(&self, node: &NodeId) -> bool {
        match &self.phase {
            Phase::Gathering { awaited, .. } => awaited.contains(node) || self.node_ranks.contains_key(node),
            Phase::Placing { members, .. } => members.contains(node),
            Phase::Checking(checking) => checking.has(node),
            Phase::Measuring(measuring) => measuring.place_of(node).is_some(),
            Phase::Hosting { members, .. } => members.iter().any(|member| member.node_id == *node),
            // The ranks are those of the running round; looked up, where the world would be searched.
            Phase::Running { .. } => self.node_ranks.contains_key(node),
            Phase::Restoring { claims, .. } => claims.values().any(|holder| holder == node),
            Phase::Over { .. } => false,
        }
    }

    pub(super) fn remove(&mut self, node: &NodeId) {
        if let Some(gone) = self.nodes.remove(node)
            && let Some(rank) = gone.request.wish
            && self.wishes.get(&rank) == Some(node)
        {
            self.wishes.remove(&rank);
        }
        self.waiting.remove(node);
        self.node_ranks.remove(node);
        self.inventories.remove(node);
    }

    /// Notifies every node of the end of the job.
    pub(super) fn end(&mut self, now: Moment, verdict: JobVerdict) -> Vec<Effect> {
        let candidates = std::mem::take(&mut self.other_jobs);
        let savers = self.savers.nodes().cloned();
        let unaware: BTreeSet<NodeId> =
            self.nodes.keys().cloned().chain(candidates.into_nodes()).chain(savers).collect();
        self.savers.job_ends(now);
        self.waiting.clear();
        let withheld_until = self.awaited_detail(now, &verdict);
        if unaware.is_empty() && withheld_until.is_none() {
            let finish = vec![Effect::Finish { verdict: verdict.clone() }];
            let failed = BTreeSet::new();
            self.phase = Phase::Over { verdict, unaware, until: None, withheld_until, failed };
            return finish;
        }
        let (until, failed) = (Some(now + FAREWELL), BTreeSet::new());
        self.phase = Phase::Over { verdict, unaware, until, withheld_until, failed };
        let mut effects = self.checkpoints_end(now);
        if withheld_until.is_none() {
            effects.extend(self.notify_all_of_end());
        }
        effects
    }

    /// A node knows that the job is over. One that still writes checkpoints is waited for.
    pub(super) fn on_end_acknowledged(&mut self, node: &NodeId) -> Vec<Effect> {
        if self.savers.contains(node) {
            return Vec::new();
        }
        let Phase::Over { verdict, unaware, until, withheld_until, .. } = &mut self.phase else {
            return Vec::new();
        };
        unaware.remove(node);
        if unaware.is_empty() && withheld_until.is_none() && until.take().is_some() {
            return vec![Effect::Finish { verdict: verdict.clone() }];
        }
        Vec::new()
    }
}
