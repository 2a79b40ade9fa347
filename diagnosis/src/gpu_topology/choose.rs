//! The best `k` of the accelerators that are free.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use super::{
    GpuSet, Matrix,
    packing::Steps,
    rings::{self, Rings, Score, adjacent, levels, with_rings},
    sums::Sums,
};

/// The limit of the search for further rings in one choice: some milliseconds. No existing box takes a thousandth of
/// it.
const STEPS: u32 = 100_000;

/// The limit of a ranking of all sets.
const RANKING_STEPS: u32 = 100_000_000;

/// The goal of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// The best for this job.
    Topology,
    /// That this job and the next one of its size are both served: the weaker of the two first, then both together.
    /// Of equal ones this job takes the weaker, and the highest numbers, as a job without a choice takes the lowest.
    Pack,
}

/// A choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub set: GpuSet,
    /// The same as the best ring: each next to those it has the fastest link to.
    pub ring: Vec<usize>,
    pub score: Score,
    /// The devices without a choice: the lowest numbers that are free.
    pub first: GpuSet,
    pub first_score: Score,
    /// Whether nothing better exists. The search is cut short on matrices that no real host has.
    pub is_proven: bool,
}

impl Choice {
    /// The modelled ring bandwidth over that of the first free ones; 1 for one device.
    #[must_use]
    pub fn gain_over_first(&self) -> f64 {
        match (self.score.ring_mbps, self.first_score.ring_mbps) {
            (best, first) if best == first => 1.0,
            (best, first) => f64::from(best) / f64::from(first.max(1)),
        }
    }
}

/// Why there is no choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CannotChoose {
    /// No GPU was requested.
    #[error("0 GPUs requested; at least 1 is needed")]
    None,
    /// More GPUs were requested than are free.
    #[error("too few free GPUs: {wanted} requested, {free} free")]
    TooFew {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        free: usize,
    },
}

/// One set of a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranked {
    pub set: GpuSet,
    pub score: Score,
}

impl Ord for Ranked {
    /// The greater is the better; of equal ones that with the lowest numbers.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.cmp(&other.score).then_with(|| other.set.cmp(&self.set))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Chooses `wanted` of the devices that are `free`.
///
/// # Errors
///
/// When none are asked for, or fewer are free.
pub fn choose(
    matrix: &Matrix,
    free: GpuSet,
    wanted: usize,
    objective: Objective,
) -> Result<Choice, CannotChoose> {
    let free = free.and(GpuSet::first(matrix.size()));
    if wanted == 0 {
        return Err(CannotChoose::None);
    }
    if free.len() < wanted {
        return Err(CannotChoose::TooFew { wanted, free: free.len() });
    }
    let sums = Sums::of(matrix);
    let (best, is_proven) = match objective {
        Objective::Topology => best_for_this_job(matrix, &sums, free, wanted),
        Objective::Pack => best_for_the_next_too(matrix, &sums, free, wanted),
    };
    let first = free.lowest(wanted);
    Ok(Choice {
        set: best.set,
        ring: rings::ring(matrix, best.set),
        score: best.score,
        first,
        first_score: rings::score(matrix, &sums, first, &mut Steps::new(STEPS)),
        is_proven,
    })
}

/// All sets of `wanted` free devices, the best first.
#[must_use]
pub fn ranking(matrix: &Matrix, free: GpuSet, wanted: usize) -> Vec<Ranked> {
    ranked(matrix, &Sums::of(matrix), free.and(GpuSet::first(matrix.size())), wanted).0
}

fn best_for_this_job(matrix: &Matrix, sums: &Sums, free: GpuSet, wanted: usize) -> (Ranked, bool) {
    let mut steps = Steps::new(STEPS);
    let best = if matrix.is_switched() {
        best_level(free, wanted, |one, other| matrix.links(one, other))
            .map(|(links, sets)| best_of(sets, |set| with_rings(matrix, sums, set, links, &mut steps)))
    } else {
        most_rings(matrix, sums, free, wanted, &mut steps)
    };
    let of_hops = || {
        let (ring_mbps, sets) = best_level(free, wanted, |one, other| matrix.mbps(one, other))?;
        Some(best_of(sets, |set| Score { ring_mbps, ..sums.without_rings(set) }))
    };
    // One device, or no connections at all.
    let of_none = || best_of(sets_of(free, wanted).collect(), |set| sums.without_rings(set));
    (best.or_else(of_hops).unwrap_or_else(of_none), !steps.ran_out)
}

/// Of the sets with a ring of links: the upper bound of their score decides the order in which they are searched, and
/// ends the search.
fn most_rings(
    matrix: &Matrix,
    sums: &Sums,
    free: GpuSet,
    wanted: usize,
    steps: &mut Steps,
) -> Option<Ranked> {
    if wanted < 2 {
        return None;
    }
    let linked = rings_at(free, wanted, |one, other| matrix.links(one, other), 1);
    let optimistic =
        |set| Ranked { set, score: Score { ring_mbps: sums.bound(set), ..sums.without_rings(set) } };
    let with_a_ring = sets_of(free, wanted).filter(|set| linked.has_ring(set.bits()));
    let mut candidates: BinaryHeap<Ranked> = with_a_ring.map(optimistic).collect();
    let mut best: Option<Ranked> = None;
    while let Some(candidate) = candidates.pop() {
        if best.is_some_and(|best| best.score.ring_mbps > candidate.score.ring_mbps) {
            break;
        }
        let score = with_rings(matrix, sums, candidate.set, 1, steps);
        best = best.max(Some(Ranked { score, ..candidate }));
        // Its score is the upper bound, and no later one can be better.
        if score.ring_mbps == candidate.score.ring_mbps {
            break;
        }
    }
    best
}

fn best_of(sets: Vec<GpuSet>, mut score: impl FnMut(GpuSet) -> Score) -> Ranked {
    let ranked = sets.into_iter().map(|set| Ranked { set, score: score(set) });
    ranked.max().unwrap_or(Ranked { set: GpuSet::default(), score: Score::default() })
}

/// The highest bandwidth that every hop of a ring of so many free devices can reach, and all sets that reach it.
fn best_level(free: GpuSet, wanted: usize, of: impl Fn(usize, usize) -> u32) -> Option<(u32, Vec<GpuSet>)> {
    if wanted < 2 {
        return None;
    }
    let levels = levels(free, &of);
    let sets_at = |level: u32| {
        let rings = rings_at(free, wanted, &of, level);
        sets_of(free, wanted).filter(|set| rings.has_ring(set.bits())).collect::<Vec<_>>()
    };
    // A set with a ring at one level has it at all lower ones: binary search for the highest level with any.
    let (mut from, mut to) = (0, levels.len());
    let mut found = None;
    while from < to {
        let middle = usize::midpoint(from, to);
        let sets = sets_at(levels[middle]);
        match sets.is_empty() {
            true => from = middle + 1,
            false => {
                found = Some((levels[middle], sets));
                to = middle;
            }
        }
    }
    found
}

fn rings_at(free: GpuSet, wanted: usize, of: impl Fn(usize, usize) -> u32, level: u32) -> Rings {
    let is_among = |one, other| free.contains(one) && free.contains(other);
    Rings::new(adjacent(|one, other| is_among(one, other) && of(one, other) >= level), free, wanted)
}

fn sets_of(free: GpuSet, wanted: usize) -> impl Iterator<Item = GpuSet> {
    let all = free.bits();
    (0..=all).filter(move |set| set & !all == 0 && set.count_ones() as usize == wanted).map(GpuSet::from_bits)
}

/// All sets, the best first, and whether every score is exact.
fn ranked(matrix: &Matrix, sums: &Sums, free: GpuSet, wanted: usize) -> (Vec<Ranked>, bool) {
    let mut steps = Steps::new(RANKING_STEPS);
    let mut unranked: Vec<GpuSet> = sets_of(free, wanted).collect();
    let mut ranked = Vec::with_capacity(unranked.len());
    let mut sift = |of: &dyn Fn(usize, usize) -> u32, score: &mut dyn FnMut(GpuSet, u32) -> Score| {
        for level in if wanted < 2 { Vec::new() } else { levels(free, of) } {
            if unranked.is_empty() {
                break;
            }
            let rings = rings_at(free, wanted, of, level);
            let (with, without) = unranked.iter().partition(|set| rings.has_ring(set.bits()));
            let with: Vec<GpuSet> = with;
            ranked.extend(with.into_iter().map(|set| Ranked { set, score: score(set, level) }));
            unranked = without;
        }
    };
    sift(&|one, other| matrix.links(one, other), &mut |set, links| {
        with_rings(matrix, sums, set, links, &mut steps)
    });
    sift(&|one, other| matrix.mbps(one, other), &mut |set, ring_mbps| Score {
        ring_mbps,
        ..sums.without_rings(set)
    });
    ranked.extend(unranked.into_iter().map(|set| Ranked { set, score: sums.without_rings(set) }));
    ranked.sort_unstable_by_key(|ranked| Reverse(*ranked));
    (ranked, !steps.ran_out)
}

fn best_for_the_next_too(matrix: &Matrix, sums: &Sums, free: GpuSet, wanted: usize) -> (Ranked, bool) {
    let (ranked, is_proven) = ranked(matrix, sums, free, wanted);
    let (spare, mut steps) = (free.len() - wanted, Steps::new(RANKING_STEPS));
    let by_set: Vec<(GpuSet, Score)> = {
        let mut by_set: Vec<_> = ranked.iter().map(|ranked| (ranked.set, ranked.score)).collect();
        by_set.sort_unstable_by_key(|(set, _)| set.bits());
        by_set
    };
    let mut next_to = |set: GpuSet| -> Option<Score> {
        let left = free.without(set);
        match spare {
            0 | 1 => None,
            _ if spare < wanted => Some(rings::score(matrix, sums, left, &mut steps)),
            _ if spare == wanted => {
                let place = by_set.binary_search_by_key(&left.bits(), |(set, _)| set.bits());
                place.ok().map(|place| by_set[place].1)
            }
            _ => ranked.iter().find(|next| next.set.and(set).is_empty()).map(|next| next.score),
        }
    };
    let best = ranked.iter().max_by_key(|one| {
        let next = next_to(one.set).unwrap_or(Score { ring_mbps: one.score.ring_mbps, ..Score::default() });
        let (ours, theirs) = (one.score.ring_mbps, next.ring_mbps);
        let total = u64::from(one.score.total_mbps) + u64::from(next.total_mbps);
        (ours.min(theirs), u64::from(ours) + u64::from(theirs), theirs, total, one.score.numa_nodes, one.set)
    });
    let nothing = Ranked { set: GpuSet::default(), score: Score::default() };
    (best.copied().unwrap_or(nothing), is_proven)
}
