//! Launchers ask each other whether they have the master, and guards kill the workers of launchers that stand still.

use std::time::Duration;

use rules::{
    Round,
    fence::{Answer, Juror, guard_after},
    worker_group::Event,
};

use crate::{
    checks::Checks,
    clock::{Action, LifeId},
    network::Stream,
    node::{Life, Process},
    simulation::Simulation,
};

/// The answers of the launchers that were asked.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    number: u64,
    open: Option<(Round, bool, usize)>,
    answers: Vec<Answer>,
}

impl Simulation {
    pub(crate) fn ask(
        &mut self,
        life: LifeId,
        round: Round,
        jury: &[Juror],
        timeout: Duration,
        of_master: bool,
    ) {
        let here = self.end_of_life(life);
        let there = self.master_end();
        let gets_there = self.cut_until(here, there).is_none() && self.cut_until(there, here).is_none();
        // The master of a launcher that is over is gone with it, and its kernel refuses connections.
        let is_gone = of_master && gets_there && self.plan.is_embedded && self.lives[0].is_over();
        let asking = &mut self.lives[life].asking;
        asking.number += 1;
        asking.open = Some((round, is_gone, jury.len()));
        asking.answers.clear();
        let number = asking.number;
        for juror in jury {
            let of = Life::index_of(&juror.node);
            let wait = self.prng.millis(0, 50);
            if self.cut_until(here, self.end_of_life(of)).is_none() {
                self.after(wait, Action::Question { life: of, of: life, asking: number, round });
            }
        }
        let timeout = if jury.is_empty() { Duration::from_millis(1) } else { timeout };
        self.after(timeout, Action::AskingOver { life, asking: number });
    }

    pub(crate) fn on_question(&mut self, life: LifeId, of: LifeId, asking: u64, round: Round) {
        let it = &self.lives[life];
        let has_master = matches!(it.link.stream, Stream::Open(_));
        let answer = it.group.juror_state().answer(has_master, round);
        if self.cut_until(self.end_of_life(life), self.end_of_life(of)).is_none() {
            let wait = self.prng.millis(0, 50);
            self.after(wait, Action::Answer { life: of, asking, answer });
        }
    }

    pub(crate) fn on_answer(&mut self, life: LifeId, asking: u64, answer: Answer) {
        let known = &mut self.lives[life].asking;
        if known.number != asking {
            return;
        }
        known.answers.push(answer);
        if known.open.is_some_and(|(_, _, all)| known.answers.len() == all) {
            self.on_asking_over(life, asking);
        }
    }

    pub(crate) fn on_asking_over(&mut self, life: LifeId, asking: u64) {
        let known = &mut self.lives[life].asking;
        if known.number != asking {
            return;
        }
        if let Some((round, is_master_gone, _)) = known.open.take() {
            let answers = std::mem::take(&mut known.answers);
            self.tell_node(life, Event::Answered { round, answers, is_master_gone });
        }
    }

    /// A launcher stands still from now on: its guard acts by the last fence it received.
    pub(crate) fn watch_frozen(&mut self, life: LifeId) {
        let it = &self.lives[life];
        let Some(lease) = self.plan.policy.lease else { return };
        if let Some(kill_at) = it.group.kill_at() {
            let at = it.born + kill_at.since_start() + guard_after(lease);
            self.queue.push(at.max(self.now), Action::GuardFences { life });
        }
    }

    pub(crate) fn on_guard_fences(&mut self, life: LifeId) {
        let (now, lease) = (self.now, self.plan.policy.lease.unwrap_or_default());
        let it = &self.lives[life];
        let due = it.group.kill_at().map(|kill_at| it.born + kill_at.since_start() + guard_after(lease));
        if it.process == Process::Frozen && due.is_some_and(|due| due <= now) {
            self.kill_tree(life);
        }
    }

    /// Workers were started: none of another generation may run anywhere. Those that were killed and cannot die run
    /// no code of theirs any more. A master that has lost its state can wait only for those that some node reports,
    /// and hold back only those that were reported before it sent its own assignments.
    pub(crate) fn check_generations(&mut self, life: LifeId) {
        if !self.is_thorough {
            return;
        }
        let Some(mine) = &self.lives[life].workers else { return };
        let generation = (mine.round, mine.endpoint.clone());
        let is_unheard = |its: &(Round, (String, u16))| {
            let Checks { begun, memory, known, .. } = &self.checks;
            begun.get(its) != Some(memory) && !known.contains(its)
        };
        if is_unheard(&generation) {
            return;
        }
        let other = self.lives.iter().find(|it| {
            it.workers.as_ref().is_some_and(|workers| {
                let is_dead = workers.alive.is_empty() || (workers.is_unkillable && workers.is_killed);
                let its = (workers.round, workers.endpoint.clone());
                its != generation && !is_dead && !is_unheard(&its)
            })
        });
        if let Some(other) = other {
            let messages = format!(
                "two generations: {} starts workers of round {} while {} has workers of round {:?}",
                self.lives[life].id,
                generation.0,
                other.id,
                other.workers.as_ref().map(|workers| workers.round)
            );
            self.fail(|| messages);
        }
    }
}
