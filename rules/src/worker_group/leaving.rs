//! The end of a node: its workers are gone for good, and the master is told.

use super::{Effect, State, WorkerGroup, master::MasterStream};
use crate::failure::Outcome;
use diagnosis::moment::Moment;

impl WorkerGroup {
    /// A node that succeeded waits for the others, unless the job is over; any other exits as soon as the master
    /// knows.
    pub(super) fn leave(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        if outcome != Outcome::Succeeded || self.interrupted.is_some() || self.end_noted {
            return self.leave_now(now, outcome);
        }
        self.link.needed(now);
        let end = self.end_of(&outcome);
        self.state = State::Leaving { outcome, since: now, is_farewell: false };
        match self.link {
            MasterStream::Up => end.map(|end| Effect::ReportEnd { end }).into_iter().collect(),
            MasterStream::Away { .. } => Vec::new(),
        }
    }

    pub(super) fn leave_now(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        if self.end_noted || !self.link.is_up() {
            return self.finish(now, outcome);
        }
        let end = self.end_of(&outcome);
        self.state = State::Leaving { outcome, since: now, is_farewell: true };
        end.map(|end| Effect::ReportEnd { end }).into_iter().collect()
    }

    /// Nothing is left to do but to write what the saver has not written yet.
    pub(super) fn finish(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        match self.save_before_end(now, &outcome) {
            Some(effects) => effects,
            None => self.end(outcome),
        }
    }

    pub(super) fn end(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.state = State::Done;
        let probe = self.checks.give_up();
        probe.into_iter().chain([Effect::Finish { outcome }]).collect()
    }
}
