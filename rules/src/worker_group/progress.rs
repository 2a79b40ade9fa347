//! The progress of this node's workers: which of them are stalled, and what the master is told.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{AfterStop, Effect, SIGTERM, State, WorkerGroup};
use crate::{
    failure::{Failure, Outcome},
    hang::{HangNotice, HangTerms},
    ids::{LocalRank, NodeRank},
    notice::{Notice, RestartDecision},
    progress::{ProgressReport, RankProgress, RankState, Sample},
    restart::{self, AfterFailure},
};
use diagnosis::moment::Moment;

/// How often steps are reported, for people, by each of up to [`PER_INTERVAL`] nodes.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Of more nodes each reports more rarely, so that the master receives no more than 100 reports a second.
const PER_INTERVAL: u32 = 1000;

/// Steps a second are an average over so long.
const RATE_WINDOW: Duration = Duration::from_secs(60);

/// Between two steps that are kept for the average.
const RATE_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest time for which an average is given.
const SHORTEST_RATE: Duration = Duration::from_secs(5);

/// The watch over the workers of one round.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct WorkersProgress {
    started: Moment,
    ranks: BTreeMap<LocalRank, RankWatch>,
    /// What was reported last, and when.
    reported: Option<(Moment, Vec<RankState>)>,
    /// The master may not have it, and waits for it.
    is_awaited: bool,
    last_sample: Option<Moment>,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RankWatch {
    sample: Sample,
    /// It has declared progress. That it is busy is none.
    has_declared: bool,
    /// Its predecessor in an earlier round has: it will, too.
    declared_before: bool,
    advanced: Moment,
    has_ended: bool,
    /// Earlier steps, oldest first.
    steps: VecDeque<(Moment, u64)>,
}

impl RankWatch {
    fn new(now: Moment, local_rank: LocalRank, declared_before: bool) -> Self {
        let sample = Sample { local_rank, step: None, changes: 0, busy: None, written: None, cpu: None };
        Self {
            sample,
            has_declared: false,
            declared_before,
            advanced: now,
            has_ended: false,
            steps: VecDeque::new(),
        }
    }

    fn has_ever_declared(&self) -> bool {
        self.has_declared || self.declared_before
    }

    fn sampled(&mut self, now: Moment, sample: Sample, terms: &HangTerms) {
        let grows = |new: Option<u64>, old: Option<u64>| new.is_some() && new != old;
        let declares = sample.changes != self.sample.changes;
        let is_active = terms.sources.output && grows(sample.written, self.sample.written)
            || terms.sources.cpu && grows(sample.cpu, self.sample.cpu);
        let was_busy = self.sample.busy.is_some();
        // The beginning and the end of a pause may come before the first step, which may take its time then, too.
        self.has_declared |= sample.step.is_some() || (declares && !was_busy && sample.busy.is_none());
        if declares || is_active || was_busy != sample.busy.is_some() {
            self.advanced = now;
        }
        if let Some(step) = sample.step {
            // A step that goes back is that of a checkpoint, or of another phase.
            if self.steps.back().is_some_and(|(_, last)| step < *last) {
                self.steps.clear();
            }
            if self.steps.back().is_none_or(|(at, _)| *at + RATE_INTERVAL <= now) {
                self.steps.push_back((now, step));
            }
            while self.steps.len() > 2 && self.steps.get(1).is_some_and(|(at, _)| *at + RATE_WINDOW <= now) {
                self.steps.pop_front();
            }
        }
        self.sample = sample;
    }

    fn state(&self, now: Moment, started: Moment, terms: &HangTerms) -> RankState {
        let is_late = now >= started + terms.grace;
        let is_expected = terms.sources.are_wide() || self.declared_before;
        let idle = now - self.advanced;
        if self.has_ended {
            RankState::Ended
        } else if self.sample.busy.is_some() {
            // What advances meanwhile, as an evaluation does that declares its steps, may be busy for any time.
            match idle < terms.grace.max(terms.timeout) {
                true => RankState::Busy,
                false if self.has_declared || is_expected => RankState::Stalled,
                false => RankState::Overdue,
            }
        } else if self.has_declared || (is_late && is_expected) {
            if idle < terms.timeout { RankState::Advancing } else { RankState::Stalled }
        } else if is_late && idle >= terms.timeout {
            RankState::Overdue
        } else {
            // What has come out of a pause is not late at once.
            RankState::Starting
        }
    }

    fn steps_per_1000_s(&self, now: Moment) -> Option<u64> {
        let ((first, before), step) = (self.steps.front()?, self.sample.step?);
        let elapsed = now - *first;
        if elapsed < SHORTEST_RATE {
            return None;
        }
        let millis = u64::try_from(elapsed.as_millis()).ok()?.max(1);
        step.saturating_sub(*before).saturating_mul(1_000_000).checked_div(millis)
    }
}

impl WorkersProgress {
    /// A watch over workers that are being started, after those of this one.
    pub(super) fn next(&self, now: Moment, workers: u32) -> Self {
        let declared_before = |rank| self.ranks.get(&rank).is_some_and(RankWatch::has_ever_declared);
        let watch = |rank| (rank, RankWatch::new(now, rank, declared_before(rank)));
        let ranks = (0..workers).map(LocalRank).map(watch).collect();
        Self { started: now, ranks, reported: None, is_awaited: false, last_sample: None }
    }

    /// A worker has exited.
    pub(super) fn ended(&mut self, local_rank: LocalRank) {
        if let Some(rank) = self.ranks.get_mut(&local_rank) {
            rank.has_ended = true;
        }
    }

    /// Whether each worker has shown progress.
    fn have_all_advanced(&self) -> bool {
        self.ranks.values().all(|rank| rank.has_declared)
    }

    /// Whether no worker has shown progress in the time that it may take to.
    fn is_missing(&self, now: Moment, terms: &HangTerms) -> bool {
        let is_overdue = |rank: &RankWatch| rank.state(now, self.started, terms) == RankState::Overdue;
        self.ranks.values().any(is_overdue) && !self.ranks.values().any(RankWatch::has_ever_declared)
    }

    /// What was reported may not have been received.
    fn report_again(&mut self) {
        self.is_awaited = true;
    }

    fn sampled(&mut self, now: Moment, samples: Vec<Sample>, terms: &HangTerms) {
        // A machine that stood still has neither trained nor sampled meanwhile.
        let gap = self.last_sample.map_or(Duration::ZERO, |last| now - last);
        if gap > terms.standstill() {
            self.started = self.started + gap;
            for rank in self.ranks.values_mut() {
                rank.advanced = rank.advanced + gap;
            }
        }
        self.last_sample = Some(now);
        for sample in samples {
            if let Some(rank) = self.ranks.get_mut(&sample.local_rank) {
                rank.sampled(now, sample, terms);
            }
        }
    }

    /// What the master is to know now. States are reported at once, steps from time to time.
    fn due(&mut self, now: Moment, terms: &HangTerms, nodes: u32) -> Option<Vec<RankProgress>> {
        let states: Vec<RankState> =
            self.ranks.values().map(|rank| rank.state(now, self.started, terms)).collect();
        let interval = REPORT_INTERVAL * nodes.div_ceil(PER_INTERVAL).max(1);
        let is_due = match &self.reported {
            _ if self.is_awaited => true,
            // There is nothing to tell of workers that are being started.
            None => states.iter().any(|state| *state != RankState::Starting),
            Some((_, before)) if *before != states => true,
            Some((at, _)) => {
                now >= *at + interval && self.ranks.values().any(|rank| rank.sample.step.is_some())
            }
        };
        if !is_due {
            return None;
        }
        self.is_awaited = false;
        self.reported = Some((now, states.clone()));
        let ranks = self.ranks.iter().zip(states).map(|((local_rank, rank), state)| RankProgress {
            local_rank: *local_rank,
            state,
            step: rank.sample.step,
            steps_per_1000_s: rank.steps_per_1000_s(now),
            idle: now - rank.advanced,
        });
        Some(ranks.collect())
    }
}

impl WorkerGroup {
    pub(super) fn on_progress_sampled(&mut self, now: Moment, samples: Vec<Sample>) -> Vec<Effect> {
        if let Some(terms) = &self.limits.hang {
            self.progress.sampled(now, samples, terms);
        }
        let mut effects = self.report_progress(now);
        effects.extend(self.show_missing_progress(now));
        if self.progress.have_all_advanced() {
            effects.extend(self.warm_up(now));
        }
        effects
    }

    /// Notifies once in a run, and not on every node: often only rank 0 declares progress.
    fn show_missing_progress(&mut self, now: Moment) -> Option<Effect> {
        let (State::Running(workers), Some(terms)) = (&self.state, &self.limits.hang) else { return None };
        let is_due = self.limits.reports_missing_progress
            && !self.is_missing_progress_shown
            && workers.assignment.node_rank == NodeRank(0)
            && self.progress.is_missing(now, terms);
        if !is_due {
            return None;
        }
        let notice = Notice::ProgressMissing { waited: terms.grace };
        self.is_missing_progress_shown = true;
        Some(Effect::Notify(notice))
    }

    /// The master may have forgotten what it was told.
    pub(super) fn report_progress_again(&mut self, now: Moment) -> Vec<Effect> {
        if self.limits.hang.is_some() && matches!(self.state, State::Running(_)) {
            self.progress.report_again();
        }
        self.report_progress(now)
    }

    pub(super) fn report_progress(&mut self, now: Moment) -> Vec<Effect> {
        let (State::Running(workers), Some(terms)) = (&self.state, &self.limits.hang) else {
            return Vec::new();
        };
        let assignment = &workers.assignment;
        let due = if self.link.is_up() { self.progress.due(now, terms, assignment.nodes) } else { None };
        let round = assignment.round;
        let report = due.map(|ranks| Effect::ReportProgress { report: ProgressReport { round, ranks } });
        report.into_iter().collect()
    }

    /// The job hangs. Where this node is to restart, that counts as a failure of its workers.
    pub(super) fn on_hang(&mut self, now: Moment, notice: HangNotice) -> Vec<Effect> {
        let (round, restart) = (notice.round, notice.restart);
        let reason = notice.to_string();
        let mut effects = vec![Effect::Notify(Notice::Hang(notice))];
        let is_running = matches!(&self.state, State::Running(workers) if workers.round() == round);
        if !restart || !is_running {
            return effects;
        }
        let max_restarts = self.limits.max_restarts;
        let (then, after) = match restart::after_failure(max_restarts, self.attempt) {
            AfterFailure::Restart(next) => {
                (AfterStop::Rejoin(next), RestartDecision::Restart { next, max_restarts })
            }
            AfterFailure::GiveUp => {
                let outcome = Outcome::Failed(Failure::Hang { reason: reason.clone() });
                (AfterStop::End(outcome), RestartDecision::Fail { max_restarts })
            }
        };
        let gives_up = matches!(then, AfterStop::End(_));
        effects.push(Effect::Notify(Notice::RestartAfterHang { then: after }));
        effects.push(Effect::ReportFailure { round, reason, gives_up, worker: None });
        effects.extend(self.stop(now, SIGTERM, then));
        effects
    }
}

#[cfg(test)]
mod tests;
