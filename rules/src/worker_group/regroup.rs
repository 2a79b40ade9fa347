//! The round is over for all its members: because of another node, and sometimes with a failure here.

use super::{AfterStop, Effect, SIGTERM, State, WorkerGroup};
use crate::{failure::Outcome, ids::Attempt, notice::Notice};
use diagnosis::moment::Moment;

impl WorkerGroup {
    /// Another node's failure, loss or arrival uses none of this node's restarts.
    pub(super) fn on_regroup(&mut self, now: Moment, why: String, is_secondary: bool) -> Vec<Effect> {
        let attempt = self.attempt;
        let tell = Effect::Notify(Notice::Regrouping { why: why.clone(), on_all: is_secondary });
        if let (State::Leaving { is_farewell: false, .. }, Some(failure)) = (&self.state, &self.cannot_start)
        {
            let outcome = Outcome::Failed(failure.clone());
            return std::iter::once(tell).chain(self.leave(now, outcome)).collect();
        }
        let then = match &mut self.state {
            // Nothing has been started, or all of it has succeeded.
            State::Preparing(_) | State::Leaving { is_farewell: false, .. } => self.join(now, attempt),
            State::Running(_) => self.stop(now, SIGTERM, AfterStop::Rejoin(attempt)),
            State::Stopping { then, .. }
                if *then == AfterStop::End(Outcome::Succeeded) && self.interrupted.is_none() =>
            {
                *then = AfterStop::Rejoin(attempt);
                Vec::new()
            }
            // Our workers failed because their peers had: no restart is used.
            State::Stopping { then, .. }
                if is_secondary && is_own_failure(then, attempt) && self.interrupted.is_none() =>
            {
                *then = AfterStop::Rejoin(attempt);
                return vec![Effect::Notify(Notice::Secondary { why })];
            }
            // The same, with no restart left.
            State::AwaitingRootCause { .. } if is_secondary => {
                let secondary = Effect::Notify(Notice::Secondary { why });
                return std::iter::once(secondary).chain(self.join(now, attempt)).collect();
            }
            // The same, received after the workers were gone.
            State::Joining { .. } => {
                self.charged = None;
                self.attempt = Attempt(attempt.0.saturating_sub(1));
                return vec![Effect::Notify(Notice::Secondary { why })];
            }
            State::Stopping { .. }
            | State::AwaitingRootCause { .. }
            | State::Leaving { .. }
            | State::Done => {
                return Vec::new();
            }
            State::Saving { .. } => return self.say_memory_again(),
        };
        std::iter::once(tell).chain(then).collect()
    }
}

/// Whether the workers are stopped because one of them failed.
fn is_own_failure(then: &AfterStop, attempt: Attempt) -> bool {
    match then {
        AfterStop::Rejoin(next) => *next != attempt,
        AfterStop::FailWithWorkers { .. } => true,
        AfterStop::End(_) => false,
    }
}
