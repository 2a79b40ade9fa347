//! Events and effects of a check, and its settings.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Component, ComputeTime};

/// The settings of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "CheckPolicy")] // For the journal's golden file, which knows types by name.
pub struct Policy {
    /// Pairs differ from check to check, so that in time every path is tested; one seed always gives the same.
    pub seed: u64,
    /// The most rounds; what is unknown then stays `inconclusive`; at least 1.
    pub max_rounds: u32,
    /// Distinct proven-good partners that a node must have failed with before it is condemned; at least 1.
    pub confirm: u32,
    /// Slower than this many thousandths of the mean of the others is a straggler; above 1000.
    pub straggler_permille: u32,
    /// Whether stragglers are confirmed, by further rounds, and excluded.
    pub exclude_straggler: bool,
    /// Whether links are distinguished from nodes, by further rounds.
    pub diagnose_links: bool,
    /// When a node that passes and fails by turns, or went away, is tainted.
    pub taint_flaky: Tainting,
    /// What follows from a path that is known to be down.
    pub on_bad_path: OnBadPath,
    /// The share of the nodes, in thousandths, above which no node is tainted; see [`TaintGuard`](super::TaintGuard).
    pub taint_guard_permille: u32,
    /// How long a round may take.
    pub deadlines: Deadlines,
    /// The names of nodes, racks and pods in sentences.
    pub names: FabricNames,
}

/// The names of nodes, racks and pods, by the numbers that the check and [`Subject`] have for them. One without a name
/// is `node 3`, `rack 3`, `pod 3`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricNames {
    /// The nodes, each with its number, for a number alone says little outside the check: `node number 3
    /// (host-d, 10.0.0.4)`.
    pub nodes: Vec<String>,
    /// The racks' switches.
    pub racks: Vec<String>,
    /// The pods' switches.
    pub pods: Vec<String>,
}

impl FabricNames {
    pub(super) fn node(&self, node: u32) -> String {
        self.nodes.get(node as usize).cloned().unwrap_or_else(|| format!("node {node}"))
    }

    /// `node 4 and node 7`.
    pub(super) fn all_of(&self, nodes: &[u32]) -> String {
        nodes.iter().map(|node| self.node(*node)).collect::<Vec<_>>().join(" and ")
    }

    pub(super) fn rack(&self, rack: u32) -> String {
        self.racks.get(rack as usize).cloned().unwrap_or_else(|| format!("rack {rack}"))
    }

    pub(super) fn pod(&self, pod: u32) -> String {
        self.pods.get(pod as usize).map_or_else(|| format!("pod {pod}"), |name| format!("pod {name}"))
    }
}

/// When a node is tainted for a fault that may be temporary: it passes and fails by turns (`flaky`), or went away
/// (`lost`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tainting {
    /// In the check that sees it.
    Now,
    /// Once an earlier check of the job has seen it on that machine, too.
    Confirmed,
    Never,
}

impl fmt::Display for Tainting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Now => "now",
            Self::Confirmed => "confirmed",
            Self::Never => "never",
        })
    }
}

/// What follows from a path between healthy nodes that is known to be down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnBadPath {
    /// The largest set of nodes in which every pair is connected takes part; the rest is `unreachable`.
    Exclude,
    Fail,
    /// All of them take part.
    Proceed,
}

impl fmt::Display for OnBadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclude => "exclude",
            Self::Fail => "fail",
            Self::Proceed => "proceed",
        })
    }
}

/// How long the tests of a round may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// No test is cut short before this.
    pub floor: Duration,
    /// Every test is cut short at this.
    pub hard: Duration,
    /// Between the two: this many thousandths of the median of the tests that passed, ...
    pub median_permille: u32,
    /// ... once this share of a round's groups, in thousandths, has passed, or a round before it has any.
    pub quorum_permille: u32,
    /// From the cancellation of a test to the death of its processes. Reports are waited for twice as long.
    pub kill_grace: Duration,
}

/// A node at the start of the check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Nodes under one switch have one number; all 0 where nothing is known.
    pub rack: u32,
    /// Racks under one switch of the second level (`psw`) have one number; all 0 where nothing is known.
    pub pod: u32,
    /// An earlier check of the job called this machine `flaky` or `lost`.
    pub seen_before: bool,
    pub local: LocalCheck,
}

/// The result of a node's self-test.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LocalCheck {
    /// What is broken; the first fault that was found.
    pub fault: Option<LocalFault>,
    /// The median time of the compute probe, on the slowest device. `None`: it was not measured.
    pub compute: Option<ComputeTime>,
    /// Faults that do not exclude it, one sentence each.
    pub notes: Vec<String>,
}

/// A fault of a node that was found without any other node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalFault {
    pub component: Component,
    pub reason: String,
}

impl LocalFault {
    /// Returns a fault of this part.
    #[must_use]
    pub fn new(component: impl Into<Component>, reason: impl Into<String>) -> Self {
        Self { component: component.into(), reason: reason.into() }
    }

    /// Returns the fault of a self-test that died, or hung and was killed: of the part that it was at, else of the
    /// test itself. For `GPU 3 (NVIDIA H100)` the component is `GPU 3`.
    #[must_use]
    pub fn unanswered(at: Option<&str>, reason: impl Into<String>) -> Self {
        let component =
            at.map_or(Component::Probe, |at| at.split_once(" (").map_or(at, |(part, _)| part).into());
        Self { component, reason: reason.into() }
    }
}

/// Why a group of nodes is tested together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The first round: all nodes, with a node of another rack where there is one.
    Screen,
    /// A suspect meets a node that is verified.
    Witness,
    /// No node is verified yet: suspects meet suspects they have not met.
    #[serde(rename = "seed")] // As documents and journals have it.
    Suspects,
    /// There is no suspect here; more paths are tested meanwhile.
    Coverage,
    /// Two good nodes that failed together meet again.
    Retest,
    /// Two others of the same two racks meet.
    Sibling,
    /// An end of a failed link meets a good node that it has not met.
    Probe,
    /// Two of a rack that failed as a whole meet inside it.
    RackDiagnosis,
    /// A node that is not needed in this round.
    Idle,
}

/// Nodes that are tested together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Counted from 0 within the round.
    pub id: u32,
    pub kind: Kind,
    /// One (idle), two, or in the first round of an odd number of nodes three.
    pub members: Vec<u32>,
}

/// The result of one node's probe of its group: numbers, never a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probed {
    /// All bytes were moved both ways, and were the right ones.
    Passed {
        /// How long the transfer took, without preparation.
        comm: Duration,
        /// The median of small round trips.
        latency: Duration,
        /// Of the largest transfer, in bytes per second.
        bytes_per_second: u64,
    },
    /// It ended otherwise: an error, wrong bytes, a probe that died.
    Failed { reason: String },
    /// The measurement was cut short, or still runs.
    Unfinished {
        /// Bytes that were received and were right.
        bytes: u64,
        /// Bytes that there are to receive.
        total: u64,
        /// Since its first byte was to be moved.
        elapsed: Duration,
        /// Since the last byte was received; `elapsed` when none was.
        idle: Duration,
    },
}

/// An event of the check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A node's probe of this round ended. The first report of a node counts.
    Reported {
        node: u32,
        /// The round; reports of other rounds are dropped.
        round: u32,
        probed: Probed,
        /// Times of the compute probe, if it was ordered in this round. Those of another kind than the node's first
        /// are dropped. `None`: it still measures, and they follow.
        compute: Option<Vec<ComputeTime>>,
    },
    /// A node's probe still runs ([`Probed::Unfinished`]; anything else is dropped).
    Progressed {
        node: u32,
        round: u32,
        /// How far it is.
        probed: Probed,
    },
    /// A node is gone.
    NodeLost {
        node: u32,
        reason: String,
        /// It announced it: nothing is wrong with its machine.
        is_announced: bool,
    },
    /// The check's `deadline` is reached.
    Deadline,
}

/// An effect of the check, to be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Every group begins its test now.
    Start {
        /// Counted from 0.
        round: u32,
        /// Every node that is not gone is in exactly one.
        groups: Vec<Group>,
        /// Nodes that measure their compute time again meanwhile, and how often.
        compute_again: Vec<(u32, u32)>,
    },
    /// These nodes have not reported all: they end their probes, and report how far they came.
    Cancel {
        /// Of this round.
        round: u32,
        /// Ascending.
        nodes: Vec<u32>,
    },
    /// The check is over. Nothing follows.
    Finish(Box<super::Outcome>),
}
