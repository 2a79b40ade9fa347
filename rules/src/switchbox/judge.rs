//! What values make of a pair. Pure arithmetic on what was measured; the order of the values does not matter.

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

/// What one measurement of a probe gives, and so how many are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// [`Self::REPETITIONS`] values, after one that was thrown away. All good: good. None: bad. Else as many once
    /// more: 8 of 10 are good, 1 of 10 is bad, and between them it is unstable.
    Repetitions,
    /// One value. A first one of so many thousandths of the minimum is good at once. Else it is measured alone, up to
    /// 5 times: 4 of 5 are good, none is bad, and between them it is unstable.
    Calls {
        /// Thousandths, at least 1000.
        clear_permille: u32,
    },
}

impl Style {
    /// Values of one measurement of [`Style::Repetitions`].
    pub const REPETITIONS: u32 = 5;

    /// A program that is called once and takes one sample: a first value this far above the minimum leaves no doubt.
    pub const ONE_SAMPLE: Self = Self::Calls { clear_permille: 1200 };

    /// A program that takes the mean of several itself.
    pub const ONE_MEAN: Self = Self::Calls { clear_permille: 1000 };
}

/// What a pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is no channel.
    Bad,
    /// It is no channel one can rely on.
    Unstable,
    /// Nothing is known of it.
    Untested,
    /// It is a channel.
    Good,
}

/// Whether these values, measured beside those of other pairs, leave no doubt.
pub(super) fn is_clear(style: Style, min: Rate, values: &[Repetition]) -> bool {
    let permille = match style {
        Style::Repetitions => 1000,
        Style::Calls { clear_permille } => clear_permille,
    };
    let enough = match style {
        Style::Repetitions => Style::REPETITIONS as usize,
        Style::Calls { .. } => 1,
    };
    values.len() >= enough && values.iter().all(|it| it.value().is_at_least(min, permille))
}

/// What the values of a pair that was measured alone make of it; `None`: more are needed.
pub(super) fn judge(style: Style, min: Rate, values: &[Repetition]) -> Option<Verdict> {
    let good = values.iter().filter(|it| it.value() >= min).count();
    let bad = values.len() - good;
    match style {
        Style::Calls { .. } => match (good, bad) {
            (4.., 0..=1) => Some(Verdict::Good),
            (1.., 2..) => Some(Verdict::Unstable),
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

/// What is to be made of values that are fewer than there should be, of a pair that was measured alone, when the time is
/// over. Nothing is good then; and nothing is bad that could still have become good.
pub(super) fn judge_early(style: Style, min: Rate, values: &[Repetition]) -> Verdict {
    let good = values.iter().filter(|it| it.value() >= min).count();
    let bad = values.len() - good;
    // As many bad ones as a good pair may have: 1 of 5 calls, 2 of 10 repetitions.
    let most_bad = match style {
        Style::Calls { .. } => 1,
        Style::Repetitions => 2,
    };
    match (good, bad) {
        (_, bad) if bad <= most_bad => Verdict::Untested,
        (0, _) => Verdict::Bad,
        _ => Verdict::Unstable,
    }
}
