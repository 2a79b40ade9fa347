//! The stop of a running group: by a signal, a failure or the job, until none of its processes is left.

use serde::{Deserialize, Serialize};

use super::{Effect, NodeEnd, ROOT_CAUSE_TIMEOUT, State, WorkerGroup};
use crate::{
    failure::{ExitCause, Failure, GroupFailure, Outcome},
    ids::Attempt,
    notice::Notice,
    stop_sequence::{Step, StopSequence},
};
use diagnosis::moment::Moment;

/// Why workers are being stopped, and so what follows when they are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AfterStop {
    /// Join again as this attempt.
    Rejoin(Attempt),
    /// The failures seen so far, and those seen while stopping, end the run.
    FailWithWorkers { reported: Moment },
    /// The run has ended like this already; the stop only removes leftovers.
    End(Outcome),
}

impl WorkerGroup {
    /// Stops the running group, first by a signal; `then` follows when none of its processes is left.
    pub(super) fn stop(&mut self, now: Moment, signal: i32, then: AfterStop) -> Vec<Effect> {
        let workers = match std::mem::replace(&mut self.state, State::Done) {
            State::Running(workers) => workers,
            // Only a running group is stopped.
            other => {
                self.state = other;
                return Vec::new();
            }
        };
        let mut sequence = StopSequence::asked(now, self.limits.shutdown_timeout);
        if workers.alive.is_empty() {
            sequence.workers_exited(now);
        }
        self.state = State::Stopping { workers, sequence, then };
        vec![Effect::SignalTree { signal }]
    }

    pub(super) fn on_tree_gone(&mut self, now: Moment) -> Vec<Effect> {
        // Every worker's end is reported before the tree's, so a running group cannot lose its tree.
        let State::Stopping { workers, then, .. } = &self.state else { return Vec::new() };
        let (round, may_join) = (workers.round(), !matches!(then, AfterStop::End(_)));
        let mut effects = self.saver_workers_gone(now, round, may_join);
        effects.extend(self.after_stop(now));
        effects
    }

    /// What follows when the workers are gone, or cannot be killed.
    fn after_stop(&mut self, now: Moment) -> Vec<Effect> {
        let State::Stopping { workers, then, .. } = &mut self.state else { return Vec::new() };
        match then {
            AfterStop::Rejoin(attempt) => {
                let attempt = *attempt;
                self.join(now, attempt)
            }
            AfterStop::FailWithWorkers { reported } => {
                let until = *reported + ROOT_CAUSE_TIMEOUT;
                let failures = std::mem::take(&mut workers.failures);
                let ended_before = std::mem::take(&mut workers.ended_before);
                let has_oom_counter = workers.has_oom_counter;
                let failure = GroupFailure { attempt: self.attempt, failures, ended_before, has_oom_counter };
                let outcome = Outcome::Failed(Failure::Workers(failure));
                if now >= until || self.cannot_start.is_some() || self.end_noted || !self.link.is_up() {
                    return self.leave(now, outcome);
                }
                self.state = State::AwaitingRootCause { outcome, until };
                Vec::new()
            }
            AfterStop::End(outcome) => {
                let outcome = outcome.clone();
                self.leave(now, outcome)
            }
        }
    }

    /// The workers were not gone in time.
    pub(super) fn on_stop_step(&mut self, now: Moment, step: Step) -> Vec<Effect> {
        match step {
            Step::Kill => vec![Effect::KillTree],
            Step::GiveUp => {
                self.cannot_start = Some(Failure::Unkillable);
                // New workers next to unkillable ones would use the same devices. Any other end stays what it is.
                if let State::Stopping { then, .. } = &mut self.state
                    && matches!(then, AfterStop::Rejoin(_))
                {
                    *then = AfterStop::End(Outcome::Failed(Failure::Unkillable));
                }
                let mut effects = vec![Effect::AbandonTree];
                effects.extend(self.after_stop(now));
                effects
            }
        }
    }

    pub(super) fn on_signalled(&mut self, now: Moment, signal: i32) -> Vec<Effect> {
        let again = self.interrupted.replace(signal).is_some();
        self.saver_signalled(now);
        let left = Effect::ReportEnd { end: NodeEnd::Left { signal } };
        match &mut self.state {
            State::Joining { .. } | State::Preparing(_) => {
                let outcome = self.or_done(Outcome::Interrupted(signal));
                self.leave_now(now, outcome)
            }
            State::Running(_) => {
                let grace = self.limits.shutdown_timeout;
                // Announced before the workers are gone, so that the others need not wait for that.
                let mut effects = vec![Effect::Notify(Notice::Stopping { signal, grace }), left];
                effects.extend(self.stop(now, signal, AfterStop::End(Outcome::Interrupted(signal))));
                effects
            }
            State::Stopping { sequence, .. } if again => match sequence.escalate(now) {
                Some(_) => vec![Effect::Notify(Notice::Killing), Effect::KillTree],
                None => Vec::new(),
            },
            State::Stopping { then, .. } => {
                // The workers were signalled already; only what follows changes.
                if matches!(then, AfterStop::Rejoin(_)) {
                    *then = AfterStop::End(Outcome::Interrupted(signal));
                    return vec![left];
                }
                Vec::new()
            }
            State::Leaving { outcome, is_farewell, since } if !*is_farewell && !again => {
                // Its work is done, but the others' is not: it must not count as lost.
                debug_assert_eq!(*outcome, Outcome::Succeeded);
                (*is_farewell, *since) = (true, now);
                vec![left]
            }
            State::AwaitingRootCause { outcome, .. } | State::Leaving { outcome, .. } => {
                let outcome = outcome.clone();
                self.finish(now, outcome)
            }
            State::Saving { .. } => self.on_signalled_while_saving(now, again),
            State::Done => Vec::new(),
        }
    }

    pub(super) fn on_forwarded(&self, signal: i32) -> Vec<Effect> {
        match self.state {
            State::Running(_) | State::Stopping { .. } => vec![Effect::SignalWorkers { signal }],
            State::Joining { .. }
            | State::Preparing(_)
            | State::AwaitingRootCause { .. }
            | State::Leaving { .. }
            | State::Saving { .. }
            | State::Done => Vec::new(),
        }
    }

    pub(super) fn on_guard_died(&mut self, now: Moment, cause: ExitCause) -> Vec<Effect> {
        let died = Failure::GuardDied { cause };
        self.cannot_start = Some(died.clone());
        match &self.state {
            State::Joining { .. }
            | State::Preparing(_)
            | State::Running(_)
            | State::Stopping { then: AfterStop::Rejoin(_), .. } => self.leave(now, Outcome::Failed(died)),
            // The outcome was settled before, and the shell has killed the rest.
            State::Stopping { .. } => self.on_tree_gone(now),
            State::AwaitingRootCause { outcome, .. } => {
                let outcome = outcome.clone();
                self.leave(now, outcome)
            }
            State::Leaving { .. } | State::Saving { .. } | State::Done => Vec::new(),
        }
    }
}
