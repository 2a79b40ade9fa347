//! What a check found, as its document says it.

use serde::Deserialize;

use super::schema;

/// As much of it as the cases ask for.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    pub(super) epoch: u32,
    pub(super) seed: String,
    pub(super) network_untested: bool,
    pub(super) rounds: Vec<Round>,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<ReportedLink>,
    pub(super) rack_pairs: Vec<RackPair>,
    pub(super) uplinks: Vec<String>,
    pub(super) cut: Option<Cut>,
    pub(super) guard: Guard,
}

#[derive(Debug, Deserialize)]
pub(super) struct Round {
    pub(super) tests: Vec<Test>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Test {
    pub(super) nodes: Vec<usize>,
    pub(super) result: String,
    pub(super) mb_per_s: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub(super) ip: String,
    pub(super) psw: Option<String>,
    pub(super) verdict: String,
    pub(super) excluded: bool,
    pub(super) taint: Option<Taint>,
    pub(super) evidence: Vec<Evidence>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Taint {
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Evidence {
    pub(super) with: Vec<usize>,
    pub(super) words: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ReportedLink {
    pub(super) nodes: [usize; 2],
    pub(super) kind: String,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct RackPair {
    pub(super) racks: [String; 2],
}

#[derive(Debug, Deserialize)]
pub(super) struct Cut {
    pub(super) left_out: Vec<usize>,
    pub(super) words: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Guard {
    pub(super) taints: u32,
    pub(super) mass_failure: bool,
}

impl Report {
    /// Reads a document, which must be as its schema says. `None`: there is none yet.
    pub(super) fn read(text: &str) -> Option<Self> {
        let document: serde_json::Value = serde_json::from_str(text).ok()?;
        schema::check_document(&document);
        Some(serde_json::from_value(document).expect("the schema says so"))
    }

    /// The verdict on each node, in one word.
    pub(super) fn verdicts(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| &*node.verdict).collect()
    }

    /// These nodes, and no others, are called so, left out and tainted; all others are healthy, and stay. A node that is lost for
    /// the first time is not tainted.
    #[track_caller]
    pub(super) fn blames(&self, bad: &[(usize, &str)]) {
        for (number, node) in self.nodes.iter().enumerate() {
            let verdict = bad.iter().find(|(of, _)| *of == number).map(|(_, verdict)| *verdict);
            assert_eq!(node.verdict, verdict.unwrap_or("healthy"), "node {number}: {self:#?}");
            let taint = verdict.filter(|verdict| *verdict != "lost");
            assert_eq!(node.taint.as_ref().map(|taint| &*taint.value), taint, "node {number}: {self:#?}");
            assert_eq!(node.excluded, verdict.is_some(), "node {number}: {self:#?}");
        }
        assert!(!self.guard.mass_failure, "{self:#?}");
    }

    /// The nodes that the evidence against a node names: healthy ones.
    #[track_caller]
    pub(super) fn witnesses_against(&self, number: usize) -> Vec<usize> {
        let evidence = self.nodes[number].evidence.iter();
        let witnesses: Vec<usize> = evidence.flat_map(|piece| piece.with.iter().copied()).collect();
        let are_healthy = witnesses.iter().all(|witness| self.nodes[*witness].verdict == "healthy");
        assert!(are_healthy, "{self:#?}");
        witnesses
    }

    /// The pairs that the first round tested.
    pub(super) fn first_pairs(&self) -> Vec<[usize; 2]> {
        let tests = self.rounds.iter().take(1).flat_map(|round| &round.tests);
        tests.filter_map(|test| test.nodes.clone().try_into().ok()).collect()
    }
}
