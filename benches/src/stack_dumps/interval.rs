//! What a difference is worth: the median of many, and where the true one may be.

use std::fmt;

/// The median of differences in percent, and the range in which the true one is with a confidence of about 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) median: f64,
    pub(super) high: f64,
    count: usize,
}

/// Of fewer differences not even the least and the most have that confidence.
const FEWEST: usize = 6;

/// What is known beside a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The whole range is below the goal.
    Holds,
    /// The whole range is above the goal.
    DoesNotHold,
    /// The goal is below what things that are alike differ by, and so may be the difference.
    TooNoisy,
    /// The goal is inside of the range.
    Open,
    /// No range can be given.
    TooFew,
}

impl Interval {
    /// Of differences in any order; by their ranks, so that a few wild ones count no more than others.
    pub(super) fn of(differences: &[f64]) -> Self {
        let mut sorted = differences.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let at = |place: f64| {
            let last = count.saturating_sub(1) as f64;
            sorted.get(place.clamp(0.0, last) as usize).copied().unwrap_or(f64::NAN)
        };
        let (middle, reach) = ((count as f64 - 1.0) / 2.0, 0.98 * (count as f64).sqrt());
        let median = f64::midpoint(at(middle.floor()), at(middle.ceil()));
        Self { low: at((middle - reach).floor()), median, high: at((middle + reach).ceil()), count }
    }

    /// How far the range reaches from 0.
    pub(super) fn farthest(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// Compares with a goal in percent that is not to be exceeded, where things that are alike differ by up to `noise`.
    pub(super) fn against(self, goal: f64, noise: f64) -> Verdict {
        if self.count < FEWEST {
            Verdict::TooFew
        } else if noise > goal && self.low <= noise && self.high >= -noise {
            Verdict::TooNoisy
        } else if self.high <= goal {
            Verdict::Holds
        } else if self.low > goal {
            Verdict::DoesNotHold
        } else {
            Verdict::Open
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, median, high, count } = self;
        write!(f, "{median:+.3} % ({low:+.3} .. {high:+.3}; 95 % of {count} pairs)")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::TooNoisy => {
                "not measurable: jobs that are alike differ by more than the goal, and by as much"
            }
            Self::Open => "open: the goal is inside of the range",
            Self::TooFew => "too few pairs for a verdict",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_median_is_narrower_with_more_differences() {
        let differences =
            |count: i32| (0..count).map(|at| f64::from(at * 100) / f64::from(count - 1)).collect::<Vec<_>>();
        let few = Interval::of(&differences(11));
        let many = Interval::of(&differences(101));
        assert_eq!((few.median, many.median), (50.0, 50.0));
        assert_eq!((many.low, many.high), (40.0, 60.0));
        assert!(few.low < 25.0 && few.high > 75.0, "{few:?}");
        let two = Interval::of(&[3.0, 1.0]);
        assert_eq!((two.low, two.median, two.high), (1.0, 2.0, 3.0));
        assert!(Interval::of(&[]).median.is_nan());
    }

    #[test]
    fn a_goal_inside_of_the_range_is_not_decided() {
        let interval = |low, high| Interval { low, median: f64::midpoint(low, high), high, count: 9 };
        assert_eq!(interval(-0.3, 0.05).against(0.1, 0.05), Verdict::Holds);
        assert_eq!(interval(-0.3, 0.3).against(0.1, 0.05), Verdict::Open);
        assert_eq!(interval(0.2, 0.3).against(0.1, 0.05), Verdict::DoesNotHold);
        assert_eq!(Interval::of(&[0.0; 5]).against(0.1, 0.0), Verdict::TooFew);
        assert_eq!(Interval::of(&[0.0; 6]).against(0.1, 0.0), Verdict::Holds);
        assert_eq!(interval(-0.3, 0.05).to_string(), "-0.125 % (-0.300 .. +0.050; 95 % of 9 pairs)");
    }

    #[test]
    fn what_is_as_small_as_the_noise_is_not_measurable() {
        let interval = |low, high| Interval { low, median: f64::midpoint(low, high), high, count: 9 };
        let noise = interval(-0.4, 0.2).farthest();
        assert!((noise - 0.4).abs() < 1e-9);
        for within in [interval(-0.5, -0.1), interval(-0.1, 0.05), interval(0.3, 0.6)] {
            assert_eq!(within.against(0.1, noise), Verdict::TooNoisy, "{within}");
        }
        assert_eq!(interval(0.5, 0.6).against(0.1, noise), Verdict::DoesNotHold);
    }
}
