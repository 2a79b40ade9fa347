//! What the job tells its nodes.

use serde::{Deserialize, Serialize};

use crate::{
    manifest::Manifest,
    message::{Dir, ToSaver},
};

/// An order to the saver of a node. The agent passes it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Write the manifest, then the tracker. Answered by `committed`, or `failed`.
    Commit { dir: Dir, step: u64, manifest: Box<Manifest> },
    /// The step counts.
    Committed { dir: Dir, step: u64 },
    /// Write all shards of the step that the node has.
    Persist { dir: Dir, step: u64 },
    /// The step will not count, unless it was saved after round `saved_in`. It was given up so often by now.
    Fail { dir: Dir, step: u64, saved_in: u32, given_up: u32, reason: String },
}

impl From<Order> for ToSaver {
    fn from(order: Order) -> Self {
        match order {
            Order::Commit { dir, step, manifest } => Self::Commit { dir, step, manifest },
            Order::Committed { dir, step } => Self::Committed { dir, step },
            Order::Persist { dir, step } => Self::Persist { dir, step },
            Order::Fail { dir, step, saved_in, given_up, reason } => {
                Self::Fail { dir, step, saved_in: Some(saved_in), given_up, reason }
            }
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
}

/// An effect of the job's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<N> {
    Send { node: N, order: Order },
    Note(Note),
}
