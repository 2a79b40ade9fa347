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
