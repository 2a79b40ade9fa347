//! Tests that distinguish larger elements of a fabric from each other, and from their nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Kind,
    check_log::{CheckLog, Pair, apart, pair},
    fabric::{Blamed, FabricElement},
    facts::Facts,
    partial_uplinks,
    plan::Draft,
};

/// So many pairs out of a rack show which share of its uplinks is dead.
const ENOUGH: usize = 12;

/// Nodes of racks without a pass meet each other. If they pass, they are healthy, and it is their rack's uplink.
pub(super) fn look_inside(log: &CheckLog, facts: &Facts, draft: &mut Draft, is_one: impl Fn(u32) -> bool) {
    let mut racks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for node in log.live().filter(|node| draft.is_free(*node) && is_one(log.rack(*node))) {
        // One that was condemned or left undecided is not tested again.
        if facts.is(node, |it| it.is_suspect()) {
            racks.entry(log.rack(node)).or_default().push(node);
        }
    }
    // Each once: if that fails too, a node outside is better evidence than another one of these.
    let has_met_one =
        |node: u32| facts.is(node, |it| it.met.iter().any(|met| log.rack(*met) == log.rack(node)));
    for nodes in racks.values_mut() {
        nodes.sort_by_key(|node| has_met_one(*node));
        for (at, a) in nodes.iter().enumerate().filter(|(_, a)| !has_met_one(**a)) {
            let others = nodes.iter().skip(at + 1).copied();
            let mut free = others.filter(|b| draft.is_free(*a) && draft.is_free(*b));
            if let Some(b) = free.find(|b| !facts.have_met(*a, *b)) {
                draft.add(Kind::RackDiagnosis, &[*a, b]);
            }
        }
    }
}

/// Elements that explain the same: a test over the one and not over the other distinguishes them.
pub(super) fn tell_apart(log: &CheckLog, facts: &Facts, draft: &mut Draft) {
    let is_open = |blamed: &Blamed| {
        !blamed.rivals.is_empty() || narrow(log, blamed).is_some() || blamed.last_pass.is_some()
    };
    if !facts.fabric.blamed.iter().any(is_open) {
        return;
    }
    let mut free: Vec<Vec<u32>> = vec![Vec::new(); log.racks.len()];
    for node in log.live().filter(|node| facts.is(*node, |it| it.is_witness())) {
        if let Some(free) = free.get_mut(log.rack(node) as usize) {
            free.push(node);
        }
    }
    for blamed in &facts.fabric.blamed {
        for rival in &blamed.rivals {
            if let Some(ends) = telling(log, facts, draft, &free, blamed.element, *rival) {
                draft.add(Kind::Sibling, &[ends.0, ends.1]);
            }
        }
        if let Some(ends) = passed_before(log, facts, draft, blamed) {
            draft.add(Kind::Retest, &[ends.0, ends.1]);
        }
        let Some((rack, against)) = narrow(log, blamed) else { continue };
        let own = free.get(rack as usize).map_or(&[][..], |own| own);
        let others = (0_u32..).zip(&free).filter(|(other, _)| *other != rack && !against.contains(other));
        let mut pairs =
            others.flat_map(|(_, others)| own.iter().flat_map(|a| others.iter().map(move |b| pair(*a, *b))));
        let is_fresh =
            |ends: &Pair| draft.is_free(ends.0) && draft.is_free(ends.1) && !facts.have_met(ends.0, ends.1);
        if let Some(ends) = pairs.find(is_fresh) {
            draft.add(Kind::Sibling, &[ends.0, ends.1]);
        }
    }
}

/// Two that passed over an element which seems to have died since. If they pass again, only part of it is dead. None
/// where such a pair has failed since already.
fn passed_before(log: &CheckLog, facts: &Facts, draft: &Draft, blamed: &Blamed) -> Option<Pair> {
    let last = blamed.last_pass?;
    let is_over = |ends: Pair| facts.fabric.is_over(log, blamed.element, ends);
    let passed = || facts.pairs.iter().filter(|test| test.works && test.round <= last && is_over(test.ends));
    let has_failed =
        |ends: Pair| facts.pairs.iter().any(|test| test.ends == ends && test.speaks && test.round > last);
    if passed().any(|test| has_failed(test.ends)) {
        return None;
    }
    let is_fit = |node: u32| draft.is_free(node) && facts.is(node, |it| it.is_witness());
    passed().map(|test| test.ends).find(|ends| is_fit(ends.0) && is_fit(ends.1))
}

/// An uplink that failed with so few other racks that the paths to these may be dead instead: its rack, and they.
fn narrow(log: &CheckLog, blamed: &Blamed) -> Option<(u32, BTreeSet<u32>)> {
    /// So many paths are not all dead while one uplink explains them.
    const FEW: usize = 3;
    let FabricElement::Uplink(rack) = blamed.element else { return None };
    let racks = blamed.pairs.iter().map(|ends| log.racks_of(*ends));
    let against: BTreeSet<u32> = racks.map(|racks| if racks.0 == rack { racks.1 } else { racks.0 }).collect();
    (against.len() < FEW).then_some((rack, against))
}

/// Two free nodes that meet over `rival` and not over `element`, nor over anything else that is blamed.
fn telling(
    log: &CheckLog,
    facts: &Facts,
    draft: &Draft,
    free: &[Vec<u32>],
    element: FabricElement,
    rival: FabricElement,
) -> Option<Pair> {
    let tells_apart =
        |ends: Pair| facts.fabric.is_over(log, rival, ends) && !facts.fabric.is_over(log, element, ends);
    let racks = || (0_u32..).zip(free).filter(|(_, nodes)| nodes.iter().any(|node| draft.is_free(*node)));
    for (_, of_a) in racks() {
        for (_, of_b) in racks() {
            let (Some(a), Some(b)) = (of_a.first(), of_b.first()) else { continue };
            // All of a rack use the same paths.
            if a >= b || log.rack(*a) == log.rack(*b) || !tells_apart((*a, *b)) {
                continue;
            }
            let pairs = of_a.iter().flat_map(|a| of_b.iter().map(move |b| pair(*a, *b)));
            let is_fresh = |ends: &Pair| {
                draft.is_free(ends.0)
                    && draft.is_free(ends.1)
                    && !facts.have_met(ends.0, ends.1)
                    && !facts.is_cut(log, *ends)
            };
            if let Some(ends) = pairs.take(ENOUGH * ENOUGH).find(is_fresh) {
                return Some(ends);
            }
        }
    }
    None
}

/// Several pairs out of a rack failed that nothing else explains: more pairs out of it show whether these are links,
/// or part of the rack's uplinks.
pub(super) fn spread(log: &CheckLog, facts: &Facts, draft: &mut Draft) {
    let suspects = partial_uplinks::suspects(log, facts, |_| true);
    let suspects: Vec<u32> = suspects
        .iter()
        .filter(|(rack, pairs)| {
            apart(pairs.iter().copied()) >= 2 && partial_uplinks::tested(log, facts, **rack).len() < ENOUGH
        })
        .map(|(rack, _)| *rack)
        .collect();
    if suspects.is_empty() {
        return;
    }
    let fit = |draft: &Draft| -> Vec<u32> {
        let is_fit = |node: &u32| draft.is_free(*node) && facts.is(*node, |it| it.is_witness());
        log.live().filter(is_fit).collect()
    };
    for rack in suspects {
        let free = fit(draft);
        let (own, others): (Vec<u32>, Vec<u32>) = free.into_iter().partition(|node| log.rack(*node) == rack);
        for a in own.into_iter().take(ENOUGH) {
            let is_fresh =
                |b: &u32| draft.is_free(*b) && !facts.have_met(a, *b) && !facts.is_cut(log, pair(a, *b));
            if let Some(b) = others.iter().copied().find(is_fresh) {
                draft.add(Kind::Sibling, &[a, b]);
            }
        }
    }
}
