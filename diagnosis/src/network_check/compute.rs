//! Nodes that compute slowly. Known before any other node was asked, and measured again during the first round.

use std::{collections::BTreeMap, time::Duration};

use super::{
    ComputeFinding, ComputeKind, ComputeTime,
    check_log::{CheckLog, Node},
    ratio::{self, Mean},
};

/// A node's compute time against the others' of its kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComputeRatio {
    /// The shortest of its samples.
    pub(super) shortest: Duration,
    /// The mean of the others.
    pub(super) others: Mean,
    /// The shortest over that mean.
    pub(super) lowest: f64,
    pub(super) samples: u32,
    /// The number of samples that a verdict takes.
    pub(super) needed: u32,
    /// Each of enough samples was over the policy's ratio.
    pub(super) is_straggler: bool,
}

/// The first measurement of a node, if it can be compared with others: not of a node with a fault of its own.
fn first(node: &Node) -> Option<&ComputeTime> {
    let compute = node.local.compute.as_ref().filter(|_| node.local.fault.is_none());
    compute.filter(|compute| !compute.time.is_zero())
}

/// The ratios of nodes with a measurement. None where too few others timed the same, or they disagree.
pub(super) fn compute_ratios(log: &CheckLog) -> Vec<Option<ComputeRatio>> {
    let mut kinds: BTreeMap<&ComputeKind, Vec<(usize, Duration)>> = BTreeMap::new();
    for (number, node) in log.nodes.iter().enumerate() {
        if let Some(ComputeTime { time, kind }) = first(node) {
            kinds.entry(kind).or_default().push((number, *time));
        }
    }
    // False stragglers are counted over the whole check.
    let measured = kinds.values().map(Vec::len).sum();
    let mut ratios = vec![None; log.nodes.len()];
    for times in kinds.values() {
        of_one_kind(log, measured, times, &mut ratios);
    }
    ratios
}

fn of_one_kind(
    log: &CheckLog,
    measured: usize,
    times: &[(usize, Duration)],
    ratios: &mut [Option<ComputeRatio>],
) {
    let seconds: Vec<f64> = times.iter().map(|(_, time)| time.as_secs_f64()).collect();
    let threshold = log.policy.straggler_ratio();
    let needed = ratio::confirmations(measured, threshold, ratio::scatter(&seconds));
    for ((number, own), others) in times.iter().zip(ratio::means_of_others(&seconds)) {
        let (Some(node), Some(ratio)) = (log.nodes.get(*number), ratios.get_mut(*number)) else { continue };
        let shortest = node.compute_again.iter().copied().fold(*own, Duration::min);
        let samples = u32::try_from(node.compute_again.len()).unwrap_or(u32::MAX).saturating_add(1);
        *ratio = others.and_then(|others| {
            let lowest = others.ratio_of(shortest.as_secs_f64())?;
            let is_straggler = samples >= needed && lowest > threshold;
            Some(ComputeRatio { shortest, others, lowest, samples, needed, is_straggler })
        });
    }
}

/// The finding on a node's compute times.
pub(super) fn finding(log: &CheckLog, number: u32, ratio: Option<ComputeRatio>) -> Option<ComputeFinding> {
    let node = log.node(number)?;
    let ComputeTime { time, kind } = first(node)?;
    let others = ratio.map(|ratio| ratio.others);
    let baseline = |mean: Mean| Duration::try_from_secs_f64(mean.value).unwrap_or(Duration::MAX);
    Some(ComputeFinding {
        kind: kind.clone(),
        samples: [time].into_iter().chain(&node.compute_again).copied().collect(),
        baseline: others.map(baseline),
        counted: others.map_or(0, |others| others.counted),
        left_out: others.map_or(0, |others| others.left_out),
    })
}

/// The first outliers of a node's mean, with their times, ascending.
pub(super) fn outliers(log: &CheckLog, number: u32, mean: Mean, most: usize) -> Vec<(u32, Duration)> {
    let own = log.node(number).and_then(first);
    let others = (0..).zip(&log.nodes).filter(|(other, _)| *other != number);
    let alike = others.filter_map(|(other, node)| {
        let theirs = first(node).filter(|theirs| own.is_some_and(|own| own.kind == theirs.kind))?;
        mean.is_outlier(theirs.time.as_secs_f64()).then_some((other, theirs.time))
    });
    alike.take(most.min(mean.left_out as usize)).collect()
}

/// Nodes that were slow once, and how often they measure again.
pub(super) fn suspects(log: &CheckLog) -> Vec<(u32, u32)> {
    let ratios = compute_ratios(log);
    let threshold = log.policy.straggler_ratio();
    let is_suspect = |node: u32| {
        let ratio = ratios.get(node as usize).copied().flatten()?;
        (ratio.lowest > threshold).then_some((node, ratio.needed.saturating_sub(1)))
    };
    log.live().filter_map(is_suspect).collect()
}

/// The repeated times of a node that can be compared with its first: of the same kind.
pub(super) fn alike(first: Option<&ComputeTime>, again: Vec<ComputeTime>) -> impl Iterator<Item = Duration> {
    again
        .into_iter()
        .filter(move |again| first.is_some_and(|first| first.kind == again.kind))
        .map(|again| again.time)
}
