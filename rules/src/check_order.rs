//! What one node does in one round of a check, and what it answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::NodeName;
use diagnosis::network_check::{ComputeTime, LocalCheck, Probed};

/// Which round of which check of a job. Checks are counted from 0 and never twice, rounds within a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckRound {
    /// The check.
    pub check: u32,
    /// Its round.
    pub round: u32,
}

/// What a node brings along when it joins a job that checks its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// What it found out about itself.
    pub local: LocalCheck,
    /// Where its probes accept connections, on every address of the node.
    pub port: u16,
}

/// What one node does in one round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckOrder {
    /// In which round.
    pub at: CheckRound,
    /// What is done.
    pub test: Test,
    /// The address by which the others reach this node.
    pub address: String,
    /// Its place in the ring of those that take part: each connects to the next.
    pub me: u32,
    /// How many take part; 1: nobody else.
    pub size: u32,
    /// Who is tested with it: the next one in the ring first. Of a ring of all nodes only that one.
    pub partners: Vec<Partner>,
    /// The same for all members and no other test: bytes to send, and the word by which they know each other.
    pub seed: u64,
    /// How often the compute probe runs again beside it.
    pub compute_again: u32,
    /// How long a member may take to listen.
    pub timeout: Duration,
}

/// What the members of a group do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// Each tests the way to the next.
    Pair,
    /// All-reduces of this many bytes, over the whole ring.
    AllReduce {
        /// A multiple of 4.
        bytes: u64,
    },
}

/// A node of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partner {
    /// Its number in the check: its rank, if all pass.
    pub number: u32,
    /// What a person calls it.
    pub name: NodeName,
    /// The address that workers will use.
    pub address: String,
    /// Where its probes listen.
    pub port: u16,
}

/// What a node's part in a round came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// In which round.
    pub at: CheckRound,
    /// The test's numbers.
    pub probed: Probed,
    /// Times of the compute probe that was asked for beside the test; none where none was, or it failed. `None` while
    /// it still measures: the same report follows with them.
    pub compute: Option<Vec<ComputeTime>>,
}
