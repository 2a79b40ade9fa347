//! Nodes that compute slowly. Known before any other node was asked, and measured again while the first round is on.

use std::time::Duration;

use super::{known::Known, ratio};

/// A node's compute time against the others'.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The lowest of its samples, over the mean of the others.
    pub(super) lowest: f64,
    /// The lowest and the mean themselves.
    pub(super) own: Duration,
    pub(super) others: Duration,
    pub(super) samples: u32,
    /// Each of enough samples was over the policy's ratio.
    pub(super) is_straggler: bool,
}

/// The paces of those that measured, by node, and how many samples a verdict takes.
pub(super) fn paces(known: &Known) -> (Vec<Option<Pace>>, u32) {
    let time = |node: &super::known::Node| {
        node.local.compute.filter(|time| node.local.fault.is_none() && !time.is_zero())
    };
    let times: Vec<Option<Duration>> = known.nodes.iter().map(time).collect();
    let measured: Vec<f64> = times.iter().flatten().map(Duration::as_secs_f64).collect();
    let threshold = known.policy.straggler_ratio();
    let needed = ratio::confirmations(measured.len(), threshold, ratio::scatter(&measured));
    let mut ratios = ratio::loo_ratios(&measured).into_iter();
    let pace = |(time, node): (&Option<Duration>, &super::known::Node)| {
        let own = (*time)?;
        let ratio = ratios.next()?;
        let others = own.as_secs_f64() / ratio;
        let least = node.compute_again.iter().copied().fold(own, Duration::min);
        let lowest = if least == own { ratio } else { least.as_secs_f64() / others };
        let samples = u32::try_from(node.compute_again.len()).unwrap_or(u32::MAX).saturating_add(1);
        Some(Pace {
            lowest,
            own: least,
            others: Duration::try_from_secs_f64(others).unwrap_or(Duration::MAX),
            samples,
            is_straggler: samples >= needed && lowest > threshold,
        })
    };
    (times.iter().zip(&known.nodes).map(pace).collect(), needed)
}

/// Nodes that were slow once, and how often they measure again.
pub(super) fn suspects(known: &Known) -> Vec<(u32, u32)> {
    let (paces, needed) = paces(known);
    let threshold = known.policy.straggler_ratio();
    let is_slow =
        |node: &u32| paces.get(*node as usize).copied().flatten().is_some_and(|pace| pace.lowest > threshold);
    known.live().filter(is_slow).map(|node| (node, needed.saturating_sub(1))).collect()
}
