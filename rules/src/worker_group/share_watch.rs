//! Whether workers keep to their share of an accelerator's memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::LocalRank;

/// A worker above this many hundredths of its share may be stopped.
const TOO_MUCH: u64 = 110;

/// So many samples in a row: an allocator may return memory shortly after.
const IN_A_ROW: u32 = 3;

/// A worker that was warned may be warned again after it was below this many hundredths.
const CALM: u64 = 95;

/// What follows from a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShareEffect {
    /// Notify the user that a worker holds more than its share, in bytes.
    Warn { local_rank: LocalRank, used: u64 },
    /// Stop it.
    Stop { local_rank: LocalRank, used: u64 },
}

/// The watch over the workers of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShareWatch {
    /// The workers that were warned.
    warned: BTreeMap<LocalRank, bool>,
    /// Samples in a row far above.
    above: BTreeMap<LocalRank, u32>,
}

impl ShareWatch {
    /// Handles a sample: the bytes that each worker holds on the device. `limit` is the share. No worker is stopped
    /// unless `enforces`.
    pub fn sampled(&mut self, limit: u64, enforces: bool, used: &[(LocalRank, u64)]) -> Vec<ShareEffect> {
        // A worker that holds nothing now starts anew.
        self.warned.retain(|rank, _| used.iter().any(|(other, _)| other == rank));
        self.above.retain(|rank, _| used.iter().any(|(other, _)| other == rank));
        let mut effects = Vec::new();
        let is_over =
            |used: u64, hundredths: u64| u128::from(used) * 100 > u128::from(limit) * u128::from(hundredths);
        for (local_rank, used) in used.iter().copied() {
            let was_warned = self.warned.entry(local_rank).or_default();
            if is_over(used, 100) && !*was_warned {
                *was_warned = true;
                effects.push(ShareEffect::Warn { local_rank, used });
            }
            *was_warned &= is_over(used, CALM);
            let above = self.above.entry(local_rank).or_default();
            *above = if is_over(used, TOO_MUCH) { *above + 1 } else { 0 };
            if enforces && *above >= IN_A_ROW {
                *above = 0;
                effects.push(ShareEffect::Stop { local_rank, used });
            }
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 5 << 30;

    fn rank(rank: u32, percent: u64) -> (LocalRank, u64) {
        (LocalRank(rank), LIMIT / 100 * percent)
    }

    fn message(effects: &[ShareEffect]) -> Vec<(&'static str, u32)> {
        let word = |effect: &ShareEffect| match effect {
            ShareEffect::Warn { local_rank, .. } => ("warn", local_rank.0),
            ShareEffect::Stop { local_rank, .. } => ("stop", local_rank.0),
        };
        effects.iter().map(word).collect()
    }

    #[test]
    fn a_worker_is_warned_once_until_it_has_calmed_down() {
        let mut watch = ShareWatch::default();
        let mut seen = Vec::new();
        for percent in [100, 101, 120, 96, 101, 94, 101, 101] {
            seen.push(message(&watch.sampled(LIMIT, false, &[rank(0, percent), rank(1, 50)])).len());
        }
        assert_eq!(seen, [0, 1, 0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn it_is_stopped_for_the_third_sample_in_a_row_that_is_far_above_and_only_where_that_is_wanted() {
        for (enforces, stopped) in [(true, 2), (false, 0)] {
            let mut watch = ShareWatch::default();
            let mut stops = 0;
            for percent in [111, 111, 110, 111, 111, 111, 111, 111, 111] {
                let effects = watch.sampled(LIMIT, enforces, &[rank(0, 99), rank(1, percent)]);
                stops += message(&effects).iter().filter(|word| **word == ("stop", 1)).count();
            }
            assert_eq!(stops, stopped);
        }
    }

    #[test]
    fn a_worker_that_is_gone_begins_anew() {
        let mut watch = ShareWatch::default();
        assert_eq!(message(&watch.sampled(LIMIT, true, &[rank(0, 150)])), [("warn", 0)]);
        assert_eq!(watch.sampled(LIMIT, true, &[rank(0, 150)]), []);
        assert_eq!(watch.sampled(LIMIT, true, &[]), []);
        assert_eq!(message(&watch.sampled(LIMIT, true, &[rank(0, 150)])), [("warn", 0)]);
        assert_eq!(watch, {
            let mut fresh = ShareWatch::default();
            let _warned = fresh.sampled(LIMIT, true, &[rank(0, 150)]);
            fresh
        });
    }
}
