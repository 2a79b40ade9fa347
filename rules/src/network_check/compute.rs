//! Nodes that compute slowly. Known before any other node was asked, and measured again while the first round is on.

use std::{collections::BTreeMap, time::Duration};

use super::{ComputeKind, ComputeTime, known::Known, ratio};

/// A node's compute time against the others' of its kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The lowest of its samples, over the mean of the others.
    pub(super) lowest: f64,
    /// The lowest and the mean themselves.
    pub(super) own: Duration,
    pub(super) others: Duration,
    pub(super) samples: u32,
    /// So many samples a verdict takes.
    pub(super) needed: u32,
    /// Each of enough samples was over the policy's ratio.
    pub(super) is_straggler: bool,
}

/// The paces of those that measured, by node. Who is the only one of its kind has none: there is nobody to compare with.
pub(super) fn paces(known: &Known) -> Vec<Option<Pace>> {
    let mut kinds: BTreeMap<&ComputeKind, Vec<(usize, Duration)>> = BTreeMap::new();
    for (number, node) in known.nodes.iter().enumerate() {
        let compute = node.local.compute.as_ref().filter(|_| node.local.fault.is_none());
        if let Some(ComputeTime { time, kind }) = compute.filter(|compute| !compute.time.is_zero()) {
            kinds.entry(kind).or_default().push((number, *time));
        }
    }
    // False stragglers are counted over the whole check.
    let measured = kinds.values().map(Vec::len).sum();
    let mut paces = vec![None; known.nodes.len()];
    for times in kinds.values().filter(|times| times.len() > 1) {
        of_one_kind(known, measured, times, &mut paces);
    }
    paces
}

fn of_one_kind(known: &Known, measured: usize, times: &[(usize, Duration)], paces: &mut [Option<Pace>]) {
    let seconds: Vec<f64> = times.iter().map(|(_, time)| time.as_secs_f64()).collect();
    let threshold = known.policy.straggler_ratio();
    let needed = ratio::confirmations(measured, threshold, ratio::scatter(&seconds));
    for ((number, own), ratio) in times.iter().zip(ratio::loo_ratios(&seconds)) {
        let (Some(node), Some(pace)) = (known.nodes.get(*number), paces.get_mut(*number)) else { continue };
        let others = own.as_secs_f64() / ratio;
        let least = node.compute_again.iter().copied().fold(*own, Duration::min);
        let lowest = if least == *own { ratio } else { least.as_secs_f64() / others };
        let samples = u32::try_from(node.compute_again.len()).unwrap_or(u32::MAX).saturating_add(1);
        *pace = Some(Pace {
            lowest,
            own: least,
            others: Duration::try_from_secs_f64(others).unwrap_or(Duration::MAX),
            samples,
            needed,
            is_straggler: samples >= needed && lowest > threshold,
        });
    }
}

/// Nodes that were slow once, and how often they measure again.
pub(super) fn suspects(known: &Known) -> Vec<(u32, u32)> {
    let paces = paces(known);
    let threshold = known.policy.straggler_ratio();
    let is_suspect = |node: u32| {
        let pace = paces.get(node as usize).copied().flatten()?;
        (pace.lowest > threshold).then_some((node, pace.needed.saturating_sub(1)))
    };
    known.live().filter_map(is_suspect).collect()
}

/// Those of the times of a node that measured again which may be held against its first: of the same kind.
pub(super) fn alike(first: Option<&ComputeTime>, again: Vec<ComputeTime>) -> impl Iterator<Item = Duration> {
    again
        .into_iter()
        .filter(move |again| first.is_some_and(|first| first.kind == again.kind))
        .map(|again| again.time)
}
