//! How many rings a set of devices carries at once: edge-disjoint Hamiltonian cycles in the multigraph of its links.
//!
//! No more than half the links of any device: each ring takes two. That bound is reached on every existing box; to
//! prove that it is not, all combinations are tried, as long as [`Steps`] last.

use std::collections::BTreeSet;

use super::{MAX_GPUS, Matrix};

/// The limit of a search, so that a strange matrix cannot delay a launch: about 10 ns each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    left: u32,
    /// Whether a search was cut short, so that its answer is only a lower bound.
    pub(super) ran_out: bool,
}

impl Steps {
    pub(super) const fn new(steps: u32) -> Self {
        Self { left: steps, ran_out: false }
    }

    fn take(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.ran_out |= self.left == 0;
        self.left > 0
    }
}

/// The links of a set, numbered from 0.
#[derive(Debug, Clone)]
pub(super) struct Links {
    size: usize,
    count: [[u8; MAX_GPUS]; MAX_GPUS],
}

impl Links {
    pub(super) fn of(matrix: &Matrix, gpus: &[usize]) -> Self {
        let mut count = [[0; MAX_GPUS]; MAX_GPUS];
        for (row, one) in count.iter_mut().zip(gpus) {
            for (cell, other) in row.iter_mut().zip(gpus) {
                *cell = u8::try_from(matrix.links(*one, *other)).unwrap_or(u8::MAX);
            }
        }
        Self { size: gpus.len(), count }
    }

    fn degree(&self, gpu: usize) -> u32 {
        self.count[gpu].iter().map(|count| u32::from(*count)).sum()
    }

    /// An upper bound of the rings; for two devices, their links.
    pub(super) fn bound(&self) -> u32 {
        let degrees = (0..self.size).map(|gpu| self.degree(gpu));
        let least = degrees.min().unwrap_or(0);
        if self.size == 2 { least } else { least / 2 }
    }

    /// The same number of links between all: then the bound is reached (Walecki's construction, and its multiples).
    fn is_uniform(&self) -> bool {
        let count = self.count[0][1];
        let is_same =
            |one: usize| (0..self.size).all(|other| one == other || self.count[one][other] == count);
        (0..self.size).all(is_same)
    }

    /// The number of rings at once, of a set that has at least one.
    pub(super) fn rings(&self, steps: &mut Steps) -> u32 {
        let bound = self.bound();
        if self.size <= 2 || bound <= 1 || self.is_uniform() {
            return bound;
        }
        let mut rings = 1;
        while rings < bound && self.carries(rings + 1, steps) {
            rings += 1;
        }
        rings
    }

    /// Whether it carries so many.
    fn carries(&self, rings: u32, steps: &mut Steps) -> bool {
        // The device with the fewest links to spare decides first.
        let root = (0..self.size).min_by_key(|gpu| self.degree(*gpu)).unwrap_or(0);
        let mut search = Search { links: self.clone(), root, failed: BTreeSet::new(), steps };
        search.more(rings, (0, 0))
    }
}

/// A search for one number of rings.
struct Search<'a> {
    /// Links that no ring uses yet.
    links: Links,
    root: usize,
    /// The remaining links of dead ends, with the ends of the last ring.
    failed: BTreeSet<(Vec<u8>, (usize, usize))>,
    steps: &'a mut Steps,
}

impl Search<'_> {
    /// Whether so many more rings exist. Rings have no order: they are taken in that of their two `ends` beside the
    /// root, of which the lower is where the ring begins.
    fn more(&mut self, rings: u32, ends: (usize, usize)) -> bool {
        if rings == 0 {
            return true;
        }
        let state = (self.left(), ends);
        if self.failed.contains(&state) {
            return false;
        }
        let root = self.root;
        for begin in ends.0..self.links.size {
            if self.links.count[root][begin] == 0 {
                continue;
            }
            self.take(root, begin);
            let found = self.extend(begin, 1 << root | 1 << begin, (begin, ends), rings);
            self.give(root, begin);
            if found {
                return true;
            }
            if self.steps.ran_out {
                return false;
            }
        }
        self.failed.insert(state);
        false
    }

    /// Whether the ring that has come from `begin` to `at` can be closed, and the others be found then.
    fn extend(&mut self, at: usize, seen: u16, plan: (usize, (usize, usize)), rings: u32) -> bool {
        if !self.steps.take() {
            return false;
        }
        let (root, size) = (self.root, self.links.size);
        let (begin, last) = plan;
        if seen.count_ones() as usize == size {
            if self.links.count[at][root] == 0 || at < begin || (begin, at) < last {
                return false;
            }
            self.take(at, root);
            let found = self.more(rings - 1, (begin, at));
            self.give(at, root);
            return found;
        }
        // Parallel links first: rings that share the load leave the most.
        let mut next = [0; MAX_GPUS];
        let mut count = 0;
        for gpu in (0..size).filter(|gpu| seen >> gpu & 1 == 0 && self.links.count[at][*gpu] > 0) {
            next[count] = gpu;
            count += 1;
        }
        let row = self.links.count[at];
        next[..count].sort_by_key(|gpu| u8::MAX - row[*gpu]);
        for gpu in &next[..count] {
            self.take(at, *gpu);
            let found = self.extend(*gpu, seen | 1 << gpu, plan, rings);
            self.give(at, *gpu);
            if found {
                return true;
            }
        }
        false
    }

    fn take(&mut self, one: usize, other: usize) {
        self.links.count[one][other] -= 1;
        self.links.count[other][one] -= 1;
    }

    fn give(&mut self, one: usize, other: usize) {
        self.links.count[one][other] += 1;
        self.links.count[other][one] += 1;
    }

    fn left(&self) -> Vec<u8> {
        let rows = self.links.count.iter().take(self.links.size).enumerate();
        rows.flat_map(|(one, row)| row[..one].to_vec()).collect()
    }
}
