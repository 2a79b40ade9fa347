//! Healthy nodes that are tainted or excluded.

use std::fmt;

use diagnosis::network_check::{NodeFinding, NodeVerdict, Outcome};
use serde::Serialize;

use super::super::settings::Settings;

/// A healthy node that is tainted or excluded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::rehearse) struct Blamed {
    pub(super) node: u32,
    pub(super) tainted: bool,
    pub(super) excluded: bool,
    pub(super) verdict: &'static str,
    /// The simulated fabric does not let it reach all of the nodes that stay.
    pub(super) cut_off: bool,
    /// The verdict of the check.
    why: String,
}

impl Blamed {
    /// It is excluded and no more than that, and the simulated fabric cuts it off.
    pub(in crate::rehearse) fn is_right(&self) -> bool {
        self.cut_off && !self.tainted
    }

    pub(in crate::rehearse) fn node(&self) -> u32 {
        self.node
    }
}

/// A healthy node that the check excludes or taints, without the evidence, which the line of the node has.
impl fmt::Display for Blamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self { node, .. }, verdict) = (self, self.verdict.replace('-', " "));
        match (self.is_right(), self.tainted) {
            (true, _) => write!(f, "excluded, since the simulated fault cuts it off: node {node}: {verdict}"),
            (false, true) => {
                write!(f, "found at fault, though it is healthy: node {node}: {verdict}, tainted")
            }
            (false, false) => {
                write!(f, "excluded, though it is healthy: node {node}: {verdict}, not tainted")
            }
        }
    }
}

/// All of them, by number; first those that nothing cuts off.
pub(super) fn blamed(settings: &Settings, outcome: &Outcome) -> Vec<Blamed> {
    let (cluster, last) = (&settings.cluster, super::last_round(outcome));
    let staying = super::staying(outcome);
    let mut blamed: Vec<Blamed> = (0..)
        .zip(&outcome.nodes)
        .filter(|(node, found)| (found.tainted || found.excluded) && super::is_healthy(settings, *node))
        .map(|(node, found)| Blamed {
            node,
            tainted: found.tainted,
            excluded: found.excluded,
            verdict: word(&found.verdict),
            cut_off: staying.iter().any(|other| *other != node && cluster.is_cut_in(last, node, *other)),
            why: why(outcome, node, found),
        })
        .collect();
    blamed.sort_by_key(Blamed::is_right);
    blamed
}

fn why(outcome: &Outcome, node: u32, found: &NodeFinding) -> String {
    let verdict = word(&found.verdict).replace('-', " ");
    let cut = outcome.cut.iter().filter(|cut| cut.left_out.contains(&node)).map(|cut| cut.message.as_str());
    let words: Vec<&str> = found.evidence.iter().map(|it| it.message.as_str()).chain(cut).collect();
    if words.is_empty() { verdict } else { format!("{verdict}: {}", words.join("; ")) }
}

/// As the documents call it.
pub(in crate::rehearse) fn word(verdict: &NodeVerdict) -> &'static str {
    match verdict {
        NodeVerdict::Healthy => "healthy",
        NodeVerdict::Fault => "fault",
        NodeVerdict::LocalFault(_) => "local-fault",
        NodeVerdict::Lost { .. } => "lost",
        NodeVerdict::Unreachable => "unreachable",
        NodeVerdict::StragglerCompute => "straggler-compute",
        NodeVerdict::StragglerNetwork => "straggler-network",
        NodeVerdict::Flaky => "flaky",
        NodeVerdict::Inconclusive => "inconclusive",
    }
}
