//! Missing ranks, in a text short enough for people and for thousands of waiting nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::NodeRank;

/// The most runs of ranks that are named. Otherwise the messages to all nodes would grow with the square of their
/// number.
const RUNS: usize = 32;

/// Ranks that no node has asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Missing {
    /// The first and the last of each run, the lowest first.
    pub runs: Vec<(NodeRank, NodeRank)>,
    /// The number of ranks above these.
    pub more: u32,
}

impl Missing {
    /// Whether no rank is missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// From ascending ranks.
impl FromIterator<NodeRank> for Missing {
    fn from_iter<I: IntoIterator<Item = NodeRank>>(ranks: I) -> Self {
        let mut missing = Self::default();
        for rank in ranks {
            let is_full = missing.runs.len() == RUNS;
            match missing.runs.last_mut().filter(|(_, last)| last.0.checked_add(1) == Some(rank.0)) {
                Some((_, last)) => *last = rank,
                None if is_full => missing.more = missing.more.saturating_add(1),
                None => missing.runs.push((rank, rank)),
            }
        }
        missing
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.runs.as_slice() {
            [] => "",
            [(first, last)] if first == last && self.more == 0 => "node rank ",
            _ => "node ranks ",
        })?;
        for (index, (first, last)) in self.runs.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{first}")?;
            if first != last {
                write!(f, "-{last}")?;
            }
        }
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(ranks: impl IntoIterator<Item = u32>) -> Missing {
        ranks.into_iter().map(NodeRank).collect()
    }

    #[test]
    fn ranks_are_shown_as_runs() {
        assert_eq!(missing([]).to_string(), "");
        assert_eq!(missing([2]).to_string(), "node rank 2");
        assert_eq!(missing([2, 3]).to_string(), "node ranks 2-3");
        assert_eq!(missing([2, 4]).to_string(), "node ranks 2,4");
        assert_eq!(missing([0, 1, 2, 5, 7, 8]).to_string(), "node ranks 0-2,5,7-8");
        assert_eq!(missing(1..4096).to_string(), "node ranks 1-4095");
    }

    #[test]
    fn many_runs_are_counted_instead() {
        let missing = missing((0..4096).filter(|rank| rank % 2 == 1 || *rank > 4000));
        assert_eq!(missing.runs.len(), RUNS);
        let message = missing.to_string();
        assert!(
            message.starts_with("node ranks 1,3,5,") && message.ends_with(",61,63 and 2063 more"),
            "{message}"
        );
    }
}
