//! Part of a rack's uplinks is dead: a hash gives each pair of nodes one of several paths, and some of these died.
//!
//! Then pairs of the same two racks pass or fail, each of them every time. One bundle of paths is a smaller
//! explanation than several links.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    check_log::{CheckLog, Pair, apart},
    fabric::FabricElement,
    facts::Facts,
    links::Edge,
};

/// The share of pairs that fails at least; fewer are links.
const SHARE: usize = 10;

/// A rack with partly dead uplinks.
#[derive(Debug, Clone)]
pub(super) struct PartialUplinkFault {
    /// Its index.
    pub(super) rack: u32,
    /// Pairs out of it that failed each time.
    pub(super) dead: Vec<Pair>,
    /// How many pairs out of it were tested.
    pub(super) tested: usize,
}

impl PartialUplinkFault {
    /// Whether this explains a path between two racks, too.
    pub(super) fn replaces(&self, element: FabricElement) -> bool {
        matches!(element, FabricElement::Path(a, b) if a == self.rack || b == self.rack)
    }

    /// Whether the two meet over its uplinks.
    pub(super) fn has(&self, log: &CheckLog, (a, b): Pair) -> bool {
        let (a, b) = (log.rack(a), log.rack(b));
        a != b && (a == self.rack || b == self.rack)
    }
}

/// Racks with several dead pairs, the one with the most evidence first. A path between two racks that is dead with
/// other pairs out of one of them is no path: one bundle explains both.
pub(super) fn uplinks(log: &CheckLog, facts: &Facts) -> Vec<PartialUplinkFault> {
    let mut dead = suspects(log, facts, |edge| edge.is_dead());
    let mut found: Vec<PartialUplinkFault> = Vec::new();
    loop {
        let most = dead
            .iter()
            .map(|(rack, pairs)| (apart(pairs.iter().copied()), pairs.len(), std::cmp::Reverse(*rack)))
            .max();
        let Some((2.., _, std::cmp::Reverse(rack))) = most else { break };
        let pairs = dead.remove(&rack).unwrap_or_default();
        for others in dead.values_mut() {
            others.retain(|ends| !pairs.contains(ends));
        }
        let tested = tested(log, facts, rack).len();
        if pairs.len() * SHARE >= tested {
            found.push(PartialUplinkFault { rack, dead: pairs, tested });
        }
    }
    found
}

/// By rack: pairs of healthy nodes out of it that failed and never passed. None of a rack where larger elements
/// explain all.
pub(super) fn suspects(
    log: &CheckLog,
    facts: &Facts,
    is_bad: impl Fn(&Edge) -> bool,
) -> BTreeMap<u32, Vec<Pair>> {
    let mut suspects: BTreeMap<u32, Vec<Pair>> = BTreeMap::new();
    let mut open: BTreeSet<u32> = BTreeSet::new();
    if log.racks.len() < 2 {
        return suspects;
    }
    for (ends, edge) in facts.edges.iter().filter(|(ends, _)| facts.are_good(**ends)) {
        let racks = log.racks_of(*ends);
        let is_flaky = [ends.0, ends.1].iter().any(|end| facts.is(*end, |node| node.surely_flaky));
        let mut over = facts.fabric.blamed_over(log, *ends);
        if racks.0 == racks.1 || edge.passes > 0 || is_flaky || !is_bad(edge) {
            continue;
        }
        if over.any(|blamed| !matches!(blamed.element, FabricElement::Path(..))) {
            continue;
        }
        if !edge.is_explained && !facts.is_cut(log, *ends) {
            open.extend([racks.0, racks.1]);
        }
        suspects.entry(racks.0).or_default().push(*ends);
        suspects.entry(racks.1).or_default().push(*ends);
    }
    suspects.retain(|rack, _| open.contains(rack));
    suspects
}

/// Pairs of healthy nodes out of a rack that were tested.
pub(super) fn tested(log: &CheckLog, facts: &Facts, rack: u32) -> BTreeSet<Pair> {
    let is_out = |ends: &Pair| {
        let racks = log.racks_of(*ends);
        racks.0 != racks.1 && (racks.0 == rack || racks.1 == rack)
    };
    facts.pairs.iter().map(|test| test.ends).filter(|ends| is_out(ends) && facts.are_good(*ends)).collect()
}
