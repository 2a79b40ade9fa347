//! A set of accelerators of one node.

use std::{cmp::Ordering, fmt};

use serde::{Serialize, Serializer};

/// The most accelerators of one node that are chosen from.
pub const MAX_GPUS: usize = 16;

/// Accelerators by their numbers in the matrix, from 0 to 15. Sets are ordered as their ascending lists are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct GpuSet(u16);

impl GpuSet {
    /// The first so many, at most [`MAX_GPUS`].
    #[must_use]
    pub fn first(count: usize) -> Self {
        (0..count.min(MAX_GPUS)).collect()
    }

    pub(super) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u16 {
        self.0
    }

    /// The number of members.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it contains this one.
    #[must_use]
    pub const fn contains(self, gpu: usize) -> bool {
        gpu < MAX_GPUS && self.0 >> gpu & 1 == 1
    }

    /// The intersection.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The difference.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The union.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        let from_the_lowest = std::iter::successors(Some(self.0), |left| Some(left & left.wrapping_sub(1)));
        from_the_lowest.take_while(|left| *left != 0).map(|left| left.trailing_zeros() as usize)
    }

    /// The first `count` members.
    #[must_use]
    pub fn lowest(self, count: usize) -> Self {
        self.iter().take(count).collect()
    }
}

impl FromIterator<usize> for GpuSet {
    /// Numbers from 16 on are dropped: no matrix has them.
    fn from_iter<T: IntoIterator<Item = usize>>(gpus: T) -> Self {
        Self(gpus.into_iter().filter(|gpu| *gpu < MAX_GPUS).fold(0, |bits, gpu| bits | 1 << gpu))
    }
}

impl Ord for GpuSet {
    fn cmp(&self, other: &Self) -> Ordering {
        let differ = self.0 ^ other.0;
        if differ == 0 {
            return Ordering::Equal;
        }
        // The lists differ first at the lowest differing bit. The set with it is the smaller, unless the other ends
        // there.
        let at = differ.trailing_zeros();
        let (has_not, order) =
            if self.0 >> at & 1 == 1 { (other.0, Ordering::Less) } else { (self.0, Ordering::Greater) };
        if has_not >> at == 0 { order.reverse() } else { order }
    }
}

impl PartialOrd for GpuSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.iter().map(|gpu| gpu.to_string()).collect();
        f.pad(&numbers.join(","))
    }
}

impl fmt::Debug for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for GpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_ordered_as_their_lists() {
        let sets: Vec<GpuSet> = (0..256).chain([0x8000, 0xffff, 0x0180]).map(GpuSet::from_bits).collect();
        for one in &sets {
            for other in &sets {
                assert_eq!(one.cmp(other), one.iter().cmp(other.iter()), "{one:?} {other:?}");
            }
        }
    }
}
