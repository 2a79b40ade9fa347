//! Sets of ranks in folded form: `0-5/7`.

use std::{collections::BTreeSet, fmt::Write, iter};

/// Ranks that are read from a text at most: a text of a few bytes must not take all memory.
const MAX_READ: u32 = 1 << 20;

/// Some of the ranks of a job, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranks(BTreeSet<u32>);

/// Why a text is not a folded set of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldingError {
    #[error("`{0}` is neither a rank nor a range of ranks such as 3-5")]
    NotARun(String),
    #[error("the range `{0}` ends before it begins")]
    Backwards(String),
    #[error("more than {MAX_READ} ranks")]
    TooMany,
}

impl Ranks {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn insert(&mut self, rank: u32) {
        self.0.insert(rank);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn contains(&self, rank: u32) -> bool {
        self.0.contains(&rank)
    }

    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The runs of consecutive ranks, each with its first and its last.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut ranks = self.0.iter().copied().peekable();
        iter::from_fn(move || {
            let first = ranks.next()?;
            let mut last = first;
            while let Some(next) = ranks.next_if(|next| last.checked_add(1) == Some(*next)) {
                last = next;
            }
            Some((first, last))
        })
    }

    /// `0-5/7`: runs as `a-b`, single ranks as `a`. An empty set is an empty text.
    #[must_use]
    pub fn folded(&self) -> String {
        joined(self.runs(), "/")
    }

    /// The ranks below `world_size` that are not in this set, in folded form. The size of the world may come from the
    /// name of any file, so these ranks are never held one by one.
    #[must_use]
    pub fn folded_rest(&self, world_size: u32) -> String {
        let mut rest = Vec::new();
        let mut from = 0;
        for (first, last) in self.runs().take_while(|(first, _)| *first < world_size) {
            if from < first {
                rest.push((from, first - 1));
            }
            from = last.saturating_add(1);
        }
        if from < world_size {
            rest.push((from, world_size - 1));
        }
        joined(rest, "/")
    }

    /// `0-5,7`, as people write it; of many runs the first ones and the number of ranks.
    #[must_use]
    pub fn listed(&self) -> String {
        const MAX_RUNS: usize = 12;
        let mut text = joined(self.runs().take(MAX_RUNS), ",");
        if self.runs().nth(MAX_RUNS).is_some() {
            // Writing to a String does not fail.
            let _ok = write!(text, ",... ({} ranks)", self.len());
        }
        text
    }

    /// Reads the folded form; an empty text is the empty set.
    ///
    /// # Errors
    /// When a part is neither a rank nor a range, or when there are more than a million ranks.
    pub fn parse(text: &str) -> Result<Self, FoldingError> {
        let mut ranks = Self::new();
        let mut read = 0_u32;
        for run in text.split('/').filter(|_| !text.is_empty()) {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let number = |text: &str| {
                let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u32>().ok().filter(|_| is_number)
            };
            let (Some(first), Some(last)) = (number(first), number(last)) else {
                return Err(FoldingError::NotARun(run.chars().take(40).collect()));
            };
            let beyond = last.checked_sub(first).ok_or_else(|| FoldingError::Backwards(run.to_owned()))?;
            read = read.saturating_add(beyond).saturating_add(1);
            if read > MAX_READ {
                return Err(FoldingError::TooMany);
            }
            ranks.0.extend(first..=last);
        }
        Ok(ranks)
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        Self(ranks.into_iter().collect())
    }
}

fn joined(runs: impl IntoIterator<Item = (u32, u32)>, separator: &str) -> String {
    let run = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    runs.into_iter().map(run).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_set_of_the_guide_is_folded() {
        let ranks: Ranks = [1, 2, 3, 9, 11, 12, 13, 14, 15].into_iter().collect();
        assert_eq!(ranks.folded(), "1-3/9/11-15");
        assert_eq!(ranks.folded_rest(16), "0/4-8/10");
        assert_eq!(ranks.listed(), "1-3,9,11-15");
    }

    #[test]
    fn a_huge_world_takes_no_memory() {
        let ranks: Ranks = [7, u32::MAX].into_iter().collect();
        assert_eq!(ranks.folded_rest(u32::MAX), "0-6/8-4294967294");
        assert_eq!(Ranks::new().folded_rest(0), "");
        assert_eq!(Ranks::parse("0-4294967295"), Err(FoldingError::TooMany));
    }

    #[test]
    fn a_long_list_is_cut_and_says_how_many_there_are() {
        let ranks: Ranks = (0..100).map(|rank| rank * 2).collect();
        assert_eq!(ranks.listed(), "0,2,4,6,8,10,12,14,16,18,20,22,... (100 ranks)");
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for text in ["/", "a", "1-", "-1", "1--2", "+1", "1 ", "1/", "4294967296"] {
            assert!(matches!(Ranks::parse(text), Err(FoldingError::NotARun(_))), "{text}");
        }
        assert_eq!(Ranks::parse("5-3"), Err(FoldingError::Backwards("5-3".to_owned())));
    }

    proptest! {
        #[test]
        fn what_is_folded_is_read_again(ranks in prop::collection::btree_set(0_u32..300, 0..200)) {
            let ranks: Ranks = ranks.into_iter().collect();
            prop_assert_eq!(Ranks::parse(&ranks.folded()), Ok(ranks));
        }

        #[test]
        fn the_rest_and_the_set_are_the_world(ranks in prop::collection::btree_set(0_u32..200, 0..200), world in 0_u32..250) {
            let ranks: Ranks = ranks.into_iter().collect();
            let rest: Ranks = (0..world).filter(|rank| !ranks.contains(*rank)).collect();
            prop_assert_eq!(ranks.folded_rest(world), rest.folded());
        }

        /// Runs are as long as they can be, and in order.
        #[test]
        fn runs_do_not_touch(ranks in prop::collection::btree_set(0_u32..300, 0..200)) {
            let ranks: Ranks = ranks.into_iter().collect();
            let runs: Vec<(u32, u32)> = ranks.runs().collect();
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            prop_assert_eq!(runs.iter().map(|(first, last)| (last - first + 1) as usize).sum::<usize>(), ranks.len());
        }
    }
}
