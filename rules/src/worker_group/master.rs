//! This node and the master: reports that are repeated when the stream is back, timeouts while it is not, and the
//! end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AfterStop, Claim, EVERY, Effect, Hosted, NodeEnd, SIGTERM, State, WorkerGroup, WorkersState};
use crate::{
    failure::{Failure, Outcome},
    ids::Round,
    notice::Notice,
    verdict::JobVerdict,
};
use diagnosis::moment::Moment;

/// The stream to the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum MasterStream {
    /// It is open.
    Up,
    /// It is not; `reason` is `None` before the first attempt.
    Away { since: Moment, reason: Option<String>, notified: Moment },
}

impl MasterStream {
    pub(super) fn not_yet() -> Self {
        Self::Away { since: Moment::START, reason: None, notified: Moment::START }
    }

    pub(super) fn is_up(&self) -> bool {
        *self == Self::Up
    }

    /// It has been away for this time, or was never there.
    pub(super) fn is_away_for(&self, now: Moment, time: Duration) -> bool {
        matches!(self, Self::Away { since, .. } if now - *since >= time)
    }

    /// From now on the master is needed.
    pub(super) fn needed(&mut self, now: Moment) {
        if let Self::Away { notified, .. } = self {
            *notified = now;
        }
    }
}

impl WorkerGroup {
    /// When a master that is away and needed since then is given up, and when the next message to the user is due.
    pub(super) fn away_until(&self, needed_since: Moment) -> Option<(Moment, Moment)> {
        match &self.link {
            MasterStream::Up => None,
            MasterStream::Away { since, notified, .. } => {
                // A timeout of 0 would be due at once.
                let timeout = self.limits.join_timeout.max(Duration::from_millis(1));
                Some((needed_since.max(*since) + timeout, *notified + EVERY))
            }
        }
    }

    /// Repeats what the master may not have received.
    pub(super) fn on_master_back(&mut self, now: Moment) -> Vec<Effect> {
        let was_notified = matches!(&self.link, MasterStream::Away { reason: Some(_), .. });
        self.link = MasterStream::Up;
        let mut effects: Vec<Effect> =
            was_notified.then_some(Effect::Notify(Notice::MasterBack)).into_iter().collect();
        effects.extend(self.report_inventory());
        if let State::Joining { .. } = self.state {
            effects.extend(self.request_to_join(now));
            return effects;
        }
        effects.extend(match &self.state {
            State::Preparing(_) | State::Running(_) => self.resume(WorkersState::Running),
            State::Stopping { then: AfterStop::Rejoin(_), .. } => self.resume(WorkersState::Stopping),
            State::Stopping { then: AfterStop::FailWithWorkers { .. }, workers, .. } => {
                let first = workers.failures.first();
                let reason = first.map_or_else(String::new, ToString::to_string);
                let worker = first.cloned().map(Box::new);
                Some(Effect::ReportFailure { round: workers.round(), reason, gives_up: true, worker })
            }
            State::Stopping { then: AfterStop::End(Outcome::Succeeded), .. } => {
                self.resume(WorkersState::Running)
            }
            State::Stopping { then: AfterStop::End(outcome), .. } => {
                self.end_of(outcome).map(|end| Effect::ReportEnd { end })
            }
            State::Leaving { is_farewell: false, .. } => self.resume(WorkersState::Succeeded),
            State::Leaving { outcome, .. } => self.end_of(outcome).map(|end| Effect::ReportEnd { end }),
            State::Joining { .. } | State::AwaitingRootCause { .. } | State::Saving { .. } | State::Done => {
                None
            }
        });
        effects.extend(self.announce_written_alone());
        effects.extend(self.announce_saver());
        effects.extend(self.report_progress_again(now));
        effects
    }

    fn resume(&self, workers_state: WorkersState) -> Option<Effect> {
        let last = self.last.as_ref()?;
        let claim = Claim {
            round: last.round,
            node_rank: last.node_rank,
            nodes: last.nodes,
            master_addr: last.master_addr.clone(),
            master_port: last.master_port,
            workers_state,
            fence: last.fence.clone(),
        };
        Some(Effect::Resume { claim })
    }

    /// The report of an outcome to the master. An interrupted node whose work was done has left all the same.
    pub(super) fn end_of(&self, outcome: &Outcome) -> Option<NodeEnd> {
        let left = self.interrupted.map(|signal| NodeEnd::Left { signal });
        match outcome {
            Outcome::Succeeded => {
                left.or_else(|| self.last.as_ref().map(|last| NodeEnd::Succeeded { round: last.round }))
            }
            Outcome::Interrupted(signal) => Some(NodeEnd::Left { signal: *signal }),
            Outcome::Failed(failure) => Some(NodeEnd::Failed { reason: failure.to_string() }),
        }
    }

    /// Training needs no master until something changes.
    pub(super) fn on_master_away(&mut self, now: Moment, reason: String) -> Vec<Effect> {
        let is_new = match &mut self.link {
            MasterStream::Up => {
                self.link = MasterStream::Away { since: now, reason: Some(reason.clone()), notified: now };
                true
            }
            MasterStream::Away { reason: known, notified, .. } => {
                let is_first = known.is_none();
                *known = Some(reason.clone());
                if is_first {
                    *notified = now;
                }
                is_first
            }
        };
        let limit = self.limits.join_timeout;
        match &self.state {
            // It is not needed any more.
            State::AwaitingRootCause { outcome, .. } | State::Leaving { outcome, is_farewell: true, .. } => {
                let outcome = outcome.clone();
                self.finish(now, outcome)
            }
            State::Preparing(_) | State::Running(_) if is_new => {
                vec![Effect::Notify(Notice::MasterAway { reason, keeps_running: true, limit })]
            }
            State::Joining { .. } | State::Stopping { then: AfterStop::Rejoin(_), .. } if is_new => {
                vec![Effect::Notify(Notice::MasterAway { reason, keeps_running: false, limit })]
            }
            State::Leaving { .. } if is_new => {
                vec![Effect::Notify(Notice::MasterAway { reason, keeps_running: false, limit })]
            }
            // No message about a master that is not needed.
            State::Joining { .. }
            | State::Preparing(_)
            | State::Running(_)
            | State::Stopping { .. }
            | State::Leaving { .. }
            | State::Saving { .. }
            | State::Done => Vec::new(),
        }
    }

    pub(super) fn on_timeout_over(&mut self, now: Moment) -> Vec<Effect> {
        let (since, is_farewell) = match &self.state {
            State::Joining { since } => (*since, false),
            State::Leaving { since, is_farewell, .. } => (*since, *is_farewell),
            _ => return Vec::new(),
        };
        if is_farewell {
            if self.deadline().is_none_or(|due| now < due) {
                return Vec::new();
            }
            let State::Leaving { outcome, .. } = &self.state else { return Vec::new() };
            let outcome = outcome.clone();
            return self.finish(now, outcome);
        }
        let Some((due, send_at)) = self.away_until(since) else { return Vec::new() };
        let limit = self.limits.join_timeout;
        let MasterStream::Away { reason, notified, since: away_since } = &mut self.link else {
            return Vec::new();
        };
        let reason = reason.clone().unwrap_or_else(|| "no connection yet".to_owned());
        if now >= due {
            if self.is_done_well {
                let notice = Effect::Notify(Notice::OutcomeUnknown { reason, waited: limit });
                return std::iter::once(notice).chain(self.finish(now, Outcome::Succeeded)).collect();
            }
            let failure = Failure::MasterAway { reason, waited: limit };
            return self.finish(now, Outcome::Failed(failure));
        }
        if now < send_at || !matches!(self.state, State::Joining { .. }) {
            return Vec::new();
        }
        *notified = now;
        let waited = now - since.max(*away_since);
        vec![Effect::Notify(Notice::WaitingForMaster { reason, waited, limit })]
    }

    /// A node whose workers have all exited with code 0 has done its part, whatever happens to the others.
    pub(super) fn or_done(&self, outcome: Outcome) -> Outcome {
        if self.is_done_well { Outcome::Succeeded } else { outcome }
    }

    pub(super) fn on_host_requested(&mut self, round: Round, fresh_port: bool) -> Vec<Effect> {
        match &self.hosted {
            // Asked again, because the answer was lost: the store must not be emptied a second time.
            Some(Hosted { round: known, at: Some((master_addr, master_port)) }) if *known == round => {
                let (master_addr, master_port) = (master_addr.clone(), *master_port);
                vec![Effect::ReportHosting { round, master_addr, master_port }]
            }
            Some(Hosted { round: known, at: None }) if *known == round => Vec::new(),
            other => {
                // A store that was opened for a round without this node may have workers of others.
                let fresh_port = fresh_port || other.is_some();
                self.hosted = Some(Hosted { round, at: None });
                vec![Effect::HostStore { round, fresh_port }]
            }
        }
    }

    pub(super) fn on_hosting(
        &mut self,
        round: Round,
        master_addr: Option<String>,
        master_port: u16,
    ) -> Vec<Effect> {
        if self.hosted.as_ref().is_none_or(|hosted| hosted.round != round) {
            return Vec::new();
        }
        self.hosted = Some(Hosted { round, at: Some((master_addr.clone(), master_port)) });
        vec![Effect::ReportHosting { round, master_addr, master_port }]
    }

    pub(super) fn on_refused(&mut self, now: Moment, reason: String) -> Vec<Effect> {
        self.on_final(now, Outcome::Failed(Failure::Master { reason }))
    }

    /// The master has ended the job, and knows that this node will not come back: the workers are stopped, and unless
    /// this node's own end is settled already, it is this one.
    pub(super) fn on_final(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        let outcome = self.or_done(outcome);
        match &mut self.state {
            State::Joining { .. } | State::Preparing(_) => self.finish(now, outcome),
            State::Running(_) => {
                self.end_noted = true;
                self.stop(now, SIGTERM, AfterStop::End(outcome))
            }
            State::Stopping { then, .. } => {
                self.end_noted = true;
                if matches!(then, AfterStop::Rejoin(_)) {
                    *then = AfterStop::End(outcome);
                }
                Vec::new()
            }
            State::AwaitingRootCause { outcome, .. } | State::Leaving { outcome, .. } => {
                let outcome = outcome.clone();
                self.finish(now, outcome)
            }
            State::Saving { .. } => self.say_memory_again(),
            State::Done => Vec::new(),
        }
    }

    pub(super) fn on_end_noted(&mut self, now: Moment) -> Vec<Effect> {
        match &self.state {
            State::Leaving { outcome, is_farewell: true, .. } => {
                let outcome = outcome.clone();
                self.finish(now, outcome)
            }
            State::Stopping { then: AfterStop::End(Outcome::Interrupted(_)), .. } => {
                self.end_noted = true;
                Vec::new()
            }
            State::Joining { .. }
            | State::Preparing(_)
            | State::Running(_)
            | State::Stopping { .. }
            | State::AwaitingRootCause { .. }
            | State::Leaving { .. }
            | State::Saving { .. }
            | State::Done => Vec::new(),
        }
    }

    pub(super) fn on_job_ended(&mut self, now: Moment, verdict: JobVerdict) -> Vec<Effect> {
        // As to each of its nodes: what is in memory is written to disk, within the same time.
        if matches!(&verdict, JobVerdict::Failed(failure) if failure.is_by_signal()) {
            self.saver_signalled(now);
        }
        // Success needs exit code 0 of all workers, and this node knows its own.
        let has_unfinished = matches!(
            &self.state,
            State::Preparing(_) | State::Running(_) | State::Stopping { then: AfterStop::Rejoin(_), .. }
        );
        let of_the_job = match verdict {
            JobVerdict::Succeeded if has_unfinished => Outcome::Failed(Failure::EndedWithout),
            JobVerdict::Succeeded => Outcome::Succeeded,
            JobVerdict::Failed(failure) => Outcome::Failed(Failure::Job(failure)),
        };
        std::iter::once(Effect::AcknowledgeEnd).chain(self.on_final(now, of_the_job)).collect()
    }
}
