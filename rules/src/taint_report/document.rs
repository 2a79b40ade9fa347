//! The report as JSON.

use std::time::Duration;

use serde::Serialize;

use super::{CheckedNode, SCHEMA, Taint, TaintReport, fabric::FabricDocument};
use diagnosis::{
    gpus::Inventory,
    network_check::{
        ComputeFinding, Evidence, NodeFinding, NodeVerdict, Outcome, RoundRecord, TestRecord, TestResult,
    },
};

/// The document, as it is written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    job: &'a str,
    epoch: u32,
    /// A decimal number: JSON readers lose digits of large integers.
    seed: String,
    /// When it was written, in milliseconds since 1970.
    written_unix_ms: u64,
    took_seconds: f64,
    network_untested: bool,
    slow_confirmations: u32,
    rounds: Vec<RoundDocument<'a>>,
    nodes: Vec<NodeDocument<'a>>,
    #[serde(flatten)]
    fabric: FabricDocument<'a>,
    guard: GuardDocument,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RoundDocument<'a> {
    round: usize,
    began_seconds: f64,
    seconds: f64,
    tests: Vec<TestDocument<'a>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TestDocument<'a> {
    kind: diagnosis::network_check::Kind,
    nodes: &'a [u32],
    across: bool,
    result: TestResult,
    ended_seconds: f64,
    comm_ms: Option<f64>,
    #[serde(rename = "usual")]
    baseline: Option<BaselineDocument>,
    ratio: Option<f64>,
    mb_per_s: Option<f64>,
    reasons: Vec<ReasonDocument<'a>>,
    explained: bool,
}

/// What a test is held against.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct BaselineDocument {
    ms: f64,
    nodes: u32,
    left_out: u32,
    of_all: bool,
}

/// What a node's compute probe took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComputeDocument {
    /// What was timed, in words.
    timed: String,
    /// The first sample, and those that it was asked for later.
    samples_ms: Vec<f64>,
    /// The mean that they are held against.
    usual_ms: Option<f64>,
    /// So many nodes it is the mean of.
    nodes: u32,
    /// So many more were left out.
    left_out: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ReasonDocument<'a> {
    node: u32,
    words: &'a str,
}

/// One node of the document; also what `--on-fault-node` reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeDocument<'a> {
    /// Its number in this check.
    pub number: usize,
    /// The launcher.
    pub id: &'a str,
    /// The rank it asked for, or held last.
    pub rank: Option<u32>,
    /// Its host name.
    pub host: &'a str,
    /// The address that was tested.
    pub ip: &'a str,
    /// Its Kubernetes node.
    pub k8s_node: Option<&'a str>,
    /// Its pod.
    pub pod: Option<&'a str>,
    /// Its switch.
    pub rack: Option<String>,
    /// The switch above that one.
    pub psw: Option<String>,
    /// An earlier check of the job called its machine `flaky` or `lost`.
    pub seen_before: bool,
    /// In one word.
    pub verdict: &'static str,
    /// What is broken, of a local fault.
    pub component: Option<&'a str>,
    /// It takes no part in the job.
    pub excluded: bool,
    /// What to do to the Kubernetes node.
    pub taint: Option<Taint>,
    /// What speaks for the verdict.
    pub evidence: Vec<EvidenceDocument<'a>>,
    /// What is wrong with it and does not keep it out.
    pub notes: &'a [String],
    /// What a person looks at first.
    pub look_at: &'static str,
    /// What it took to compute.
    pub compute: Option<ComputeDocument>,
    /// Its compute time over the mean of the others that timed the same.
    pub compute_ratio: Option<f64>,
    /// The lowest of its tests' times over the mean of the others.
    pub comm_ratio: Option<f64>,
    /// Its accelerators and its host, as `dlrover-diag gpus --json` has them.
    pub inventory: Option<&'a Inventory>,
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvidenceDocument<'a> {
    /// Index into the rounds.
    pub round: Option<u32>,
    /// Numbers of the nodes that it was seen with.
    pub with: &'a [u32],
    /// In words.
    pub words: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct GuardDocument {
    taints: u32,
    limit: u32,
    mass_failure: bool,
}

impl TaintReport {
    /// The document. `key` is the taints'; `written_unix_ms` is now, in milliseconds since 1970.
    #[must_use]
    pub fn document<'a>(&'a self, key: &'a str, written_unix_ms: u64) -> Document<'a> {
        let Outcome { guard, .. } = &self.outcome;
        Document {
            schema: SCHEMA,
            job: &self.job.0,
            epoch: self.check,
            seed: self.outcome.seed.to_string(),
            written_unix_ms,
            took_seconds: self.outcome.took.as_secs_f64(),
            network_untested: self.outcome.network_untested,
            slow_confirmations: self.outcome.slow_confirmations,
            rounds: (0..).zip(&self.outcome.rounds).map(|(round, it)| round_document(round, it)).collect(),
            nodes: self.nodes(key).collect(),
            fabric: self.fabric(),
            guard: GuardDocument {
                taints: guard.taints,
                limit: guard.limit,
                mass_failure: guard.mass_failure,
            },
        }
    }

    /// Every node with what was found, by number.
    pub fn nodes<'a>(&'a self, key: &'a str) -> impl Iterator<Item = NodeDocument<'a>> {
        let found = self.nodes.iter().zip(&self.outcome.nodes);
        (0..).zip(found).map(|(number, (node, finding))| self.node_document(number, node, finding, key))
    }

    fn node_document<'a>(
        &'a self,
        number: usize,
        node: &'a CheckedNode,
        finding: &'a NodeFinding,
        key: &'a str,
    ) -> NodeDocument<'a> {
        let verdict = finding.verdict.word();
        let taint =
            || Taint { key: key.to_owned(), value: finding.verdict.taint_value(), effect: "NoSchedule" };
        let evidence = |Evidence { round, partners, words }: &'a Evidence| EvidenceDocument {
            round: *round,
            with: partners,
            words,
        };
        NodeDocument {
            number,
            id: &node.id.0,
            rank: node.rank.map(|rank| rank.0),
            host: &node.host,
            ip: &node.ip,
            k8s_node: node.k8s_node.as_deref(),
            pod: node.pod.as_deref(),
            rack: (!self.racks.is_empty()).then(|| self.rack(node.rack)),
            psw: (!self.pods.is_empty()).then(|| self.pod(node.psw)),
            seen_before: node.seen_before,
            verdict,
            component: match &finding.verdict {
                NodeVerdict::LocalFault(fault) => Some(fault.component.as_str()),
                _ => None,
            },
            excluded: finding.excluded,
            taint: finding.tainted.then(taint),
            evidence: finding.evidence.iter().map(evidence).collect(),
            notes: &node.notes,
            look_at: finding.verdict.look_at(),
            compute: finding.compute.as_ref().map(compute_document),
            compute_ratio: finding.compute_permille.map(ratio),
            comm_ratio: finding.comm_permille.map(ratio),
            inventory: node.inventory.as_deref(),
        }
    }
}

fn round_document(round: usize, record: &RoundRecord) -> RoundDocument<'_> {
    let tests = record.tests.iter().map(|it: &TestRecord| TestDocument {
        kind: it.kind,
        nodes: &it.members,
        across: it.across,
        result: it.result,
        ended_seconds: it.ended.as_secs_f64(),
        comm_ms: it.comm.map(millis),
        baseline: it.baseline.map(|baseline| BaselineDocument {
            ms: millis(baseline.time),
            nodes: baseline.counted,
            left_out: baseline.left_out,
            of_all: baseline.of_all,
        }),
        ratio: it.ratio_permille.map(ratio),
        mb_per_s: it.bytes_per_second.map(megabytes),
        reasons: it.reasons.iter().map(|(node, words)| ReasonDocument { node: *node, words }).collect(),
        explained: it.explained,
    });
    let (began_seconds, seconds) = (record.began.as_secs_f64(), record.took.as_secs_f64());
    RoundDocument { round, began_seconds, seconds, tests: tests.collect() }
}

fn compute_document(found: &ComputeFinding) -> ComputeDocument {
    ComputeDocument {
        timed: found.kind.to_string(),
        samples_ms: found.samples.iter().copied().map(millis).collect(),
        usual_ms: found.baseline.map(millis),
        nodes: found.counted,
        left_out: found.left_out,
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn ratio(permille: u32) -> f64 {
    f64::from(permille) / 1000.0
}

/// Bytes per second in MB/s, to a tenth.
fn megabytes(bytes_per_second: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a number for people, to a tenth of a MB/s")]
    let tenths = (bytes_per_second / 100_000) as f64;
    tenths / 10.0
}
