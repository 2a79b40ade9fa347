//! The ids and ranks of a job, each a type of its own so that they cannot be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A worker's number in the whole job: `RANK`, 0 to world size - 1.
    Rank
);
number!(
    /// A worker's number on its node: `LOCAL_RANK`, 0 to local world size - 1.
    LocalRank
);
number!(
    /// A node's rank in one round: `GROUP_RANK`. The same machine may have another rank in the next round.
    NodeRank
);
number!(
    /// One completed rendezvous, counted from 0 by the master. Every event about a worker has it, so that a late
    /// message of an old generation is recognized.
    Round
);
number!(
    /// How many times this node's workers have been restarted: `TORCHELASTIC_RESTART_COUNT`, from 0.
    Attempt
);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name!(
    /// One run of one launcher on one machine. Unlike a [`NodeRank`] it never belongs to another node.
    NodeId
);
name!(
    /// The job's name: `TORCHELASTIC_RUN_ID`.
    RunId
);

impl RunId {
    /// The name of jobs that were given none, as torchrun's. A fresh one would differ on each node.
    pub const UNNAMED: &str = "none";

    /// The name as a part of a file's name: `/` and control characters become `_`, as a `.` at the start does, and it is
    /// at most 200 bytes long. torchrun fails on `/`.
    #[must_use]
    pub fn file_name(&self) -> String {
        /// A file name has at most 255 bytes; more may follow.
        const MAX_BYTES: usize = 200;
        let is_allowed = |(at, c): (usize, char)| c != '/' && !c.is_control() && (at > 0 || c != '.');
        let mut name: String =
            self.0.char_indices().map(|(at, c)| if is_allowed((at, c)) { c } else { '_' }).collect();
        name.truncate(name.floor_char_boundary(MAX_BYTES));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_is_one_file_name() {
        let name = |id: &str| RunId(id.to_owned()).file_name();
        assert_eq!(name("llm-7b.2"), "llm-7b.2");
        assert_eq!(name("a/b\n"), "a_b_");
        assert_eq!([name(".."), name("."), name("../x"), name("a\u{1b}b")], ["_.", "_", "_._x", "a_b"]);
        assert_eq!(name(&"é".repeat(200)).len(), 200);
    }
}
