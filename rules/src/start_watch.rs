//! Which workers reached the store after a start, and when to say that some did not.
//!
//! A start-up that hangs mostly hangs in the first rendezvous of the workers: one of them never came. The
//! launcher serves the store, so it knows who.

use std::{collections::BTreeSet, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::ids::LocalRank;
use diagnosis::moment::Moment;

/// When to say so first. Importing a large framework from a cold disk takes tens of seconds.
pub const FIRST_WORD: Duration = Duration::from_secs(60);

/// Each further word comes this many times later than the one before: 1, 5, 25 minutes.
const LATER: u32 = 5;

/// Some workers reached the store, others did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotArrived {
    /// Who is missing.
    pub missing: Vec<LocalRank>,
    /// Since the workers were started.
    pub waited: Duration,
}

impl fmt::Display for NotArrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<String> = self.missing.iter().map(LocalRank::to_string).collect();
        write!(
            f,
            "{} s after the start local rank {} has not reached the store at MASTER_ADDR:MASTER_PORT, the others \
             have; if the start-up hangs, look there first",
            self.waited.as_secs(),
            ranks.join(", ")
        )
    }
}

/// The watch over one generation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartWatch {
    since: Moment,
    after: Duration,
    missing: BTreeSet<LocalRank>,
    any_arrived: bool,
    /// A connection came and went before it was known whose it was: nobody can be called missing then.
    is_unsure: bool,
}

impl StartWatch {
    /// Workers are being started.
    #[must_use]
    pub fn new(now: Moment, workers: u32) -> Self {
        Self {
            since: now,
            after: FIRST_WORD,
            missing: (0..workers).map(LocalRank).collect(),
            any_arrived: false,
            is_unsure: false,
        }
    }

    /// These workers have a connection to the store.
    pub fn arrived(&mut self, workers: impl IntoIterator<Item = LocalRank>) {
        for worker in workers {
            self.any_arrived = true;
            self.missing.remove(&worker);
        }
    }

    /// Somebody was there, and it is not known who.
    pub fn somebody_came(&mut self) {
        self.is_unsure = true;
    }

    /// A worker ended well; whether it used the store is its own affair.
    pub fn ended_well(&mut self, worker: LocalRank) {
        self.missing.remove(&worker);
    }

    /// Whether there is anything left to find out.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.missing.is_empty() || self.is_unsure
    }

    /// Who never came, if others did: workers that do not use the store at all are not missing.
    #[must_use]
    pub fn missing(&self) -> Vec<LocalRank> {
        if self.any_arrived && !self.is_unsure { self.missing.iter().copied().collect() } else { Vec::new() }
    }

    /// When to call [`Self::expired`].
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        (!self.missing().is_empty()).then(|| self.since + self.after)
    }

    /// What to say now.
    #[must_use]
    pub fn expired(&mut self, now: Moment) -> Option<NotArrived> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        let waited = now - self.since;
        while self.since + self.after <= now {
            self.after = self.after.saturating_mul(LATER);
        }
        Some(NotArrived { missing: self.missing(), waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_came_is_named_once_others_did() {
        let mut watch = StartWatch::new(Moment::START, 3);
        assert_eq!(watch.deadline(), None, "workers that use no store are not missing");
        watch.arrived([LocalRank(0), LocalRank(2)]);
        assert_eq!(watch.deadline(), Some(Moment::at_secs(60)));
        assert_eq!(watch.expired(Moment::at_secs(59)), None);
        let word = watch.expired(Moment::at_secs(60)).unwrap();
        assert_eq!(word.missing, [LocalRank(1)]);
        assert!(word.to_string().starts_with("60 s after the start local rank 1 has not"), "{word}");
        assert_eq!(watch.deadline(), Some(Moment::at_secs(300)));
        watch.arrived([LocalRank(1)]);
        assert!(watch.is_over());
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn nobody_is_accused_on_doubtful_evidence() {
        let mut watch = StartWatch::new(Moment::START, 2);
        watch.arrived([LocalRank(0)]);
        watch.somebody_came();
        assert!(watch.missing().is_empty());
        let mut watch = StartWatch::new(Moment::START, 2);
        watch.arrived([LocalRank(0)]);
        watch.ended_well(LocalRank(1));
        assert!(watch.missing().is_empty());
    }
}
