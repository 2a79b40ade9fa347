//! The rings of a set: whether there is one, its slowest hop, its order, and the score of the set.
//!
//! Whether a set has a ring at all is answered for all sets at once: `ends[set]` are the devices at which a path can
//! end that starts at the set's lowest device and visits all of it once.

use std::cmp::Reverse;

use super::{
    GpuSet, MAX_GPUS, Matrix,
    packing::{Links, Steps},
    sums::Sums,
};

/// The score of a set. The greater is the better: rings first, then all pairs, then few NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Score {
    /// The bandwidth of its rings together, in MB/s: that of one link for each ring of links, or that of the slowest
    /// hop where there is no such ring; for one device 0.
    pub ring_mbps: u32,
    /// The bandwidth of all its pairs, in MB/s.
    pub total_mbps: u32,
    /// The number of NUMA nodes; all that are unknown count as one.
    pub numa_nodes: Reverse<u32>,
    /// The number of rings of direct links at once; for two devices, their links; behind a switch, the links of each.
    /// 0 when no ring of links visits all.
    pub capacity_links: u32,
}

/// Adjacency: for each device, those that it is connected to.
pub(super) type Adjacent = [u16; MAX_GPUS];

/// The links that satisfy a condition.
pub(super) fn adjacent(passes: impl Fn(usize, usize) -> bool) -> Adjacent {
    let mut adjacent = [0; MAX_GPUS];
    for (one, row) in adjacent.iter_mut().enumerate() {
        let others = (0..MAX_GPUS).filter(|other| *other != one && passes(one, *other));
        *row = others.fold(0, |row, other| row | 1 << other);
    }
    adjacent
}

/// All sets of up to so many devices that have a ring.
#[derive(Debug)]
pub(super) struct Rings {
    adjacent: Adjacent,
    /// Devices that paths connect: no ring leaves its island.
    islands: Vec<Island>,
    /// By set; empty as long as every island is [complete](Island::is_complete).
    ends: Vec<u16>,
}

#[derive(Debug, Clone, Copy)]
struct Island {
    all: u16,
    /// All are adjacent: every set has a ring, and paths end anywhere.
    is_complete: bool,
}

impl Rings {
    /// The sets of at most `largest` of these devices.
    pub(super) fn new(adjacent: Adjacent, subset: GpuSet, largest: usize) -> Self {
        let islands = islands(&adjacent, subset.bits());
        let mut ends = Vec::new();
        for island in islands.iter().filter(|island| !island.is_complete) {
            ends.resize(1 << MAX_GPUS, 0_u16);
            let mut set = 0_u16;
            loop {
                // The next larger subset.
                set = set.wrapping_sub(island.all) & island.all;
                if set == 0 {
                    break;
                }
                if set.count_ones() as usize <= largest {
                    ends[usize::from(set)] = ends_of(&adjacent, &ends, set);
                }
            }
        }
        Self { adjacent, islands, ends }
    }

    pub(super) fn has_ring(&self, set: u16) -> bool {
        let lowest = set.trailing_zeros() as usize;
        match self.islands.iter().find(|island| island.all >> lowest & 1 == 1) {
            _ if set.count_ones() <= 1 => true,
            Some(island) if set & !island.all != 0 => false,
            Some(island) if island.is_complete => true,
            Some(_) => self.ends[usize::from(set)] & self.adjacent[lowest] != 0,
            None => false,
        }
    }

    /// Where paths through a set that start at its lowest device end.
    fn ends(&self, set: u16) -> u16 {
        let lowest = set.trailing_zeros();
        match self.islands.iter().find(|island| island.all >> lowest & 1 == 1) {
            Some(Island { is_complete: false, .. }) => self.ends[usize::from(set)],
            _ if set.count_ones() == 1 => set,
            _ => set & (set - 1),
        }
    }

    /// The ring that comes first as a list. It starts at the lowest device, and runs in the direction that has the
    /// lower one second.
    fn smallest(&self, set: u16) -> Vec<usize> {
        let lowest = set.trailing_zeros() as usize;
        let mut ring = vec![lowest];
        // Seen backwards the rest of the ring is a path from the lowest device through all that is left.
        let (mut at, mut left) = (lowest, set);
        for _ in 1..set.count_ones() {
            let next = (self.ends(left) & self.adjacent[at]).trailing_zeros() as usize;
            ring.push(next);
            left &= !(1 << next);
            at = next;
        }
        ring
    }
}

fn ends_of(adjacent: &Adjacent, ends: &[u16], set: u16) -> u16 {
    let mut others = set & (set - 1);
    if others == 0 {
        return set;
    }
    let mut found = 0;
    while others != 0 {
        let other = others & others.wrapping_neg();
        if ends[usize::from(set ^ other)] & adjacent[other.trailing_zeros() as usize] != 0 {
            found |= other;
        }
        others ^= other;
    }
    found
}

fn islands(adjacent: &Adjacent, subset: u16) -> Vec<Island> {
    let (mut islands, mut left) = (Vec::new(), subset);
    while left != 0 {
        let (mut all, mut grown) = (0, left & left.wrapping_neg());
        while all != grown {
            all = grown;
            grown = (0..MAX_GPUS)
                .filter(|gpu| all >> gpu & 1 == 1)
                .fold(all, |all, gpu| all | adjacent[gpu] & subset);
        }
        let is_next_to_all = |gpu: usize| (adjacent[gpu] | 1 << gpu) & all == all;
        let is_complete = (0..MAX_GPUS).filter(|gpu| all >> gpu & 1 == 1).all(is_next_to_all);
        islands.push(Island { all, is_complete });
        left &= !all;
    }
    islands
}

/// The distinct bandwidths of all pairs among these devices, descending, without 0.
pub(super) fn levels(gpus: GpuSet, of: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    let pairs = gpus
        .iter()
        .flat_map(|one| gpus.iter().filter(move |other| *other > one).map(move |other| (one, other)));
    let mut levels: Vec<u32> = pairs.map(|(one, other)| of(one, other)).filter(|level| *level > 0).collect();
    levels.sort_unstable_by_key(|level| Reverse(*level));
    levels.dedup();
    levels
}

/// One set by itself, its devices numbered from 0.
struct Subset {
    gpus: Vec<usize>,
}

impl Subset {
    fn new(set: GpuSet) -> Self {
        Self { gpus: set.iter().collect() }
    }

    fn all(&self) -> u16 {
        GpuSet::first(self.gpus.len()).bits()
    }

    /// The highest bandwidth that every hop of some ring reaches, and these rings. 0 and all rings, if there is none.
    fn best(&self, of: impl Fn(usize, usize) -> u32) -> (u32, Rings) {
        let size = self.gpus.len();
        let at_least = |level: u32| {
            let is_hop = |one: usize, other: usize| match (self.gpus.get(one), self.gpus.get(other)) {
                (Some(one), Some(other)) => of(*one, *other) >= level,
                _ => false,
            };
            Rings::new(adjacent(is_hop), GpuSet::first(size), size)
        };
        let levels = levels(self.gpus.iter().copied().collect(), &of);
        // The lower the level, the more hops: a set with a ring at one level has it at all lower ones.
        let place = levels.partition_point(|level| !at_least(*level).has_ring(self.all()));
        match levels.get(place) {
            Some(level) => (*level, at_least(*level)),
            None => (0, at_least(0)),
        }
    }
}

/// The order of a set in its best ring: that with the fastest slowest hop, and of these the first as a list.
pub(super) fn ring(matrix: &Matrix, set: GpuSet) -> Vec<usize> {
    let subset = Subset::new(set);
    if subset.gpus.len() <= 2 {
        return subset.gpus;
    }
    let (_, rings) = subset.best(|one, other| matrix.mbps(one, other));
    rings.smallest(subset.all()).into_iter().map(|place| subset.gpus[place]).collect()
}

/// The score of a set.
pub(super) fn score(matrix: &Matrix, sums: &Sums, set: GpuSet, steps: &mut Steps) -> Score {
    let subset = Subset::new(set);
    if subset.gpus.len() < 2 {
        return sums.without_rings(set);
    }
    let (links, _) = subset.best(|one, other| matrix.links(one, other));
    if links > 0 {
        return with_rings(matrix, sums, set, links, steps);
    }
    let (ring_mbps, _) = subset.best(|one, other| matrix.mbps(one, other));
    Score { ring_mbps, ..sums.without_rings(set) }
}

/// The score of a set that has a ring of links; the hops of its best one have so many.
pub(super) fn with_rings(matrix: &Matrix, sums: &Sums, set: GpuSet, links: u32, steps: &mut Steps) -> Score {
    let gpus: Vec<usize> = set.iter().collect();
    let capacity_links = if matrix.is_switched() { links } else { Links::of(matrix, &gpus).rings(steps) };
    let slowest = units(matrix, set).min().unwrap_or(0);
    Score { capacity_links, ring_mbps: capacity_links.saturating_mul(slowest), ..sums.without_rings(set) }
}

/// The bandwidth of one link of each linked pair, in MB/s.
pub(super) fn units(matrix: &Matrix, set: GpuSet) -> impl Iterator<Item = u32> {
    let pairs = set.iter().flat_map(move |one| set.iter().map(move |other| (one, other)));
    let linked = pairs.filter(|(one, other)| matrix.links(*one, *other) > 0);
    linked.map(|(one, other)| matrix.mbps(one, other) / matrix.links(one, other))
}
