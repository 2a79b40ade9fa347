//! The verdict on the values of a pair. Pure arithmetic; the order of the values does not matter.

use serde::{Deserialize, Serialize};

use super::Rate;

/// One repetition of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// From the first of the pair to the second.
    pub there: Rate,
    /// And back. `None`: the probe measures the pair as one.
    pub back: Option<Rate>,
}

impl Repetition {
    /// Optical transmitter and receiver fail separately, so the slower direction counts.
    #[must_use]
    pub fn value(self) -> Rate {
        self.back.map_or(self.there, |back| self.there.min(back))
    }
}

/// The result of one measurement of a probe. How many values are needed is the same for both: 5 of 5 are good, and so
/// are 8 of 10; 0 of 5 are bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// [`FEWEST`] values, after one that was thrown away.
    Repetitions,
    /// One value: each takes a call of its own, so none is measured that cannot change the verdict.
    Calls,
}

/// So many values are enough where all are good.
pub const FEWEST: u32 = 5;

/// So many of twice [`FEWEST`] may be bad in a good pair.
const MAX_BAD: usize = 2;

/// The verdict on a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The pair is no channel: it is too slow each time, or dead.
    Bad,
    /// The pair is an unreliable channel: it is too slow at some times.
    Unstable,
    /// The pair was measured too few times.
    Untested,
    /// The pair is a channel.
    Good,
}

/// The verdict on the values of a pair that was measured alone; `None`: more are needed.
pub(super) fn judge(style: Style, min: Rate, values: &[Repetition]) -> Option<Verdict> {
    let good = values.iter().filter(|it| it.value() >= min).count();
    let bad = values.len() - good;
    match style {
        Style::Calls => match (good, bad) {
            (5.., 0) | (8.., ..=MAX_BAD) => Some(Verdict::Good),
            // Eight of ten are out of reach.
            (1.., 3..) => Some(Verdict::Unstable),
            (0, 5..) => Some(Verdict::Bad),
            _ => None,
        },
        Style::Repetitions => match (good, bad, values.len()) {
            (_, _, ..5) => None,
            (_, 0, 5) => Some(Verdict::Good),
            (0, _, 5) => Some(Verdict::Bad),
            (_, _, ..10) => None,
            // More than were asked for: the same shares.
            (good, _, all) if good * 10 >= all * 8 => Some(Verdict::Good),
            (good, _, all) if good * 10 <= all => Some(Verdict::Bad),
            _ => Some(Verdict::Unstable),
        },
    }
}

/// The verdict on too few values of a pair that was measured alone, when the time is over. None is good then; and
/// none is bad that could still have become good.
pub(super) fn judge_early(min: Rate, values: &[Repetition]) -> Verdict {
    let good = values.iter().filter(|it| it.value() >= min).count();
    match (good, values.len() - good) {
        (_, ..=MAX_BAD) => Verdict::Untested,
        (0, _) => Verdict::Bad,
        _ => Verdict::Unstable,
    }
}
