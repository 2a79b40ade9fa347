//! The start of a round on this node: it joins, is assigned its ranks, and starts its workers.

use super::{Effect, State, WorkerGroup, local_workers::LocalWorkers, master::MasterStream};
use crate::{
    ids::{Attempt, LocalRank, Round},
    notice::Notice,
    start_watch::StartWatch,
    world::Assignment,
};
use diagnosis::moment::Moment;

impl WorkerGroup {
    pub(super) fn join(&mut self, now: Moment, attempt: Attempt) -> Vec<Effect> {
        self.charged = self.last.as_ref().map(|last| last.round).filter(|_| attempt != self.attempt);
        self.attempt = attempt;
        self.state = State::Joining { since: now };
        self.link.needed(now);
        match self.link {
            MasterStream::Up => self.request_to_join(now),
            MasterStream::Away { .. } => Vec::new(),
        }
    }

    pub(super) fn on_assigned(&mut self, now: Moment, mut assignment: Assignment) -> Vec<Effect> {
        if !self.start_lease(now, &assignment) {
            // The lease was over on arrival.
            self.last = Some(assignment);
            return self.join(now, self.attempt);
        }
        // The state in memory belongs to the ranks that the node had before.
        assignment.restore_from_disk |=
            self.last.as_ref().is_some_and(|last| last.first_rank != assignment.first_rank);
        let workers = LocalWorkers {
            alive: (0..assignment.local_world_size).map(LocalRank).collect(),
            assignment: assignment.clone(),
            failures: Vec::new(),
            ended_before: Vec::new(),
            oom_kills: None,
            has_oom_counter: true,
        };
        let had_others = self.last.as_ref().is_some_and(|last| last.nodes > 1);
        let last_world = self.last.as_ref().map(|last| last.world_size);
        let mut effects = self.saver_round(now, &assignment, last_world);
        self.last = Some(assignment.clone());
        self.is_done_well = false;
        self.hosted = None;
        self.charged = None;
        self.checks.used();
        self.accelerators.assigned();
        self.state = State::Preparing(workers);
        // A node that has always been alone has nothing to report. The files first: output costs time.
        let tell = (assignment.nodes > 1 || had_others)
            .then(|| Effect::Notify(Notice::Assigned(assignment.clone())));
        effects.push(Effect::Prepare { assignment, attempt: self.attempt });
        effects.extend(tell);
        effects
    }

    pub(super) fn on_prepared(&mut self, now: Moment, round: Round, oom_kills: Option<u64>) -> Vec<Effect> {
        match self.hold_for_template(now, round, oom_kills) {
            Some(effects) => effects,
            None => self.start_prepared(now, round, oom_kills),
        }
    }

    pub(super) fn start_prepared(
        &mut self,
        now: Moment,
        round: Round,
        oom_kills: Option<u64>,
    ) -> Vec<Effect> {
        match std::mem::replace(&mut self.state, State::Joining { since: now }) {
            State::Preparing(mut workers) => {
                workers.oom_kills = oom_kills;
                let count = workers.assignment.local_world_size;
                self.start_watch = StartWatch::new(now, count);
                self.progress = self.progress.next(now, count);
                self.state = State::Running(workers);
                self.warm_spawned(now);
                vec![Effect::Spawn { round }]
            }
            // `is_stale` lets Prepared through in Preparing only.
            other => {
                self.state = other;
                Vec::new()
            }
        }
    }
}
