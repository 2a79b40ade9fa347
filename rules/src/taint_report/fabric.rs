//! What is wrong between nodes, in lines of text.

use std::fmt;

use super::TaintReport;
use diagnosis::{
    counted::named_and_more,
    network_check::{Ambiguity, Cut, LinkKind, NetworkElement, PartialUplink},
};

/// The most nodes that a line names.
const NAMED: usize = 8;

impl TaintReport {
    /// The name of a part of the fabric.
    #[must_use]
    pub fn describe(&self, element: NetworkElement) -> String {
        match element {
            NetworkElement::Node(node) => self.name(node),
            NetworkElement::Link(a, b) => format!("the link {} - {}", self.name(a), self.name(b)),
            NetworkElement::RackPair(a, b) => format!("the path {} - {}", self.rack(a), self.rack(b)),
            NetworkElement::Uplink(rack) => format!("the uplink of {}", self.rack(rack)),
            NetworkElement::PartialUplink(rack) => format!("some uplinks of {}", self.rack(rack)),
            NetworkElement::Leaf(rack) => format!("the switch of {}", self.rack(rack)),
            NetworkElement::Pod(pod) => format!("the uplinks or the switch of {}", self.pod_name(pod)),
        }
    }

    /// `pod psw-3`, by the name of its switch; `pod 3` where that is unknown.
    fn pod_name(&self, number: u32) -> String {
        self.pods.get(number as usize).map_or_else(|| self.pod(number), |name| format!("pod {name}"))
    }

    /// A line for each fault between nodes.
    pub(super) fn write_fabric(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = &self.outcome;
        for link in &outcome.links {
            let (a, b) = (self.name(link.nodes.0), self.name(link.nodes.1));
            write!(f, "\n  link {a} - {b}: {}; neither node is tainted", kind_text(link.kind))?;
        }
        for pair in &outcome.rack_pairs {
            let (a, b) = (self.rack(pair.racks.0), self.rack(pair.racks.1));
            write!(f, "\n  path {a} - {b}: down; no node is tainted for it")?;
        }
        for rack in &outcome.uplinks {
            write!(f, "\n  uplink of {}: down; no node is tainted for it", self.rack(*rack))?;
        }
        for rack in &outcome.leaves {
            let rack = self.rack(*rack);
            write!(
                f,
                "\n  switch of {rack}: down (its nodes cannot even reach each other); no node is tainted for it"
            )?;
        }
        for pod in &outcome.pods {
            let pod = self.pod_name(*pod);
            write!(
                f,
                "\n  paths out of {pod}: down (its nodes reach no other pod); no node is tainted for it"
            )?;
        }
        for PartialUplink { rack, dead, tested } in &outcome.partial_uplinks {
            let rack = self.rack(*rack);
            write!(
                f,
                "\n  uplinks of {rack}: partly down ({dead} of {tested} tested pairs failed each time); no node is \
                 tainted for it"
            )?;
        }
        for Ambiguity { candidates } in &outcome.ambiguous {
            let candidates: Vec<String> = candidates.iter().map(|it| self.describe(*it)).collect();
            write!(f, "\n  ambiguous: {}; no node is tainted for it", candidates.join(" or "))?;
        }
        if let Some(Cut { left_out, message }) = &outcome.cut {
            let named = left_out.iter().take(NAMED).map(|node| self.name(*node));
            let named = named_and_more(named, left_out.len());
            write!(f, "\n  cut: {message}; cannot train with the others: {named}")?;
        }
        Ok(())
    }
}

fn kind_text(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Dead => "down",
        LinkKind::Slow => "slow",
        LinkKind::Flaky => "works intermittently",
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
    fn each_fault_of_the_fabric_has_a_line() {
        let mut report = whole();
        let outcome = &mut report.outcome;
        (outcome.leaves, outcome.pods) = (vec![1], vec![0, 3]);
        outcome.partial_uplinks = vec![PartialUplink { rack: 0, dead: 3, tested: 8 }];
        let candidates =
            vec![NetworkElement::Node(0), NetworkElement::RackPair(0, 1), NetworkElement::Leaf(7)];
        outcome.ambiguous = vec![Ambiguity { candidates }];
        outcome.cut =
            Some(Cut { left_out: vec![0], message: "asw-0 and asw-1 do not reach each other".into() });
        let table = report.to_string();
        for line in [
            "\n  switch of asw-1: down (its nodes cannot even reach each other); no node is tainted for it",
            "\n  paths out of pod psw-0: down (its nodes reach no other pod); no node is tainted for it",
            "\n  paths out of pod 3: down (its nodes reach no other pod); no node is tainted for it",
            "\n  uplinks of asw-0: partly down (3 of 8 tested pairs failed each time); no node is",
            "\n  ambiguous: node number 0 (host-a, 10.0.0.1) or the path asw-0 - asw-1 or the switch of rack 7; no node is",
            "\n  cut: asw-0 and asw-1 do not reach each other; cannot train with the others: node number 0 (host-a, 10.0.0.1)",
        ] {
            assert!(table.contains(line), "{line}: {table}");
        }
        assert_eq!(report.describe(NetworkElement::Pod(0)), "the uplinks or the switch of pod psw-0");
        assert_eq!(report.describe(NetworkElement::Pod(3)), "the uplinks or the switch of pod 3");
    }
}
