//! What a check of a job came to, with the names of its nodes: the document that an operator acts upon.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    gpus::Inventory,
    ids::{NodeId, NodeRank, RunId},
    network_check::{
        Evidence, LinkKind, NodeFinding, NodeVerdict, Outcome, RoundRecord, TestRecord, TestResult,
    },
    node::JoinRequest,
};

/// The version of the document.
pub const SCHEMA: &str = "dlrover.taint-report/v1";

/// What a check came to, and who was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaintReport {
    /// The job.
    pub job: RunId,
    /// Which of its checks, counted from 0.
    pub check: u32,
    /// Who was checked, by number.
    pub nodes: Vec<CheckedNode>,
    /// The switches that rack numbers stand for; empty where no topology is known.
    pub racks: Vec<String>,
    /// The switches that pod numbers stand for; empty where no topology is known.
    pub pods: Vec<String>,
    /// What it came to.
    pub outcome: Outcome,
}

/// A node as the report names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedNode {
    /// The launcher.
    pub id: NodeId,
    /// The rank it asked for, or held last.
    pub rank: Option<NodeRank>,
    /// Its host name.
    pub host: String,
    /// The address that was tested.
    pub ip: String,
    /// Its Kubernetes node, when it is known.
    pub k8s_node: Option<String>,
    /// Its pod, when it is known.
    pub pod: Option<String>,
    /// Its rack's number.
    pub rack: u32,
    /// The number of its pod of racks, which hang under one switch of the second level.
    pub psw: u32,
    /// What its accelerators are, as far as it has told by the end of the check.
    pub inventory: Option<Box<Inventory>>,
    /// What it said of itself that does not keep it out.
    pub notes: Vec<String>,
}

impl CheckedNode {
    /// A node as it joined.
    #[must_use]
    pub fn new(request: &JoinRequest, rank: Option<NodeRank>, ip: String, rack: u32, psw: u32) -> Self {
        Self {
            id: request.node_id.clone(),
            rank,
            host: request.attributes.host_name.clone(),
            ip,
            k8s_node: request.attributes.k8s_node_name.clone(),
            pod: request.attributes.pod_name.clone(),
            rack,
            psw,
            inventory: None,
            notes: request.checked.as_ref().map(|checked| checked.local.notes.clone()).unwrap_or_default(),
        }
    }
}

/// How Kubernetes keeps pods off a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taint {
    /// Configurable, `dlrover.io/node-check` unless told otherwise.
    pub key: String,
    /// The verdict, or what is broken: see [`NodeVerdict::taint_value`].
    pub value: &'static str,
    /// `NoSchedule`: pods that run there stay.
    pub effect: &'static str,
}

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
    links: Vec<LinkDocument>,
    rack_pairs: Vec<RackPairDocument<'a>>,
    uplinks: Vec<String>,
    guard: GuardDocument,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct RoundDocument<'a> {
    round: usize,
    seconds: f64,
    tests: Vec<TestDocument<'a>>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TestDocument<'a> {
    kind: crate::network_check::Kind,
    nodes: &'a [u32],
    result: TestResult,
    comm_ms: Option<f64>,
    ratio: Option<f64>,
    mb_per_s: Option<f64>,
    reasons: Vec<ReasonDocument<'a>>,
    explained: bool,
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
        let links = self.outcome.links.iter();
        let pairs = self.outcome.rack_pairs.iter();
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
            links: links
                .map(|link| LinkDocument { nodes: [link.nodes.0, link.nodes.1], kind: link.kind })
                .collect(),
            rack_pairs: pairs
                .map(|pair| RackPairDocument {
                    racks: [self.rack(pair.racks.0), self.rack(pair.racks.1)],
                    pairs: &pair.pairs,
                })
                .collect(),
            uplinks: self.outcome.uplinks.iter().map(|rack| self.rack(*rack)).collect(),
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

    /// What a person calls the node of this number.
    #[must_use]
    pub fn name(&self, number: u32) -> String {
        match self.nodes.get(number as usize) {
            Some(CheckedNode { host, ip, .. }) if host.is_empty() || host == ip => {
                format!("node {number} ({ip})")
            }
            Some(CheckedNode { host, ip, .. }) => format!("node {number} ({host}, {ip})"),
            None => format!("node {number}"),
        }
    }

    /// The switch that a rack's number stands for.
    #[must_use]
    pub fn rack(&self, number: u32) -> String {
        self.racks.get(number as usize).cloned().unwrap_or_else(|| format!("rack {number}"))
    }

    /// The switch that a pod's number stands for.
    #[must_use]
    pub fn pod(&self, number: u32) -> String {
        self.pods.get(number as usize).cloned().unwrap_or_else(|| format!("pod {number}"))
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
            verdict,
            component: match &finding.verdict {
                NodeVerdict::LocalFault(fault) => Some(&fault.component),
                _ => None,
            },
            excluded: finding.excluded,
            taint: finding.tainted.then(taint),
            evidence: finding.evidence.iter().map(evidence).collect(),
            notes: &node.notes,
            look_at: finding.verdict.look_at(),
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
        result: it.result,
        comm_ms: it.comm.map(|comm| comm.as_secs_f64() * 1000.0),
        ratio: it.ratio_permille.map(ratio),
        mb_per_s: it.bytes_per_second.map(megabytes),
        reasons: it.reasons.iter().map(|(node, words)| ReasonDocument { node: *node, words }).collect(),
        explained: it.explained,
    });
    RoundDocument { round, seconds: record.took.as_secs_f64(), tests: tests.collect() }
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

/// The most nodes that a table shows when nothing is wrong with them.
const SHOWN: usize = 16;

/// The most nodes that a table shows. The document has them all.
const ROWS: usize = 64;

/// A short table for the master's log: what was found, and node by round.
impl fmt::Display for TaintReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { rounds, nodes, links, rack_pairs, uplinks, guard, took, .. } = &self.outcome;
        let fit = nodes.iter().filter(|node| node.verdict == NodeVerdict::Healthy).count();
        write!(
            f,
            "network check {}: {fit} of {} node(s) healthy after {} round(s), {:.2} s",
            self.check,
            nodes.len(),
            rounds.len(),
            took.as_secs_f64()
        )?;
        if self.outcome.network_untested {
            write!(f, "; the network was not tested, which takes two nodes")?;
        }
        let width = (0..).zip(&self.nodes).map(|(number, _)| self.name(number).len()).max().unwrap_or(0);
        let shows_all = self.nodes.len() <= SHOWN;
        let notes = |number: u32| self.nodes.get(number as usize).map_or(&[][..], |node| &node.notes);
        let is_shown = |(number, it): &(u32, &NodeFinding)| {
            shows_all || it.verdict != NodeVerdict::Healthy || !notes(*number).is_empty()
        };
        let shown = (0..).zip(nodes).filter(is_shown);
        let of = shown.clone().count();
        for (number, finding) in shown.take(ROWS) {
            write!(f, "\n  {:width$}", self.name(number))?;
            for record in rounds {
                write!(f, "  {:<14}", Cell { record, number }.to_string())?;
            }
            write!(f, "  {}", finding.verdict.word())?;
            write!(f, "{}", if finding.tainted { ", taint" } else { "" })?;
            for Evidence { words, .. } in &finding.evidence {
                write!(f, "\n      {words}")?;
            }
            for note in notes(number) {
                write!(f, "\n      degraded, {note}")?;
            }
        }
        if of > ROWS {
            write!(f, "\n  and {} more", of - ROWS)?;
        }
        if !shows_all && fit > 0 {
            write!(f, "\n  and {fit} healthy node(s)")?;
        }
        for link in links {
            let (a, b) = (self.name(link.nodes.0), self.name(link.nodes.1));
            write!(f, "\n  link {a} - {b}: {}; neither node is tainted", word(link.kind))?;
        }
        for pair in rack_pairs {
            let (a, b) = (self.rack(pair.racks.0), self.rack(pair.racks.1));
            write!(f, "\n  path {a} - {b}: dead; no node is tainted for it")?;
        }
        for rack in uplinks {
            write!(f, "\n  uplink of {}: dead; its nodes are left out and not tainted", self.rack(*rack))?;
        }
        if guard.mass_failure {
            write!(
                f,
                "\n  {} taints withheld: more than {} of {} nodes point at a switch, a driver, an image or the \
                 configuration",
                guard.taints,
                guard.limit,
                nodes.len()
            )?;
        }
        Ok(())
    }
}

fn word(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Dead => "dead",
        LinkKind::Slow => "slow",
        LinkKind::Flaky => "works now and then",
    }
}

/// What one node did in one round.
struct Cell<'a> {
    record: &'a RoundRecord,
    number: u32,
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(test) = self.record.tests.iter().find(|test| test.members.contains(&self.number)) else {
            return f.write_str("-");
        };
        let result = match test.result {
            TestResult::Pass => "ok",
            TestResult::Slow => "slow",
            TestResult::Fail => "FAIL",
        };
        let others: Vec<String> =
            test.members.iter().filter(|member| **member != self.number).map(u32::to_string).collect();
        write!(f, "{result} with {}", others.join(","))
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        network_check::{LocalFault, NodeVerdict},
        switchbox,
    };

    #[test]
    fn a_taint_says_what_other_hands_than_a_nodes_mend() {
        let of = |component: &str| {
            let fault = LocalFault { component: component.to_owned(), reason: "r".into() };
            NodeVerdict::LocalFault(fault)
        };
        assert_eq!(of(switchbox::COMPONENT).taint_value(), "switchbox");
        assert_eq!(of(switchbox::COMPONENT).word(), "local-fault");
        assert!(of(switchbox::COMPONENT).look_at().starts_with("the optical modules"));
        assert_eq!(of("gpu 3").taint_value(), "local-fault");
        assert_eq!(NodeVerdict::Fault.taint_value(), "fault");
    }
}
