//! The taint report as JSON.

use std::time::Duration;

use serde::Serialize;

use diagnosis::{
    gpus::Inventory,
    network_check::{
        Ambiguity, ComputeFinding, Cut, Evidence, Kind, LinkKind, NetworkElement, NodeFinding, NodeVerdict,
        PartialUplink, RoundRecord, TestRecord, TestResult,
    },
};
use rules::taint_report::{CheckedNode, TaintReport};

/// The version of the document.
const SCHEMA: &str = "dlrover.taint-report/v1";

/// The document, as it is written.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Document<'a> {
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
    kind: Kind,
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
pub(super) struct ComputeDocument {
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
pub(super) struct NodeDocument<'a> {
    /// Its number in this check.
    pub(super) number: usize,
    /// The launcher.
    pub(super) id: &'a str,
    /// The rank it asked for, or held last.
    pub(super) rank: Option<u32>,
    /// Its host name.
    pub(super) host: &'a str,
    /// The address that was tested.
    pub(super) ip: &'a str,
    /// Its Kubernetes node.
    pub(super) k8s_node: Option<&'a str>,
    /// Its pod.
    pub(super) pod: Option<&'a str>,
    /// Its switch.
    pub(super) rack: Option<String>,
    /// The switch above that one.
    pub(super) psw: Option<String>,
    /// An earlier check of the job called its machine `flaky` or `lost`.
    pub(super) seen_before: bool,
    /// In one word.
    pub(super) verdict: &'static str,
    /// What is broken, of a local fault.
    pub(super) component: Option<&'a str>,
    /// It takes no part in the job.
    pub(super) excluded: bool,
    /// What to do to the Kubernetes node.
    pub(super) taint: Option<Taint>,
    /// What speaks for the verdict.
    pub(super) evidence: Vec<EvidenceDocument<'a>>,
    /// What is wrong with it and does not keep it out.
    pub(super) notes: &'a [String],
    /// What a person looks at first.
    pub(super) look_at: &'static str,
    /// What it took to compute.
    pub(super) compute: Option<ComputeDocument>,
    /// Its compute time over the mean of the others that timed the same.
    pub(super) compute_ratio: Option<f64>,
    /// The lowest of its tests' times over the mean of the others.
    pub(super) comm_ratio: Option<f64>,
    /// Its accelerators and its host, as `dlrover-diag gpus --json` has them.
    pub(super) inventory: Option<&'a Inventory>,
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct EvidenceDocument<'a> {
    /// Index into the rounds.
    pub(super) round: Option<u32>,
    /// Numbers of the nodes that it was seen with.
    pub(super) with: &'a [u32],
    /// In words.
    pub(super) words: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct GuardDocument {
    taints: u32,
    limit: u32,
    mass_failure: bool,
}

/// How Kubernetes keeps pods off a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Taint {
    key: String,
    /// The verdict, or what is broken: see [`NodeVerdict::taint_value`].
    value: &'static str,
    /// `NoSchedule`: pods that run there stay.
    effect: &'static str,
}

/// The part of the document that is about paths and switches.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FabricDocument<'a> {
    links: Vec<LinkDocument>,
    rack_pairs: Vec<RackPairDocument<'a>>,
    uplinks: Vec<String>,
    leaves: Vec<String>,
    pods: Vec<String>,
    partial_uplinks: Vec<PartialUplinkDocument>,
    ambiguous: Vec<AmbiguityDocument>,
    cut: Option<CutDocument<'a>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct LinkDocument {
    nodes: [u32; 2],
    kind: LinkKind,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RackPairDocument<'a> {
    racks: [String; 2],
    pairs: &'a [(u32, u32)],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct PartialUplinkDocument {
    rack: String,
    dead: u32,
    tested: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct AmbiguityDocument {
    candidates: Vec<ElementDocument>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ElementDocument {
    kind: &'static str,
    /// Of a node or a link.
    nodes: Vec<u32>,
    /// Of all but nodes, links and pods.
    racks: Vec<String>,
    /// Of a pod.
    pods: Vec<String>,
    words: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct CutDocument<'a> {
    left_out: &'a [u32],
    words: &'a str,
}

/// Returns the document as text. `key` is the taints'; `written_unix_ms` is now, in milliseconds since 1970.
#[must_use]
pub fn taint_document(report: &TaintReport, key: &str, written_unix_ms: u64) -> String {
    let TaintReport { job, check, outcome, .. } = report;
    let document = Document {
        schema: SCHEMA,
        job: &job.0,
        epoch: *check,
        seed: outcome.seed.to_string(),
        written_unix_ms,
        took_seconds: outcome.took.as_secs_f64(),
        network_untested: outcome.network_untested,
        slow_confirmations: outcome.slow_confirmations,
        rounds: (0..).zip(&outcome.rounds).map(|(round, it)| round_document(round, it)).collect(),
        nodes: nodes(report, key).collect(),
        fabric: fabric(report),
        guard: GuardDocument {
            taints: outcome.guard.taints,
            limit: outcome.guard.limit,
            mass_failure: outcome.guard.mass_failure,
        },
    };
    // Plain data: it cannot fail.
    serde_json::to_string_pretty(&document).unwrap_or_default()
}

/// Every node with its finding, by number.
pub(super) fn nodes<'a>(report: &'a TaintReport, key: &'a str) -> impl Iterator<Item = NodeDocument<'a>> {
    let found = report.nodes.iter().zip(&report.outcome.nodes);
    (0..).zip(found).map(|(number, (node, finding))| node_document(report, number, node, finding, key))
}

fn node_document<'a>(
    report: &'a TaintReport,
    number: usize,
    node: &'a CheckedNode,
    finding: &'a NodeFinding,
    key: &'a str,
) -> NodeDocument<'a> {
    let taint = || Taint { key: key.to_owned(), value: finding.verdict.taint_value(), effect: "NoSchedule" };
    let evidence = |Evidence { round, partners, message }: &'a Evidence| EvidenceDocument {
        round: *round,
        with: partners,
        words: message,
    };
    NodeDocument {
        number,
        id: &node.id.0,
        rank: node.rank.map(|rank| rank.0),
        host: &node.host,
        ip: &node.ip,
        k8s_node: node.k8s_node.as_deref(),
        pod: node.pod.as_deref(),
        rack: (!report.racks.is_empty()).then(|| report.rack(node.rack)),
        psw: (!report.pods.is_empty()).then(|| report.pod(node.psw)),
        seen_before: node.seen_before,
        verdict: finding.verdict.as_str(),
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

fn fabric(report: &TaintReport) -> FabricDocument<'_> {
    let outcome = &report.outcome;
    let racks = |racks: &[u32]| racks.iter().map(|rack| report.rack(*rack)).collect();
    let links = outcome.links.iter();
    let pairs = outcome.rack_pairs.iter();
    let partial = |it: &PartialUplink| {
        let PartialUplink { rack, dead, tested } = *it;
        PartialUplinkDocument { rack: report.rack(rack), dead, tested }
    };
    let ambiguity = |it: &Ambiguity| AmbiguityDocument {
        candidates: it.candidates.iter().map(|element| element_document(report, *element)).collect(),
    };
    FabricDocument {
        links: links
            .map(|link| LinkDocument { nodes: [link.nodes.0, link.nodes.1], kind: link.kind })
            .collect(),
        rack_pairs: pairs
            .map(|pair| RackPairDocument {
                racks: [report.rack(pair.racks.0), report.rack(pair.racks.1)],
                pairs: &pair.pairs,
            })
            .collect(),
        uplinks: racks(&outcome.uplinks),
        leaves: racks(&outcome.leaves),
        pods: outcome.pods.iter().map(|pod| report.pod(*pod)).collect(),
        partial_uplinks: outcome.partial_uplinks.iter().map(partial).collect(),
        ambiguous: outcome.ambiguous.iter().map(ambiguity).collect(),
        cut: outcome.cut.as_ref().map(|Cut { left_out, message }| CutDocument { left_out, words: message }),
    }
}

fn element_document(report: &TaintReport, element: NetworkElement) -> ElementDocument {
    let (mut nodes, mut racks, mut pods) = (Vec::new(), Vec::new(), Vec::new());
    let kind = match element {
        NetworkElement::Node(node) => {
            nodes.push(node);
            "node"
        }
        NetworkElement::Link(a, b) => {
            nodes.extend([a, b]);
            "link"
        }
        NetworkElement::RackPair(a, b) => {
            racks.extend([report.rack(a), report.rack(b)]);
            "rack-pair"
        }
        NetworkElement::Uplink(rack) => {
            racks.push(report.rack(rack));
            "uplink"
        }
        NetworkElement::PartialUplink(rack) => {
            racks.push(report.rack(rack));
            "partial-uplink"
        }
        NetworkElement::Leaf(rack) => {
            racks.push(report.rack(rack));
            "leaf"
        }
        NetworkElement::Pod(pod) => {
            pods.push(report.pod(pod));
            "pod"
        }
    };
    ElementDocument { kind, nodes, racks, pods, words: report.describe(element) }
}

#[cfg(test)]
mod tests {
    use diagnosis::{
        moment::Moment,
        network_check::{LocalCheck, NetworkCheck, Policy, Subject},
    };
    use rules::{NodeId, RunId};
    use serde_json::{Value, json};

    use super::*;

    /// One node in one rack of one pod, and nothing wrong.
    fn whole() -> TaintReport {
        let subject = Subject { rack: 0, pod: 0, seen_before: false, local: LocalCheck::default() };
        let (check, _) = NetworkCheck::new(Policy::new(0), Moment::START, vec![subject]);
        let node = CheckedNode {
            id: NodeId("a".into()),
            rank: None,
            host: "host-a".into(),
            ip: "10.0.0.1".into(),
            k8s_node: None,
            pod: None,
            rack: 0,
            psw: 0,
            seen_before: true,
            inventory: None,
            notes: Vec::new(),
        };
        TaintReport {
            job: RunId("job".into()),
            check: 0,
            nodes: vec![node],
            racks: vec!["asw-0".into(), "asw-1".into()],
            pods: vec!["psw-0".into()],
            outcome: check.outcome().unwrap().clone(),
        }
    }

    #[test]
    fn switches_paths_and_cuts_have_their_names_in_the_document() {
        let mut report = whole();
        let document = |report: &TaintReport| -> Value {
            serde_json::from_str(&taint_document(report, "k", 0)).unwrap()
        };
        let healthy = document(&report);
        assert_eq!((&healthy["cut"], &healthy["leaves"]), (&Value::Null, &json!([])));
        let node = &healthy["nodes"][0];
        assert_eq!((&node["psw"], &node["seen_before"]), (&json!("psw-0"), &json!(true)));
        let outcome = &mut report.outcome;
        outcome.leaves = vec![1];
        outcome.partial_uplinks = vec![PartialUplink { rack: 0, dead: 3, tested: 8 }];
        outcome.ambiguous =
            vec![Ambiguity { candidates: vec![NetworkElement::Node(0), NetworkElement::RackPair(0, 1)] }];
        outcome.cut = Some(Cut { left_out: vec![0], message: "asw-0 is cut off".into() });
        let document = document(&report);
        assert_eq!(document["leaves"], json!(["asw-1"]));
        assert_eq!(document["partial_uplinks"][0], json!({"rack": "asw-0", "dead": 3, "tested": 8}));
        let path = json!({
            "kind": "rack-pair", "nodes": [], "racks": ["asw-0", "asw-1"], "pods": [], "words": "the path asw-0 - asw-1"
        });
        assert_eq!(document["ambiguous"][0]["candidates"][1], path);
        assert_eq!(document["cut"]["left_out"], json!([0]));
    }
}
