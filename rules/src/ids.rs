//! The ids and ranks of a job, each its own type so that none passes for another.

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
    /// A worker's place in the whole job: `RANK`, 0 to world size - 1.
    Rank
);
number!(
    /// A worker's place on its node: `LOCAL_RANK`, 0 to local world size - 1.
    LocalRank
);
number!(
    /// A node's seat in one round: `GROUP_RANK`. The same machine may hold another seat in the next round.
    NodeRank
);
number!(
    /// One completed rendezvous, counted from 0 by the master. Every event about a worker carries it, so
    /// that a late word of an old generation is told apart.
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
    /// One launcher's life on one machine. Unlike a [`NodeRank`] it never changes hands.
    NodeId
);
name!(
    /// The job's name: `TORCHELASTIC_RUN_ID`, `--rdzv-id`.
    RunId
);
