//! The facts about each rack as a whole, by which its uplink is distinguished from its nodes.
//!
//! A node that failed only with nodes of other racks may be healthy, and its rack's uplink broken. A test inside its
//! rack decides: if it passes, the node is healthy. So a node is called broken by its tests inside its rack, or once
//! another node of its rack that failed outside has turned out broken inside, and no healthy one of it fails outside.

use std::collections::BTreeSet;

use super::{
    check_log::CheckLog,
    fabric::Fabric,
    facts::{NodeFacts, PairTest, TestEvidence},
};

/// If nodes are broken at the rate of the other racks, so many racks would fail as a whole by chance. From here on it
/// is as likely as a dead switch.
const LIKELY: f64 = 0.2;

/// With so many of them a rack is worth a round of its nodes before anything else is known of them.
const UNLIKELY: f64 = 0.02;

/// Pairs of healthy nodes that passed out of a rack, with none that failed: its uplink is healthy. One in four dead
/// paths would have shown with more than two in three.
const PASSES: usize = 4;

/// The facts about one rack.
#[derive(Debug, Clone, Default)]
struct Rack {
    live: Vec<u32>,
    /// Its nodes that passed.
    fit: BTreeSet<u32>,
    /// Its nodes that failed inside with a healthy one, or with each other.
    failed_inside: BTreeSet<u32>,
    /// Of those, the ones that failed outside as well.
    broken: BTreeSet<u32>,
    /// Its nodes that did not pass with a healthy one outside.
    failed_outside: BTreeSet<u32>,
    /// Its nodes that passed and have failed with healthy ones since: they may have died.
    failed_since: BTreeSet<u32>,
    /// Pairs of healthy nodes that passed out of it.
    passes: usize,
    /// Two healthy nodes failed over its uplink, and no element of all its uplinks explains it. A path to one other
    /// rack does not: failures over it and a node's failures elsewhere may have part of the uplinks as their common
    /// cause.
    has_trouble: bool,
}

/// The facts about the racks. Empty where there is only one.
#[derive(Debug, Clone, Default)]
pub(super) struct Racks {
    racks: Vec<Rack>,
    /// By rack: it failed as a whole, inside too, and that is no chance.
    dead: Vec<bool>,
    /// By rack: it failed as a whole so far, and that is no chance.
    suspicious: Vec<bool>,
    /// As many broken nodes as have not passed may take another round.
    has_rounds_left: bool,
}

impl Racks {
    pub(super) fn of(log: &CheckLog, pairs: &[PairTest], fabric: &Fabric, nodes: &[NodeFacts]) -> Self {
        if log.racks.len() < 2 {
            return Self::default();
        }
        let mut racks = vec![Rack::default(); log.racks.len()];
        for (number, node) in (0_u32..).zip(nodes).filter(|(_, node)| !node.is_gone) {
            let Some(rack) = racks.get_mut(log.rack(number) as usize) else { continue };
            rack.live.push(number);
            if node.has_passed {
                rack.fit.insert(number);
            }
        }
        let is_fit = |node: u32| nodes.get(node as usize).is_some_and(|node| node.good);
        for test in pairs {
            let (a, b) = test.ends;
            let (of_a, of_b) = (log.rack(a), log.rack(b));
            for (node, partner) in [(a, b), (b, a)] {
                let Some(rack) = racks.get_mut(log.rack(node) as usize) else { continue };
                let last = nodes.get(node as usize).and_then(|node| node.last_pass);
                let is_since = last.is_some_and(|last| test.round > last) && is_fit(partner);
                if test.speaks && is_since && !fabric.explains(log, test.round, test.ends) {
                    rack.failed_since.insert(node);
                }
                let is_fresh = !nodes.get(node as usize).is_some_and(|node| node.has_passed);
                if of_a == of_b {
                    let is_fit_or_none = is_fit(partner) || rack.fit.is_empty();
                    if test.speaks && is_fresh && is_fit_or_none {
                        rack.failed_inside.insert(node);
                    }
                } else if test.works {
                    rack.passes += 1;
                } else if test.speaks && is_fit(partner) {
                    rack.failed_outside.insert(node);
                    rack.has_trouble |= test.is_fail
                        && is_fit(node)
                        && !fabric.explains_out_of_racks(log, test.round, test.ends);
                }
            }
        }
        for rack in &mut racks {
            rack.broken = rack.failed_inside.intersection(&rack.failed_outside).copied().collect();
        }
        let live: usize = racks.iter().map(|rack| rack.live.len()).sum();
        let unfit: usize = racks.iter().map(|rack| rack.live.len() - rack.fit.len()).sum();
        let has_rounds_left = log.rounds.len() < most_rounds(live, unfit);
        let mut all = Self { racks, dead: Vec::new(), suspicious: Vec::new(), has_rounds_left };
        let partners = partners_of_racks(log, pairs, nodes, all.racks.len());
        // Racks that fail as a whole together, as those of a pod, are no evidence of how often nodes are broken.
        let others = || all.racks.iter().filter(|rack| !rack.fit.is_empty());
        let of: usize = others().map(|rack| rack.live.len()).sum();
        let broken: usize = others().map(|rack| rack.live.len() - rack.fit.len()).sum();
        let count = log.racks.len();
        let mut judged = Vec::with_capacity(all.racks.len());
        for (rack, partners) in all.racks.iter().zip(partners) {
            let is_whole = rack.live.len() >= 2 && rack.fit.is_empty();
            let chance = |broken: usize| chance(broken, of, rack.live.len(), count);
            // In the first round some of them are only the partners of this rack's.
            let is_no_chance = is_whole && chance(broken.saturating_sub(partners)) < UNLIKELY;
            let has_met_inside = !rack.failed_inside.is_empty();
            let are_all_failed = rack.live.iter().all(|node| rack.failed_outside.contains(node));
            judged.push((
                is_no_chance,
                is_whole && has_met_inside && are_all_failed && chance(broken) < LIKELY,
            ));
        }
        (all.suspicious, all.dead) = judged.into_iter().unzip();
        all
    }

    /// Whether all of its nodes failed, and not by chance: they meet each other before anything else.
    pub(super) fn is_suspicious(&self, rack: u32) -> bool {
        self.suspicious.get(rack as usize).is_some_and(|it| *it)
    }

    /// Whether none of its nodes has passed with any other, so none of it can be a witness for the others.
    pub(super) fn has_no_witness(&self, rack: u32) -> bool {
        self.racks.get(rack as usize).is_some_and(|rack| rack.live.len() >= 2 && rack.fit.is_empty())
    }

    /// Whether none of its nodes can be reached: its switch is a smaller explanation than all of its
    /// nodes.
    pub(super) fn is_leaf_dead(&self, rack: u32) -> bool {
        self.dead.get(rack as usize).is_some_and(|it| *it)
    }

    /// Whether it is the only node of its rack, from which it cannot be distinguished.
    pub(super) fn is_alone(&self, log: &CheckLog, node: u32) -> bool {
        self.racks.get(log.rack(node) as usize).is_some_and(|rack| rack.live.len() < 2)
    }

    /// Whether all evidence against the node was over its rack's uplink, which may be broken instead.
    pub(super) fn is_in_doubt(&self, log: &CheckLog, node: u32, evidence: &[TestEvidence]) -> bool {
        let own = log.rack(node);
        let Some(rack) = self.racks.get(own as usize) else { return false };
        let mut inside =
            evidence.iter().filter(|test_evidence| log.rack(test_evidence.partner) == own).peekable();
        if inside.peek().is_some() {
            // One that may have died itself is no evidence, where the uplinks are in doubt as well.
            return rack.has_trouble
                && inside.all(|test_evidence| rack.failed_since.contains(&test_evidence.partner));
        }
        if rack.live.len() < 2 {
            return true;
        }
        let another_is_broken = rack.broken.iter().any(|other| *other != node);
        if rack.fit.iter().all(|fit| *fit == node) {
            // There is no other evidence; it must at least have failed with one of its own rack.
            let is_open = self.has_rounds_left || self.is_suspicious(own);
            return !rack.failed_inside.contains(&node) && !another_is_broken && is_open;
        }
        let is_settled = another_is_broken || rack.passes >= PASSES && rack.failed_outside.len() < 2;
        rack.has_trouble || self.has_rounds_left && !is_settled
    }
}

/// The rounds of a check of so many nodes of which so many are broken and nothing else is: section 4.5 of the study.
fn most_rounds(nodes: usize, broken: usize) -> usize {
    let even = match broken {
        0 => 1,
        _ if broken * 4 <= nodes => 3,
        _ if broken * 3 <= nodes => 4,
        _ if broken * 2 < nodes => 2 + (2 * broken).div_ceil(nodes - 2 * broken),
        _ => return usize::MAX,
    };
    even + nodes % 2
}

/// How many racks would fail as a whole if nodes broke at the rate of the others.
fn chance(broken: usize, of: usize, size: usize, racks: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    if of == 0 {
        return number(racks);
    }
    number(racks) * (number(broken) / number(of)).powi(i32::try_from(size).unwrap_or(i32::MAX))
}

/// By rack: nodes of others that have not passed, and were tested with one of it.
fn partners_of_racks(log: &CheckLog, pairs: &[PairTest], nodes: &[NodeFacts], racks: usize) -> Vec<usize> {
    let mut partners: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); racks];
    let has_passed = |node: u32| nodes.get(node as usize).is_some_and(|node| node.has_passed);
    for test in pairs.iter().filter(|test| test.speaks) {
        for (node, partner) in [test.ends, (test.ends.1, test.ends.0)] {
            let rack = log.rack(node);
            if rack != log.rack(partner)
                && !has_passed(partner)
                && let Some(partners) = partners.get_mut(rack as usize)
            {
                partners.insert(partner);
            }
        }
    }
    partners.iter().map(BTreeSet::len).collect()
}
