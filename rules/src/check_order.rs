//! What one node does in one round of a check, and what it reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::NodeName;
use diagnosis::network_check::{ComputeTime, LocalCheck, Probed};

/// A round of a check of a job. Both are counted from 0; a check's number is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckRound {
    pub check: u32,
    pub round: u32,
}

/// What a node sends when it joins a job that checks its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub local: LocalCheck,
    /// The port of its probes, on every address of the node.
    pub port: u16,
}

/// What one node does in one round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckOrder {
    pub at: CheckRound,
    pub test: Test,
    /// The address by which the others reach this node.
    pub address: String,
    /// Its place in the ring of members: each connects to the next.
    pub me: u32,
    /// The number of members; 1: this node alone.
    pub size: u32,
    /// The nodes that it is tested with, the next one in the ring first. Of a ring of all nodes only that one.
    pub partners: Vec<Partner>,
    /// Bytes to send that prove the membership of this test: the same for all members, and for no other test.
    pub seed: u64,
    /// How often the compute probe runs again during the test.
    pub compute_again: u32,
    /// How long a member may take to listen.
    pub timeout: Duration,
}

/// What the members of a group do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// Each tests the link to the next.
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
    /// Its name for people.
    pub name: NodeName,
    /// The address that workers will use.
    pub address: String,
    /// Where its probes listen.
    pub port: u16,
}

/// The result of a node's part in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    pub at: CheckRound,
    /// The result of the test.
    pub probed: Probed,
    /// Times of the compute probe that was ordered with the test; none if it failed or was not ordered. `None` while
    /// it still measures: the same report follows with them.
    pub compute: Option<Vec<ComputeTime>>,
}
