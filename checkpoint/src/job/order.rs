//! What the job tells its nodes.

use serde::{Deserialize, Serialize};

use crate::{
    manifest::Manifest,
    message::{Dir, Fetch, ToSaver},
};

/// An order to the saver of a node. The agent passes it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Write the manifest, then the tracker. Answered by `committed`, or `failed`.
    Commit { dir: Dir, step: u64, manifest: Box<Manifest> },
    /// The step counts.
    Committed { dir: Dir, step: u64 },
    /// Write all shards of the step that ranks of the node have saved, and these, which it has as replicas.
    Persist { dir: Dir, step: u64, replicas: Vec<u32> },
    /// The step will not count, unless it was saved after round `saved_in`. It was given up so often by now.
    Fail { dir: Dir, step: u64, saved_in: u32, given_up: u32, reason: String },
    /// Fetch a shard of the step from the memory of another node. Answered by what is in memory then, or `fetch_failed`.
    Fetch { round: u32, dir: Dir, step: u64, fetch: Box<Fetch> },
    /// All nodes have the step that the round restores.
    Fetched { round: u32, dir: Dir, step: u64 },
    /// Not all of them can have it.
    NotFetched { round: u32, dir: Dir, step: u64, reason: String },
}

impl From<Order> for ToSaver {
    fn from(order: Order) -> Self {
        match order {
            Order::Commit { dir, step, manifest } => Self::Commit { dir, step, manifest },
            Order::Committed { dir, step } => Self::Committed { dir, step },
            Order::Persist { dir, step, replicas } => Self::Persist { dir, step, replicas },
            Order::Fail { dir, step, saved_in, given_up, reason } => {
                Self::Fail { dir, step, saved_in: Some(saved_in), given_up, reason }
            }
            Order::Fetch { round, dir, step, fetch } => Self::Fetch { round, dir, step, fetch },
            Order::Fetched { round, dir, step } => Self::Fetched { round, dir, step },
            Order::NotFetched { round, dir, step, reason } => Self::NotFetched { round, dir, step, reason },
        }
    }
}

/// What people may want to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// A step counts from now on.
    Committed { dir: Dir, step: u64, shards: u32 },
    /// A step that was to go to disk does not count.
    Failed { dir: Dir, step: u64, reason: String },
    /// The workers have ended, and the newest step in memory is written.
    SavedAtBreakpoint { dir: Dir, step: u64 },
    /// `nodes` nodes have fetched what the round restores from the memory of others.
    Fetched { dir: Dir, step: u64, nodes: u32 },
    /// A node cannot fetch the step: all ranks restore what they have without it.
    NotFetched { dir: Dir, step: u64, reason: String },
}

/// An effect of the job's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<N> {
    Send { node: N, order: Order },
    Note(Note),
}
