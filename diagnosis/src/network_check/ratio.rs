//! How much slower a node is than the others: the mean of the others, and how often a ratio must be seen.

use std::f64::consts::PI;

/// False stragglers that a whole check may expect.
const FALSE_STRAGGLERS: f64 = 0.01;

/// The mean absolute deviation of a normal distribution is this much smaller than its standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;

/// The median absolute deviation of n times is off by 1.17 / sqrt(n) of itself, one time in three (its efficiency is
/// 37 %; Rousseeuw and Croux, "Alternatives to the median absolute deviation", JASA 1993).
const DOUBT: f64 = 1.17;

/// Fewest and most samples that a verdict takes.
pub(super) const FEWEST: u32 = 2;
pub(super) const MAX_SAMPLES: u32 = 6;
/// Where too few were timed to know their scatter: three false ones in a row are rare even where one in ten is.
const UNKNOWN: u32 = 3;

/// Values further than this many times from their middle are outliers.
const OUTLIER: f64 = 2.0;

/// How often the mean is taken, each time with outliers above twice the one before.
const STEPS: usize = 3;

/// The mean of the others' values, without the outliers among them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    /// In whole nanoseconds, as the report lists it: it can be recomputed from that.
    pub(super) value: f64,
    /// Values that it is the mean of, and outliers.
    pub(super) counted: u32,
    pub(super) left_out: u32,
    /// The least and the greatest values that are no outliers.
    least: f64,
    greatest: f64,
}

impl Mean {
    pub(super) fn is_outlier(&self, value: f64) -> bool {
        value < self.least || value > self.greatest
    }

    /// The number of values with outliers.
    pub(super) fn seen(&self) -> u32 {
        self.counted + self.left_out
    }

    /// A value over it. `None` where it is 0.
    pub(super) fn ratio_of(&self, value: f64) -> Option<f64> {
        (self.value > 0.0 && value.is_finite()).then(|| value / self.value)
    }
}

/// Values of many nodes, each of which is compared with the others.
#[derive(Debug)]
pub(super) struct Others {
    sorted: Vec<f64>,
    /// `sums[i]` is the sum of the first `i` of `sorted`.
    sums: Vec<f64>,
    /// The place of each value in `sorted`.
    places: Vec<usize>,
}

impl Others {
    pub(super) fn new(values: &[f64]) -> Self {
        let mut order: Vec<usize> = (0..values.len()).collect();
        let value = |index: &usize| values.get(*index).copied().unwrap_or_default();
        order.sort_by(|a, b| value(a).total_cmp(&value(b)));
        let mut places = vec![0; values.len()];
        let (mut sums, mut sum) = (vec![0.0], 0.0);
        for (place, index) in order.iter().enumerate() {
            if let Some(of_index) = places.get_mut(*index) {
                *of_index = place;
            }
            sum += value(index);
            sums.push(sum);
        }
        Self { sorted: order.iter().map(value).collect(), sums, places }
    }

    /// The mean of all but these. Outliers are determined by the middle, which is computed from the two values in the
    /// middle, the lower first; of an odd number they are the same. `None` where nothing is left, or there is no
    /// middle.
    #[expect(clippy::cast_precision_loss, reason = "counts of tests")]
    pub(super) fn mean_without(
        &self,
        without: &[usize],
        middle: impl Fn(usize, f64, f64) -> Option<f64>,
    ) -> Option<Mean> {
        let mut out: Vec<usize> = without.iter().filter_map(|it| self.places.get(*it).copied()).collect();
        out.sort_unstable();
        out.dedup();
        let count = self.sorted.len() - out.len();
        let last = count.checked_sub(1)?;
        let value = |place: usize| self.sorted.get(place).copied().unwrap_or(f64::INFINITY);
        let nth = |nth: usize| value(out.iter().fold(nth, |place, out| place + usize::from(*out <= place)));
        let middle = middle(count, nth(last / 2), nth(count / 2))?;
        let from = self.sorted.partition_point(|other| *other < middle / OUTLIER);
        let below = |limit: f64| {
            let to = self.sorted.partition_point(|other| *other <= limit);
            let out = out.iter().filter(|place| (from..to).contains(place));
            let (out_count, out_sum) =
                out.fold((0, 0.0), |(count, sum), place| (count + 1, sum + value(*place)));
            let sum = |to: usize| self.sums.get(to).copied().unwrap_or_default();
            let counted = to.saturating_sub(from + out_count);
            (counted > 0).then(|| ((sum(to) - sum(from) - out_sum) / (counted as f64), counted))
        };
        // Values that scatter have their mean above their middle.
        let mut greatest = middle * OUTLIER;
        for _ in 1..STEPS {
            greatest = below(greatest).map_or(greatest, |(mean, _)| greatest.max(mean * OUTLIER));
        }
        let (mean, counted) = below(greatest)?;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Some(Mean {
            value: whole_nanos(mean),
            counted: number(counted),
            left_out: number(count - counted),
            least: middle / OUTLIER,
            greatest,
        })
    }
}

fn whole_nanos(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e9
}

/// The mean compute time of the others, for each value. With one other there is none, for either of the two may be
/// the wrong one; nor with two others of which one takes more than twice as long as the other. One wrong clock among
/// three or more moves the middle from one right value to the next.
pub(super) fn means_of_others(values: &[f64]) -> Vec<Option<Mean>> {
    let others = Others::new(values);
    let middle = |count: usize, low: f64, high: f64| match count {
        0 | 1 => None,
        2 => (high <= OUTLIER * low).then(|| f64::midpoint(low, high)),
        _ => Some(f64::midpoint(low, high)),
    };
    (0..values.len()).map(|index| others.mean_without(&[index], middle)).collect()
}

/// The time of a node by itself: the mean of its times, from the shortest on, up to the first that is over twice the
/// mean of those before it, which is due to a partner. `None` for none.
pub(super) fn own_time(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    let mut times = times.into_iter();
    let (mut count, mut sum) = (1.0, times.next()?);
    for time in times {
        if time > OUTLIER * (sum / count) {
            break;
        }
        sum += time;
        count += 1.0;
    }
    Some(sum / count)
}

/// The scatter of times, as the deviation of their logarithms; by the median, so that outliers do not widen it.
/// Few times are taken to scatter wider than they do: they may agree by chance. `None` below four.
#[expect(clippy::cast_precision_loss, reason = "counts of tests")]
pub(super) fn scatter(values: &[f64]) -> Option<f64> {
    let mut logs: Vec<f64> = values.iter().filter(|value| **value > 0.0).map(|value| value.ln()).collect();
    if logs.len() < 4 {
        return None;
    }
    let middle = median(&mut logs);
    let mut distances: Vec<f64> = logs.iter().map(|log| (log - middle).abs()).collect();
    Some(MAD_TO_SIGMA * median(&mut distances) * (1.0 + DOUBT / (logs.len() as f64).sqrt()))
}

/// Of a list that is not empty.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// How many samples of one node must all be above `ratio`, so that 0.01 of all `nodes` healthy ones are called slow
/// by chance when times scatter by `sigma`. 2 to 6.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped"
)]
pub(super) fn confirmations(nodes: usize, ratio: f64, sigma: Option<f64>) -> u32 {
    let Some(sigma) = sigma else { return UNKNOWN };
    if sigma <= 1e-6 {
        return FEWEST;
    }
    let chance = ln_tail(ratio.max(1.0 + 1e-9).ln() / sigma);
    let samples = (FALSE_STRAGGLERS / (nodes.max(1) as f64)).ln() / chance;
    samples.ceil().clamp(f64::from(FEWEST), f64::from(MAX_SAMPLES)) as u32
}

/// ln P(Z > z) for z >= 0, to about 1 %.
fn ln_tail(z: f64) -> f64 {
    // Borjesson and Sundberg 1979: Q(z) ~ exp(-z^2 / 2) / ((0.661 z + 0.339 sqrt(z^2 + 5.51)) sqrt(2 pi)).
    let slope = 0.661 * z + 0.339 * (z * z + 5.51).sqrt();
    -z * z / 2.0 - (slope * (2.0 * PI).sqrt()).ln()
}

/// As thousandths, for the record.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, as it should"
)]
pub(super) fn permille(ratio: f64) -> u32 {
    (ratio * 1000.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each value over the mean of the others.
    fn ratios(values: &[f64]) -> Vec<Option<f64>> {
        let means = means_of_others(values).into_iter().zip(values);
        means.map(|(mean, value)| mean?.ratio_of(*value)).collect()
    }

    #[test]
    fn two_slow_nodes_do_not_hide_each_other() {
        let means = means_of_others(&[1.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
        let [mean, healthy] = [5, 0].map(|index| means[index].expect("there are others"));
        assert_eq!((mean.value, mean.counted, mean.left_out), (1.0, 4, 1));
        assert_eq!((healthy.value, healthy.counted, healthy.left_out), (1.0, 3, 2));
        assert!(mean.is_outlier(3.0) && !mean.is_outlier(1.0));
    }

    /// A clock that shows nothing or an hour, in any place: its partners are as fast as ever.
    #[test]
    fn one_wrong_clock_is_no_evidence_against_others() {
        for wrong in [1e-9, 3600.0] {
            for count in 2..12 {
                let mut values = vec![0.05; count];
                values[count / 2] = wrong;
                for (index, ratio) in ratios(&values).into_iter().enumerate() {
                    let is_odd = ratio.is_some_and(|ratio| (ratio - 1.0).abs() > 1e-9);
                    assert!(!is_odd || index == count / 2, "{values:?}: {index} {ratio:?}");
                }
            }
        }
    }

    #[test]
    fn a_pace_is_independent_of_partners() {
        assert_eq!(own_time(vec![1.0, 4.0, 2.0, 9.0]), Some(1.5));
        assert_eq!(own_time(vec![1.0, 2.0, 2.4]), Some(1.8));
        assert_eq!(own_time(vec![4.0]), Some(4.0));
        assert_eq!(own_time(Vec::new()), None);
    }

    #[test]
    fn more_scatter_takes_more_samples() {
        let samples = |sigma| confirmations(1000, 2.0, Some(sigma));
        assert_eq!([0.0, 0.1, 0.2, 0.3, 0.5, 3.0].map(samples), [2, 2, 2, 3, 5, 6]);
        assert_eq!(confirmations(1000, 2.0, None), UNKNOWN);
    }

    #[test]
    fn nothing_to_compare_with_is_no_ratio() {
        assert_eq!(ratios(&[5.0]), [None]);
        assert_eq!(ratios(&[5.0, 15.0]), [None, None]);
        assert_eq!(ratios(&[5.0, 5.0, 15.0]), [None, None, Some(3.0)]);
        assert_eq!(ratios(&[0.0, 0.0, 7.0]), [None, None, None]);
        assert!(ratios(&[]).is_empty());
    }
}
