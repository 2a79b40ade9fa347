//! The outcome of a check.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ComputeKind, Kind, LocalFault};

/// The outcome of a check. Complete whatever the guard decides; only taints are withheld.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The policy's seed.
    pub seed: u64,
    /// What was tested, by round.
    pub rounds: Vec<RoundRecord>,
    /// By node.
    pub nodes: Vec<NodeFinding>,
    /// Paths between two good nodes that are bad, the lower node first.
    pub links: Vec<LinkFault>,
    /// Paths between two racks that are bad, the lower rack first.
    pub rack_pairs: Vec<RackPairFault>,
    /// Racks whose switch has lost its uplinks: their nodes reach each other and no others.
    pub uplinks: Vec<u32>,
    /// Racks without a reachable node, even from inside: their switch is dead (or all of their nodes).
    pub leaves: Vec<u32>,
    /// Pods that cannot reach any other.
    pub pods: Vec<u32>,
    /// Racks of which part of the uplinks is dead: some pairs work, and others fail each time.
    pub partial_uplinks: Vec<PartialUplink>,
    /// Where the tests leave more than one explanation of the same size. No node is tainted for it.
    pub ambiguous: Vec<Ambiguity>,
    /// What is known to be cut, and which nodes train. `None` where every pair is connected as far as is known.
    pub cut: Option<Cut>,
    /// Samples that it took to call a node slow, 2 to 6: more where times scatter.
    pub slow_confirmations: u32,
    /// Fewer than two nodes could be tested, or all but one went away before a test passed: the network is untested.
    pub network_untested: bool,
    /// Whether the taints stand.
    pub guard: TaintGuard,
    /// From the first round's start to the last one's end.
    pub took: Duration,
}

/// Tainting too large a share of a cluster is worse than tainting none: the cause is then a switch, a driver, an
/// image or the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaintGuard {
    /// Nodes that deserve a taint.
    pub taints: u32,
    /// More than this many are not given: the larger of 2 and the policy's share.
    pub limit: u32,
    /// `taints > limit`: no node is tainted.
    pub mass_failure: bool,
}

/// What one round tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// From the check's start to its own.
    pub began: Duration,
    /// From its start to its last report.
    pub took: Duration,
    /// Its groups of two or three.
    pub tests: Vec<TestRecord>,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestRecord {
    pub kind: Kind,
    pub members: Vec<u32>,
    /// They are not all of one rack. Tests within racks and tests between racks are two classes.
    pub across: bool,
    pub result: TestResult,
    /// From the check's start to its last report.
    pub ended: Duration,
    /// The longest of its members' times; an estimate when it was cut short.
    pub comm: Option<Duration>,
    /// `comm` as thousandths of the baseline.
    pub ratio_permille: Option<u32>,
    /// The baseline; `None` where it failed, or there is none.
    pub baseline: Option<Baseline>,
    /// The lowest of its members' bandwidths.
    pub bytes_per_second: Option<u64>,
    /// The reasons of the members that did not pass, with their numbers.
    pub reasons: Vec<(u32, String)>,
    /// A member is known to be broken or lost, so it is no evidence against the others.
    pub explained: bool,
}

/// A baseline: the mean time of the nodes that were not in the test. The formula is in `docs/network-check.md`, "How
/// times are judged".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// The mean.
    pub time: Duration,
    /// The number of nodes in the mean.
    pub counted: u32,
    /// The number of outliers.
    pub left_out: u32,
    /// Of all tests: too few other nodes were in tests of its class.
    pub of_all: bool,
}

/// A node's compute time, and its baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeFinding {
    pub kind: ComputeKind,
    /// The first sample, and the repeated ones, in order.
    pub samples: Vec<Duration>,
    /// The mean of the other nodes' first samples of this kind; `None` where too few others timed the same, or they
    /// disagree.
    pub baseline: Option<Duration>,
    /// The number of nodes in the mean.
    pub counted: u32,
    /// The number of outliers.
    pub left_out: u32,
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestResult {
    /// Both ends are verified.
    Pass,
    /// It worked, and took too long.
    Slow,
    /// It did not work.
    Fail,
}

/// The finding on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFinding {
    pub verdict: NodeVerdict,
    /// A taint is given: deserved, and not withheld by the guard.
    pub tainted: bool,
    /// It does not take part in the job. Tainted nodes, and also healthy ones that cannot be reached.
    pub excluded: bool,
    pub evidence: Vec<Evidence>,
    /// Its compute time as thousandths of the mean of the others that timed the same; the lowest of its samples.
    pub compute_permille: Option<u32>,
    /// Its compute time; `None` where it was not measured, or has a fault of its own.
    pub compute: Option<ComputeFinding>,
    /// The lowest of its tests' ratios.
    pub comm_permille: Option<u32>,
}

/// The verdict on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeVerdict {
    /// The node passed a test.
    Healthy,
    /// The node passed no test, and failed with enough verified nodes.
    Fault,
    /// The self-test of the node found a fault.
    LocalFault(LocalFault),
    /// The node was lost during the check.
    Lost { reason: String },
    /// The node may be healthy, and its rack cannot be reached from the others.
    Unreachable,
    /// The compute time of the node is too long, each time it was measured.
    StragglerCompute,
    /// The transfers of the node take too long, with enough verified nodes.
    StragglerNetwork,
    /// The node fails intermittently.
    Flaky,
    /// There is not enough evidence for or against the node.
    Inconclusive,
}

/// One fact that supports a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Index into [`Outcome::rounds`]; `None`: it was found before any round.
    pub round: Option<u32>,
    /// Its partners.
    pub partners: Vec<u32>,
    /// With the numbers and their units. Nodes are called `node N` here.
    #[serde(rename = "words")]
    pub message: String,
}

/// What is wrong with a link between two good nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// It failed twice and never worked.
    Dead,
    /// It was too slow twice.
    Slow,
    /// It works sometimes.
    Flaky,
}

/// A bad link between two good nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFault {
    /// The lower node first.
    pub nodes: (u32, u32),
    /// Its fault.
    pub kind: LinkKind,
}

/// A bad path between two racks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackPairFault {
    /// The lower rack first.
    pub racks: (u32, u32),
    /// The pairs of nodes that failed over it.
    pub pairs: Vec<(u32, u32)>,
}

/// Part of a rack's uplinks are dead, as where one of several uplinks died and a hash picks the path of each pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialUplink {
    pub rack: u32,
    /// Pairs out of it that failed each time.
    pub dead: u32,
    /// Pairs out of it that were tested.
    pub tested: u32,
}

/// An element of a fabric that may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkElement {
    /// A node, or its card.
    Node(u32),
    /// The path between two nodes, the lower first.
    Link(u32, u32),
    /// All paths between two racks, the lower first.
    RackPair(u32, u32),
    /// All uplinks of a rack.
    Uplink(u32),
    /// Part of the uplinks of a rack.
    PartialUplink(u32),
    /// The switch of a rack: no node is reached, not even from inside.
    Leaf(u32),
    /// All uplinks of a pod.
    Pod(u32),
}

/// Explanations of the same size for the same tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ambiguity {
    /// One of these, ascending.
    pub candidates: Vec<NetworkElement>,
}

/// What is known to be cut, and what follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Healthy nodes that cannot train together with the others: excluded if the policy says so.
    pub left_out: Vec<u32>,
    /// In one sentence.
    #[serde(rename = "words")]
    pub message: String,
}
