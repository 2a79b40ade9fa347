//! What is wrong between nodes, as JSON and in words.

use std::fmt;

use serde::Serialize;

use super::TaintReport;
use diagnosis::network_check::{Ambiguity, Cut, Element, LinkKind, PartialUplink};

/// The part of the document that is about paths and switches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FabricDocument<'a> {
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

impl TaintReport {
    pub(super) fn fabric(&self) -> FabricDocument<'_> {
        let outcome = &self.outcome;
        let racks = |racks: &[u32]| racks.iter().map(|rack| self.rack(*rack)).collect();
        let links = outcome.links.iter();
        let pairs = outcome.rack_pairs.iter();
        let partial = |it: &PartialUplink| {
            let PartialUplink { rack, dead, tested } = *it;
            PartialUplinkDocument { rack: self.rack(rack), dead, tested }
        };
        let ambiguity = |it: &Ambiguity| AmbiguityDocument {
            candidates: it.candidates.iter().map(|element| self.element(*element)).collect(),
        };
        FabricDocument {
            links: links
                .map(|link| LinkDocument { nodes: [link.nodes.0, link.nodes.1], kind: link.kind })
                .collect(),
            rack_pairs: pairs
                .map(|pair| RackPairDocument {
                    racks: [self.rack(pair.racks.0), self.rack(pair.racks.1)],
                    pairs: &pair.pairs,
                })
                .collect(),
            uplinks: racks(&outcome.uplinks),
            leaves: racks(&outcome.leaves),
            pods: outcome.pods.iter().map(|pod| self.pod(*pod)).collect(),
            partial_uplinks: outcome.partial_uplinks.iter().map(partial).collect(),
            ambiguous: outcome.ambiguous.iter().map(ambiguity).collect(),
            cut: outcome.cut.as_ref().map(|Cut { left_out, words }| CutDocument { left_out, words }),
        }
    }

    fn element(&self, element: Element) -> ElementDocument {
        let (mut nodes, mut racks, mut pods) = (Vec::new(), Vec::new(), Vec::new());
        let kind = match element {
            Element::Node(node) => {
                nodes.push(node);
                "node"
            }
            Element::Link(a, b) => {
                nodes.extend([a, b]);
                "link"
            }
            Element::RackPair(a, b) => {
                racks.extend([self.rack(a), self.rack(b)]);
                "rack-pair"
            }
            Element::Uplink(rack) => {
                racks.push(self.rack(rack));
                "uplink"
            }
            Element::PartialUplink(rack) => {
                racks.push(self.rack(rack));
                "partial-uplink"
            }
            Element::Leaf(rack) => {
                racks.push(self.rack(rack));
                "leaf"
            }
            Element::Pod(pod) => {
                pods.push(self.pod(pod));
                "pod"
            }
        };
        ElementDocument { kind, nodes, racks, pods, words: self.element_words(element) }
    }

    /// What a person calls a part of a fabric.
    #[must_use]
    pub fn element_words(&self, element: Element) -> String {
        match element {
            Element::Node(node) => self.name(node),
            Element::Link(a, b) => format!("the link {} - {}", self.name(a), self.name(b)),
            Element::RackPair(a, b) => format!("the path {} - {}", self.rack(a), self.rack(b)),
            Element::Uplink(rack) => format!("the uplink of {}", self.rack(rack)),
            Element::PartialUplink(rack) => format!("part of the paths out of {}", self.rack(rack)),
            Element::Leaf(rack) => format!("the switch of {}", self.rack(rack)),
            Element::Pod(pod) => format!("the way out of pod {}", self.pod(pod)),
        }
    }

    /// A line for each thing that is wrong between nodes.
    pub(super) fn write_fabric(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = &self.outcome;
        for link in &outcome.links {
            let (a, b) = (self.name(link.nodes.0), self.name(link.nodes.1));
            write!(f, "\n  link {a} - {b}: {}; neither node is tainted", word(link.kind))?;
        }
        for pair in &outcome.rack_pairs {
            let (a, b) = (self.rack(pair.racks.0), self.rack(pair.racks.1));
            write!(f, "\n  path {a} - {b}: dead; no node is tainted for it")?;
        }
        for rack in &outcome.uplinks {
            write!(f, "\n  uplink of {}: dead; its nodes are left out and not tainted", self.rack(*rack))?;
        }
        for rack in &outcome.leaves {
            let rack = self.rack(*rack);
            write!(
                f,
                "\n  switch of {rack}: dead, its nodes do not even reach each other; no node is tainted for it"
            )?;
        }
        for pod in &outcome.pods {
            let pod = self.pod(*pod);
            write!(f, "\n  pod {pod}: no way out of it works; no node is tainted for it")?;
        }
        for PartialUplink { rack, dead, tested } in &outcome.partial_uplinks {
            let rack = self.rack(*rack);
            write!(
                f,
                "\n  paths out of {rack}: part of them are dead, {dead} of {tested} pairs that were tested failed each \
                 time; no node is tainted for it"
            )?;
        }
        for Ambiguity { candidates } in &outcome.ambiguous {
            let candidates: Vec<String> = candidates.iter().map(|it| self.element_words(*it)).collect();
            write!(f, "\n  ambiguous: {}; no node is tainted for it", candidates.join(" or "))?;
        }
        if let Some(Cut { left_out, words }) = &outcome.cut {
            write!(
                f,
                "\n  cut: {words}; {} cannot train together with the others",
                diagnosis::counted::counted(left_out.len(), "node")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{NodeId, RunId},
        taint_report::CheckedNode,
    };
    use diagnosis::{
        moment::Moment,
        network_check::{LocalCheck, NetworkCheck, Policy, Subject},
    };

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
    fn switches_paths_and_cuts_are_told_in_a_line_each_and_by_name_in_the_document() {
        let mut report = whole();
        let document = serde_json::to_value(report.document("k", 0)).unwrap();
        assert_eq!(
            (&document["cut"], &document["leaves"]),
            (&serde_json::Value::Null, &serde_json::json!([]))
        );
        assert_eq!(
            (&document["nodes"][0]["psw"], &document["nodes"][0]["seen_before"]),
            (&"psw-0".into(), &true.into())
        );
        let outcome = &mut report.outcome;
        (outcome.leaves, outcome.pods) = (vec![1], vec![0]);
        outcome.partial_uplinks = vec![PartialUplink { rack: 0, dead: 3, tested: 8 }];
        let candidates = vec![Element::Node(0), Element::RackPair(0, 1), Element::Leaf(7)];
        outcome.ambiguous = vec![Ambiguity { candidates }];
        outcome.cut =
            Some(Cut { left_out: vec![0], words: "asw-0 and asw-1 do not reach each other".into() });
        let table = report.to_string();
        for line in [
            "\n  switch of asw-1: dead, its nodes do not even reach each other; no node is tainted for it",
            "\n  pod psw-0: no way out of it works; no node is tainted for it",
            "\n  paths out of asw-0: part of them are dead, 3 of 8 pairs that were tested failed each time; no node is",
            "\n  ambiguous: node 0 (host-a, 10.0.0.1) or the path asw-0 - asw-1 or the switch of rack 7; no node is",
            "\n  cut: asw-0 and asw-1 do not reach each other; 1 node cannot train together with the others",
        ] {
            assert!(table.contains(line), "{line}: {table}");
        }
        let document = serde_json::to_value(report.document("k", 0)).unwrap();
        assert_eq!(document["leaves"], serde_json::json!(["asw-1"]));
        assert_eq!(
            document["partial_uplinks"][0],
            serde_json::json!({"rack": "asw-0", "dead": 3, "tested": 8})
        );
        let path = serde_json::json!({
            "kind": "rack-pair", "nodes": [], "racks": ["asw-0", "asw-1"], "pods": [], "words": "the path asw-0 - asw-1"
        });
        assert_eq!(document["ambiguous"][0]["candidates"][1], path);
        assert_eq!(document["cut"]["left_out"], serde_json::json!([0]));
    }
}
