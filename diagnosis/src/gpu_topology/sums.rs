//! Sums over sets of accelerators.

use std::cmp::Reverse;

use super::{
    GpuSet, Matrix,
    rings::{Score, units},
};

/// Sums that every set needs, by halves of it, so that thousands of sets are cheap.
#[derive(Debug)]
pub(super) struct Sums {
    mbps: Vec<[u32; 512]>,
    links: Vec<[u32; 512]>,
    /// The devices of each NUMA node, and those of no known one.
    nodes: Vec<u16>,
    /// One link of the fastest kind, in MB/s.
    fastest: u32,
}

impl Sums {
    pub(super) fn of(matrix: &Matrix) -> Self {
        let mut numa: Vec<Option<u32>> = (0..matrix.size()).map(|gpu| matrix.numa(gpu)).collect();
        numa.sort_unstable();
        numa.dedup();
        let on = |node: Option<u32>| (0..matrix.size()).filter(move |gpu| matrix.numa(*gpu) == node);
        Self {
            mbps: (0..matrix.size())
                .map(|gpu| halves(matrix.size(), |other| matrix.mbps(gpu, other)))
                .collect(),
            links: (0..matrix.size())
                .map(|gpu| halves(matrix.size(), |other| matrix.links(gpu, other)))
                .collect(),
            nodes: numa.into_iter().map(|node| on(node).fold(0, |all, gpu| all | 1 << gpu)).collect(),
            fastest: units(matrix, GpuSet::first(matrix.size())).max().unwrap_or(0),
        }
    }

    /// What is known without a search for rings.
    pub(super) fn without_rings(&self, set: GpuSet) -> Score {
        let (mut twice, mut left) = (0_u64, set.bits());
        while left != 0 {
            twice += u64::from(sum(&self.mbps[left.trailing_zeros() as usize], set));
            left &= left - 1;
        }
        let nodes = self.nodes.iter().filter(|node| **node & set.bits() != 0).count();
        let numa_nodes = Reverse(u32::try_from(nodes).unwrap_or(u32::MAX));
        let total_mbps = u32::try_from(twice / 2).unwrap_or(u32::MAX);
        Score { ring_mbps: 0, total_mbps, numa_nodes, capacity_links: 0 }
    }

    /// An upper bound of the score of a set of links among these, in MB/s, where there is no switch.
    pub(super) fn bound(&self, set: GpuSet) -> u32 {
        let least = set.iter().map(|gpu| sum(&self.links[gpu], set)).min().unwrap_or(0);
        let rings = if set.len() == 2 { least } else { least / 2 };
        rings.saturating_mul(self.fastest)
    }
}

/// The sums of one row over all subsets of the lower eight, then of the higher eight.
fn halves(size: usize, of: impl Fn(usize) -> u32) -> [u32; 512] {
    let mut sums = [0_u32; 512];
    for half in 0..2 {
        for set in 1..256_usize {
            let gpu = half * 8 + set.trailing_zeros() as usize;
            let value = if gpu < size { of(gpu) } else { 0 };
            sums[half * 256 + set] = sums[half * 256 + (set & (set - 1))].saturating_add(value);
        }
    }
    sums
}

fn sum(halves: &[u32; 512], set: GpuSet) -> u32 {
    let [low, high] = set.bits().to_le_bytes();
    halves[usize::from(low)].saturating_add(halves[256 + usize::from(high)])
}
