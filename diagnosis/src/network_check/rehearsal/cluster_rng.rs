//! Random numbers of the simulation: which node breaks, how large a cluster is. The check itself has other ones.

use crate::rng::{Rng, mix};

/// The random stream.
const CLUSTER: u64 = 4;
/// The step of splitmix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Numbers that a seed fixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRng(Rng);

impl ClusterRng {
    /// The numbers of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed, CLUSTER))
    }

    /// Below `end`; 0 for an `end` of 0.
    pub fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.0.below(end as usize)).unwrap_or(0)
    }

    /// From `least` to `most`, both may come.
    pub fn between(&mut self, least: u32, most: u32) -> u32 {
        least + self.below((most - least.min(most)).saturating_add(1))
    }

    /// One of these; `None` of none.
    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.0.below(items.len())).copied()
    }

    /// Two different numbers below `end`, the lower first; `None` where there are no two.
    pub fn two_below(&mut self, end: u32) -> Option<(u32, u32)> {
        if end < 2 {
            return None;
        }
        let a = self.below(end);
        let other = self.below(end - 1);
        let b = other + u32::from(other >= a);
        Some((a.min(b), a.max(b)))
    }

    /// From 0 to below 1.
    pub fn share(&mut self) -> f64 {
        self.0.share()
    }
}

/// The seed of one of many rehearsals. Below 2^53, so that every reader of JSON keeps it.
#[must_use]
pub fn seed_of_run(seed: u64, run: u64) -> u64 {
    mix(seed.wrapping_add(run.wrapping_add(1).wrapping_mul(STEP))) >> 11
}
