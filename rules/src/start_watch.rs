//! Which workers reached the store after a start, and when to report that some did not.
//!
//! A start-up that hangs mostly hangs in the first rendezvous of the workers, because one of them never arrived. The
//! launcher serves the store, so it knows which.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{ids::LocalRank, notice::Notice};
use diagnosis::moment::Moment;

/// The time of the first report. Importing a large framework from a cold disk takes tens of seconds.
const FIRST: Duration = Duration::from_secs(60);

/// Each further report comes this many times later than the one before: 1, 5, 25 minutes.
const BACK_OFF: u32 = 5;

/// The watch over one generation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct StartWatch {
    since: Moment,
    after: Duration,
    missing: BTreeSet<LocalRank>,
    any_reached: bool,
    /// The owner of a connection is unknown, so no worker can be called missing.
    is_unsure: bool,
}

impl StartWatch {
    /// A watch over workers that are being started.
    pub(crate) fn new(now: Moment, workers: u32) -> Self {
        let missing = (0..workers).map(LocalRank).collect();
        Self { since: now, after: FIRST, missing, any_reached: false, is_unsure: false }
    }

    /// These workers have a connection to the store; with `is_unsure`, so has a process that was not found.
    pub(crate) fn reached(&mut self, workers: &[LocalRank], is_unsure: bool) {
        self.any_reached |= !workers.is_empty();
        self.missing.retain(|worker| !workers.contains(worker));
        self.is_unsure |= is_unsure;
    }

    /// A worker exited with code 0. It need not have used the store.
    pub(crate) fn succeeded(&mut self, worker: LocalRank) {
        self.missing.remove(&worker);
    }

    /// Whether further connections change nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.missing.is_empty() || self.is_unsure
    }

    /// The workers that never arrived, if others did: workers that do not use the store at all are not missing.
    pub(crate) fn missing(&self) -> Vec<LocalRank> {
        if self.any_reached && !self.is_unsure { self.missing.iter().copied().collect() } else { Vec::new() }
    }

    /// When to call [`Self::expired`].
    pub(crate) fn deadline(&self) -> Option<Moment> {
        (!self.missing().is_empty()).then(|| self.since + self.after)
    }

    /// The report that is due.
    pub(crate) fn expired(&mut self, now: Moment) -> Option<Notice> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        while self.since + self.after <= now {
            self.after = self.after.saturating_mul(BACK_OFF);
        }
        Some(Notice::StoreNotReached { missing: self.missing(), waited: now - self.since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_worker_is_reported_once_others_arrived() {
        let mut watch = StartWatch::new(Moment::START, 3);
        assert_eq!(watch.deadline(), None, "workers that use no store are not missing");
        watch.reached(&[LocalRank(0), LocalRank(2)], false);
        assert_eq!(watch.deadline(), Some(Moment::at_secs(60)));
        assert_eq!(watch.expired(Moment::at_secs(59)), None);
        let report = watch.expired(Moment::at_secs(60)).unwrap().to_string();
        assert!(report.starts_with("local rank 1 has not reached the store"), "{report}");
        assert_eq!(watch.deadline(), Some(Moment::at_secs(300)));
        watch.reached(&[LocalRank(1)], false);
        assert!(watch.is_over());
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn no_worker_is_missing_while_a_connection_has_an_unknown_owner() {
        let mut watch = StartWatch::new(Moment::START, 2);
        watch.reached(&[LocalRank(0)], true);
        assert!(watch.missing().is_empty());
    }

    #[test]
    fn a_worker_that_succeeded_is_not_missing() {
        let mut watch = StartWatch::new(Moment::START, 2);
        watch.reached(&[LocalRank(0)], false);
        watch.succeeded(LocalRank(1));
        assert!(watch.missing().is_empty());
    }
}
