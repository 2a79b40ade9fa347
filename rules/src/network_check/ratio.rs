//! How much slower than the others: the leave-one-out ratio, and how often it must be seen.

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
pub(super) const MOST: u32 = 6;
/// Where too few were timed to say how they scatter: three false ones in a row are rare even where one in ten is.
const UNKNOWN: u32 = 3;

/// Values of many nodes, of which each is held against the others.
#[derive(Debug)]
pub(super) struct Others {
    sorted: Vec<f64>,
    /// `sums[i]` is the sum of the first `i` of `sorted`.
    sums: Vec<f64>,
    /// Where in `sorted` each value stands.
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

    /// The two in the middle of all but these, the lower first; of an odd number the same twice. `None` where nothing is
    /// left.
    pub(super) fn middle_without(&self, without: &[usize]) -> Option<(f64, f64)> {
        let left_out = self.places_of(without);
        let count = self.sorted.len() - left_out.len();
        let last = count.checked_sub(1)?;
        let nth = |nth: usize| {
            let place = left_out.iter().fold(nth, |place, out| place + usize::from(*out <= place));
            self.sorted.get(place).copied().unwrap_or(f64::INFINITY)
        };
        Some((nth(last / 2), nth(count / 2)))
    }

    /// The mean of all but these, of which those above `limit` do not count; `None` where nothing is left.
    #[expect(clippy::cast_precision_loss, reason = "counts of tests")]
    pub(super) fn mean_without(&self, without: &[usize], limit: f64) -> Option<f64> {
        let kept = self.sorted.partition_point(|other| *other <= limit);
        let left_out = self.places_of(without);
        let out = left_out.iter().filter(|place| **place < kept);
        let out_of_sum: f64 = out.clone().filter_map(|place| self.sorted.get(*place)).sum();
        let sum = self.sums.get(kept).copied().unwrap_or_default() - out_of_sum;
        let count = kept.saturating_sub(out.count());
        (count > 0).then(|| sum / (count as f64))
    }

    /// Where these stand, ascending.
    fn places_of(&self, indices: &[usize]) -> Vec<usize> {
        let mut places: Vec<usize> =
            indices.iter().filter_map(|index| self.places.get(*index).copied()).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// `value` over what is usual. 1 where there is nothing to compare with.
pub(super) fn over(value: f64, usual: Option<f64>) -> f64 {
    usual.filter(|usual| *usual > 0.0 && value.is_finite()).map_or(1.0, |usual| value / usual)
}

/// Each value over the mean of the others, of which those above twice their median do not count: outliers do not hide
/// each other. Without outliers that is "the time over the mean of the other nodes".
pub(super) fn loo_ratios(values: &[f64]) -> Vec<f64> {
    let others = Others::new(values);
    let mean = |index: usize| {
        let (low, high) = others.middle_without(&[index])?;
        others.mean_without(&[index], 2.0 * f64::midpoint(low, high))
    };
    values.iter().enumerate().map(|(index, value)| over(*value, mean(index))).collect()
}

/// A quarter of the times is at most as long as this; of up to four it is the shortest. `None` for none.
pub(super) fn lower_quartile(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len().checked_sub(1)? / 4).copied()
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
    samples.ceil().clamp(f64::from(FEWEST), f64::from(MOST)) as u32
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

    #[test]
    fn two_slow_ones_do_not_hide_each_other() {
        let ratios = loo_ratios(&[1.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
        assert!(ratios[4] > 2.9 && ratios[5] > 2.9 && ratios[0] <= 1.0, "{ratios:?}");
    }

    #[test]
    fn more_scatter_takes_more_samples() {
        let samples = |sigma| confirmations(1000, 2.0, Some(sigma));
        assert_eq!([0.0, 0.1, 0.2, 0.3, 0.5, 3.0].map(samples), [2, 2, 2, 3, 5, 6]);
        assert_eq!(confirmations(1000, 2.0, None), UNKNOWN);
    }

    #[test]
    fn nothing_to_compare_with_is_no_ratio() {
        assert_eq!(loo_ratios(&[5.0]), [1.0]);
        assert_eq!(loo_ratios(&[0.0, 0.0, 7.0]), [0.0, 0.0, 1.0]);
        assert!(loo_ratios(&[]).is_empty());
    }
}
