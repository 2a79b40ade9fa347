//! The checks of this node: its self-test before it joins, and tests with others before it is assigned.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Effect, MasterStream, WorkerGroup};
use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound},
    failure::{Failure, Outcome},
    notice::Notice,
};
use diagnosis::{
    exclusion::Exclusion,
    moment::Moment,
    network_check::{LocalCheck, Probed},
};

/// How often progress of a test is shown. Most tests end before.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// The state of this node's checks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Checks {
    local: Local,
    test: Option<Test>,
}

/// The state of the self-test.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Local {
    #[default]
    Unknown,
    UnderWay,
    Known {
        checked: LocalCheck,
        at: Moment,
        /// The node was assigned since: workers have run.
        is_used: bool,
    },
}

/// The last test with others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Test {
    /// Its order. Another master may count its rounds anew, so the round alone does not identify an order.
    order: CheckOrder,
    /// Its result, when it ended; the compute times may be missing yet.
    report: Option<CheckReport>,
    /// When its progress was shown last.
    notified: Moment,
}

impl Test {
    /// Whether nothing of it is running any more.
    fn is_over(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.compute.is_some())
    }
}

impl Checks {
    /// The node needs no check any more.
    pub(super) fn give_up(&mut self) -> Option<Effect> {
        let test = self.test.take()?;
        (!test.is_over()).then_some(Effect::CancelProbe { at: test.order.at })
    }

    /// Workers run: from now on the self-test gets older, and the result of a running one is not waited for.
    pub(super) fn used(&mut self) {
        self.test = None;
        match &mut self.local {
            Local::Known { is_used, .. } => *is_used = true,
            Local::UnderWay => self.local = Local::Unknown,
            Local::Unknown => {}
        }
    }
}

impl WorkerGroup {
    /// Joins, after a self-test where that is wanted.
    pub(super) fn request_to_join(&mut self, now: Moment) -> Vec<Effect> {
        if self.awaits_saver() {
            return Vec::new();
        }
        let Some(reuse_for) = self.limits.check else { return self.join_effects(None) };
        match &self.checks.local {
            Local::UnderWay => Vec::new(),
            Local::Known { checked, at, is_used } if !is_used || now < *at + reuse_for => {
                let join = self.join_effects(Some(checked.clone()));
                // The master asks again for what it has not received, unless its answer was lost.
                let report = self.checks.test.as_ref().and_then(|test| test.report.clone());
                let report = report.map(|report| Effect::ReportCheck { report });
                join.into_iter().chain(report).collect()
            }
            Local::Unknown | Local::Known { .. } => {
                self.checks.local = Local::UnderWay;
                vec![Effect::CheckLocally]
            }
        }
    }

    fn join_effects(&self, checked: Option<LocalCheck>) -> Vec<Effect> {
        let after = self.last.as_ref().map(|last| last.round);
        let join = Effect::Join { attempt: self.attempt, after, checked, shards: self.shards_in_memory() };
        let written = self.announce_written_alone().into_iter();
        written.chain([join]).chain(self.announce_saver()).collect()
    }

    pub(super) fn on_locally_checked(&mut self, now: Moment, checked: LocalCheck) -> Vec<Effect> {
        let tell = Effect::Notify(Notice::LocallyChecked(checked.clone()));
        self.checks.local = Local::Known { checked, at: now, is_used: false };
        let mut effects = vec![tell];
        if self.link == MasterStream::Up {
            effects.extend(self.request_to_join(now));
        }
        effects
    }

    pub(super) fn on_check_ordered(&mut self, now: Moment, order: CheckOrder) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(test) = &self.checks.test {
            if order == test.order {
                // Asked again, because the report was lost.
                let report = test.report.clone();
                return report.map(|report| Effect::ReportCheck { report }).into_iter().collect();
            }
            if !test.is_over() {
                effects.push(Effect::CancelProbe { at: test.order.at });
            }
        }
        effects.push(Effect::Notify(Notice::Testing(order.clone())));
        self.checks.test = Some(Test { order: order.clone(), report: None, notified: now });
        effects.push(Effect::Probe { order });
        effects
    }

    pub(super) fn on_check_cancelled(&mut self, at: CheckRound) -> Vec<Effect> {
        let test = self.checks.test.as_ref().filter(|test| test.order.at == at && !test.is_over());
        test.map(|_| Effect::CancelProbe { at }).into_iter().collect()
    }

    /// The master receives all progress, the user that of long tests.
    pub(super) fn on_probing(&mut self, now: Moment, at: CheckRound, probed: Probed) -> Vec<Effect> {
        let is_on = |test: &&mut Test| test.order.at == at && test.report.is_none();
        let Some(test) = self.checks.test.as_mut().filter(is_on) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if let Probed::Unfinished { bytes, total, elapsed, .. } = probed
            && test.notified + PROGRESS_EVERY <= now
        {
            test.notified = now;
            effects.push(Effect::Notify(Notice::TestRunning { at, bytes, total, elapsed }));
        }
        effects.push(Effect::ReportTestProgress { at, probed });
        effects
    }

    pub(super) fn on_probed(&mut self, report: CheckReport) -> Vec<Effect> {
        let Some(test) = self.checks.test.as_mut().filter(|test| test.order.at == report.at) else {
            return Vec::new();
        };
        test.report = Some(report.clone());
        vec![Effect::ReportCheck { report }]
    }

    pub(super) fn on_check_over(&mut self, message: String) -> Vec<Effect> {
        let probe = self.checks.give_up();
        let tell = Effect::Notify(Notice::CheckOver { message });
        probe.into_iter().chain([tell]).collect()
    }

    pub(super) fn on_excluded(&mut self, now: Moment, exclusion: Exclusion) -> Vec<Effect> {
        self.on_final(now, Outcome::Failed(Failure::Excluded(exclusion)))
    }
}
