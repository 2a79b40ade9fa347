//! Workers that may be cut off are stopped here: see [`crate::fence`].

use super::{AfterStop, Effect, State, WorkerGroup};
use crate::{
    fence::{Answer, Fence, FenceFinding, JurorState, Step, question_timeout},
    ids::Round,
    notice::Notice,
    stop_sequence::StopSequence,
    world::Assignment,
};
use diagnosis::moment::Moment;

impl WorkerGroup {
    /// When the workers here are killed unless the lease is renewed; `None`: there are none, or they have no lease.
    /// They must be gone then even if this process hangs.
    #[must_use]
    pub fn kill_at(&self) -> Option<Moment> {
        self.fence.as_ref().filter(|_| self.may_have_workers()).map(Fence::kill_at)
    }

    /// The lease.
    #[must_use]
    pub fn lease(&self) -> Option<std::time::Duration> {
        Some(self.last.as_ref()?.fence.as_ref()?.lease)
    }

    /// What other nodes may ask about this one.
    #[must_use]
    pub fn juror_state(&self) -> JurorState {
        JurorState { over: self.over }
    }

    pub(super) fn fence_deadline(&self) -> Option<Moment> {
        self.fence.as_ref().filter(|_| self.may_have_workers()).map(Fence::deadline)
    }

    fn may_have_workers(&self) -> bool {
        matches!(self.state, State::Preparing(_) | State::Running(_) | State::Stopping { .. })
    }

    /// Starts the lease of an assignment with the last message that the master has answered. `false`: it is over
    /// already, because the assignment was too long in transit, and the job may run elsewhere by now.
    pub(super) fn start_lease(&mut self, now: Moment, assignment: &Assignment) -> bool {
        self.over = self.over.max(assignment.round.0.checked_sub(1).map(Round));
        (self.finding, self.is_death_shown) = (None, false);
        self.fence = assignment.fence.as_ref().map(|terms| {
            let is_juror = terms.jury.iter().any(|juror| juror.node == self.limits.node_id);
            let jurors = u32::try_from(terms.jury.len()).unwrap_or(u32::MAX);
            Fence::new(self.last_answered, terms.lease, jurors, is_juror)
        });
        self.fence.as_ref().is_none_or(|fence| now < fence.kill_at())
    }

    pub(super) fn on_master_answered(&mut self, sent: Moment) {
        self.last_answered = self.last_answered.max(sent);
        if let Some(fence) = &mut self.fence {
            fence.renew(sent);
        }
        (self.finding, self.is_death_shown) = (None, false);
    }

    pub(super) fn on_answered(
        &mut self,
        round: Round,
        answers: &[Answer],
        is_master_gone: bool,
    ) -> Vec<Effect> {
        if self.round() != Some(round) {
            return Vec::new();
        }
        let found = self.fence.as_mut().and_then(|fence| fence.answered(answers, is_master_gone));
        let Some(found) = found else { return Vec::new() };
        self.finding = Some(found);
        match found {
            FenceFinding::MasterDead { lost, of } if !self.is_death_shown && !self.link.is_up() => {
                self.is_death_shown = true;
                vec![Effect::Notify(Notice::MasterDead { lost, of })]
            }
            FenceFinding::MasterDead { .. }
            | FenceFinding::MasterGone
            | FenceFinding::CutOff
            | FenceFinding::Alone { .. } => Vec::new(),
        }
    }

    /// Asks the jurors when it is time.
    pub(super) fn ask(&mut self, now: Moment) -> Option<Effect> {
        let round = self.round().filter(|_| self.may_have_workers())?;
        let terms = self.last.as_ref()?.fence.as_ref()?;
        let Some(Step::Ask) = self.fence.as_mut()?.due(now) else { return None };
        let others = terms.jury.iter().filter(|juror| juror.node != self.limits.node_id);
        Some(Effect::Ask {
            round,
            jury: others.cloned().collect(),
            timeout: question_timeout(terms.lease),
            of_master: terms.is_master_within,
        })
    }

    /// The lease is over: the workers of the round must not run on.
    pub(super) fn kill_fenced_workers(&mut self, now: Moment) -> Vec<Effect> {
        if self.kill_at().is_none_or(|kill_at| now < kill_at) {
            return Vec::new();
        }
        let silent = now - self.last_answered;
        self.fence = None;
        let found = self.finding.take();
        let tell = Effect::Notify(Notice::Fenced { silent, found, limit: self.limits.join_timeout });
        let attempt = self.attempt;
        let joining = State::Joining { since: now };
        match std::mem::replace(&mut self.state, joining) {
            State::Preparing(_) => std::iter::once(tell).chain(self.join(now, attempt)).collect(),
            State::Running(workers) => {
                let (sequence, then) = (StopSequence::killed(now), AfterStop::Rejoin(attempt));
                self.state = State::Stopping { workers, sequence, then };
                vec![tell, Effect::KillTree]
            }
            State::Stopping { workers, mut sequence, then } => {
                let escalated = sequence.escalate(now);
                self.state = State::Stopping { workers, sequence, then };
                escalated.map_or_else(Vec::new, |_| vec![tell, Effect::KillTree])
            }
            without_workers => {
                self.state = without_workers;
                Vec::new()
            }
        }
    }
}
