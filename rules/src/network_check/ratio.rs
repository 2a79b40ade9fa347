//! How much slower than the others: the leave-one-out ratio, and how often it must be seen.

use std::f64::consts::PI;

/// False stragglers that a whole check may expect.
const FALSE_STRAGGLERS: f64 = 0.01;

/// The mean absolute deviation of a normal distribution is this much smaller than its standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;

/// Fewest and most samples that a verdict takes.
pub(super) const FEWEST: u32 = 2;
pub(super) const MOST: u32 = 6;

/// Each value over the mean of the others, of which those above twice the median of the others do not count. Without
/// outliers that is "the time over the mean of the other nodes", and outliers do not hide each other. 1 where
/// there is nothing to compare with.
pub(super) fn loo_ratios(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut sums = Vec::with_capacity(sorted.len() + 1);
    let mut sum = 0.0;
    sums.push(sum);
    for value in &sorted {
        sum += value;
        sums.push(sum);
    }
    values.iter().map(|value| loo_ratio(*value, &sorted, &sums)).collect()
}

/// `sums[i]` is the sum of the first `i` of `sorted`, of which `value` is one.
#[expect(clippy::cast_precision_loss, reason = "counts of tests")]
fn loo_ratio(value: f64, sorted: &[f64], sums: &[f64]) -> f64 {
    let own = sorted.partition_point(|other| other.total_cmp(&value).is_lt());
    let others = sorted.len().saturating_sub(1);
    if others == 0 {
        return 1.0;
    }
    let other = |index: usize| sorted.get(index + usize::from(index >= own)).copied().unwrap_or(value);
    let median = match others % 2 {
        1 => other(others / 2),
        _ => f64::midpoint(other(others / 2 - 1), other(others / 2)),
    };
    let kept = sorted.partition_point(|other| *other <= 2.0 * median);
    let (mut count, mut sum) = (kept, sums.get(kept).copied().unwrap_or(0.0));
    if own < kept {
        count -= 1;
        sum -= value;
    }
    let mean = sum / (count.max(1) as f64);
    if mean > 0.0 && value.is_finite() { value / mean } else { 1.0 }
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
    Some(MAD_TO_SIGMA * median(&mut distances) * (1.0 + 2.0 / (logs.len() as f64)))
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
    let Some(sigma) = sigma.filter(|sigma| *sigma > 1e-6) else { return FEWEST };
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
        assert_eq!(confirmations(1000, 2.0, None), FEWEST);
    }

    #[test]
    fn nothing_to_compare_with_is_no_ratio() {
        assert_eq!(loo_ratios(&[5.0]), [1.0]);
        assert_eq!(loo_ratios(&[0.0, 0.0, 7.0]), [0.0, 0.0, 1.0]);
        assert!(loo_ratios(&[]).is_empty());
    }
}
