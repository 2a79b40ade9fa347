//! What follows from paths that are known to be down: the largest set of nodes in which every pair is connected.
//!
//! Large elements first: a rack with a dead uplink is an island, and so is a pod. The island with the most nodes is
//! kept, of equal ones that with the lowest node. In it racks with a dead path between them are compared, then nodes
//! with a dead link.

use std::collections::{BTreeMap, BTreeSet};

use crate::counted::{counted, named_and_more};

use super::{
    Cut, FabricNames, LinkFault, LinkKind, NetworkElement,
    check_log::{CheckLog, Pair},
    fabric::FabricElement,
    facts::Facts,
    partial_uplinks::PartialUplinkFault,
};

/// Up to so many conflicts are solved exactly; of more, the one with the most conflicts is removed first.
const EXACT: usize = 16;

/// The most nodes that a sentence names.
const NAMED: usize = 8;

/// The elements that are known to be dead.
fn dead_elements(
    log: &CheckLog,
    facts: &Facts,
    links: &[LinkFault],
    partial: &[PartialUplinkFault],
) -> Vec<NetworkElement> {
    let rack = |rack: u32| log.racks.get(rack as usize).copied().unwrap_or(rack);
    let pod = |pod: u32| log.pods.get(pod as usize).copied().unwrap_or(pod);
    let is_replaced = |element: FabricElement| partial.iter().any(|partial| partial.replaces(element));
    let large = facts.fabric.blamed.iter().filter(|blamed| !is_replaced(blamed.element));
    let large = large.map(|blamed| network_element(&rack, &pod, blamed.element));
    let partial = partial.iter().map(|partial| NetworkElement::PartialUplink(rack(partial.rack)));
    let links = links.iter().filter(|link| link.kind == LinkKind::Dead);
    let mut all: Vec<NetworkElement> = large
        .chain(partial)
        .chain(links.map(|link| NetworkElement::Link(link.nodes.0, link.nodes.1)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The element as reports name it.
pub(super) fn network_element(
    rack: &impl Fn(u32) -> u32,
    pod: &impl Fn(u32) -> u32,
    element: FabricElement,
) -> NetworkElement {
    match element {
        FabricElement::Path(a, b) => NetworkElement::RackPair(rack(a), rack(b)),
        FabricElement::Uplink(a) => NetworkElement::Uplink(rack(a)),
        FabricElement::PodOut(a) | FabricElement::PodSwitch(a) => NetworkElement::Pod(pod(a)),
    }
}

/// The nodes that cannot train with the others, and why. `None` where all are connected as far as is known.
pub(super) fn cut(
    log: &CheckLog,
    facts: &Facts,
    links: &[LinkFault],
    partial: &[PartialUplinkFault],
    taking_part: &[u32],
) -> Option<Cut> {
    let elements = dead_elements(log, facts, links, partial);
    if elements.is_empty() && never_passed(facts).next().is_none() {
        return None;
    }
    let mut kept: Vec<u32> = Vec::new();
    for island in islands(log, facts, partial, taking_part) {
        let island = without_dead_links(facts, links, without_dead_paths(log, facts, island));
        if island.len() > kept.len() || island.len() == kept.len() && island.first() < kept.first() {
            kept = island;
        }
    }
    let kept: BTreeSet<u32> = kept.into_iter().collect();
    let left_out: Vec<u32> = taking_part.iter().copied().filter(|node| !kept.contains(node)).collect();
    if left_out.is_empty() {
        return None;
    }
    let mut causes: Vec<String> = elements.iter().map(|it| it.message(&log.policy.names)).collect();
    if causes.is_empty() {
        let (a, b) = never_passed(facts).next().unwrap_or_default();
        let fails = facts.edges.get(&(a, b)).map_or(1, |edge| edge.fails);
        let names = &log.policy.names;
        let (a, b) = (names.node(a), names.node(b));
        causes.push(format!("{} between {a} and {b} failed, and none passed", counted(fails, "test")));
    }
    Some(Cut { left_out, message: named_and_more(causes.iter().take(NAMED), causes.len()) })
}

impl NetworkElement {
    /// The fault of the element, for a sentence.
    fn message(&self, names: &FabricNames) -> String {
        let node = |node: &u32| names.node(*node);
        let (rack, pod) = (|rack: &u32| names.rack(*rack), |pod: &u32| names.pod(*pod));
        match self {
            Self::Node(it) => format!("{} is broken", node(it)),
            Self::Link(a, b) => format!("the link between {} and {} is down", node(a), node(b)),
            Self::RackPair(a, b) => format!("the path between {} and {} is down", rack(a), rack(b)),
            Self::Uplink(it) => format!("the uplink of {} is down", rack(it)),
            Self::PartialUplink(it) => format!("some uplinks of {} are down", rack(it)),
            Self::Leaf(it) => format!("the switch of {} is down", rack(it)),
            Self::Pod(it) => format!("every path out of {} is down", pod(it)),
        }
    }
}

/// Nodes without a dead large element between them, ascending; each list is one way to train.
fn islands(log: &CheckLog, facts: &Facts, partial: &[PartialUplinkFault], nodes: &[u32]) -> Vec<Vec<u32>> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Island {
        Rack(u32),
        Pod(u32),
        Rest,
    }
    let blamed: BTreeSet<FabricElement> = facts.fabric.blamed.iter().map(|blamed| blamed.element).collect();
    let mut islands: BTreeMap<Island, Vec<u32>> = BTreeMap::new();
    for node in nodes {
        let (rack, pod) = (log.rack(*node), log.pod(*node));
        let is_rack = blamed.contains(&FabricElement::Uplink(rack))
            || blamed.contains(&FabricElement::PodSwitch(pod))
            || partial.iter().any(|partial| partial.rack == rack);
        let island = match is_rack {
            true => Island::Rack(rack),
            false if blamed.contains(&FabricElement::PodOut(pod)) => Island::Pod(pod),
            false => Island::Rest,
        };
        islands.entry(island).or_default().push(*node);
    }
    islands.into_values().collect()
}

/// Of racks with a dead path between them the heavier ones are kept.
fn without_dead_paths(log: &CheckLog, facts: &Facts, nodes: Vec<u32>) -> Vec<u32> {
    let paths = facts.fabric.blamed.iter().filter_map(|blamed| match blamed.element {
        FabricElement::Path(a, b) => Some((a, b)),
        _ => None,
    });
    let mut weights: BTreeMap<u32, usize> = BTreeMap::new();
    for node in &nodes {
        *weights.entry(log.rack(*node)).or_default() += 1;
    }
    let gone = lightest_cover(&paths.collect(), &weights);
    nodes.into_iter().filter(|node| !gone.contains(&log.rack(*node))).collect()
}

/// Of nodes with a dead link between them the ones that failed less often are kept.
fn without_dead_links(facts: &Facts, links: &[LinkFault], nodes: Vec<u32>) -> Vec<u32> {
    /// A failure counts for far less than a node.
    const NODE: usize = 1 << 20;
    let dead = links.iter().filter(|link| link.kind == LinkKind::Dead).map(|link| link.nodes);
    let conflicts: BTreeSet<Pair> = dead.chain(never_passed(facts)).collect();
    let weight = |node: u32| NODE - facts.node(node).map_or(0, |it| it.evidence.len()).min(NODE / 2);
    let weights = nodes.iter().map(|node| (*node, weight(*node))).collect();
    let gone = lightest_cover(&conflicts, &weights);
    nodes.into_iter().filter(|node| !gone.contains(node)).collect()
}

/// Pairs of healthy nodes that failed and never passed, for any reason.
fn never_passed(facts: &Facts) -> impl Iterator<Item = Pair> {
    let edges = facts.edges.iter().filter(|(ends, edge)| {
        edge.fails > 0 && edge.passes == 0 && !edge.is_explained && facts.are_good(**ends)
    });
    edges.map(|(ends, _)| *ends)
}

/// The lightest set without which no two are in conflict; of equal ones that of the higher numbers.
fn lightest_cover(conflicts: &BTreeSet<Pair>, weights: &BTreeMap<u32, usize>) -> BTreeSet<u32> {
    let is_there = |it: &u32| weights.contains_key(it);
    let conflicts: Vec<Pair> =
        conflicts.iter().copied().filter(|(a, b)| is_there(a) && is_there(b)).collect();
    let mut cover = BTreeSet::new();
    for conflicts in components(conflicts) {
        let members: BTreeSet<u32> = conflicts.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let members: Vec<u32> = members.into_iter().collect();
        cover.extend(if members.len() <= EXACT {
            exact_cover(&members, &conflicts, weights)
        } else {
            greedy_cover(conflicts, weights)
        });
    }
    cover
}

/// Groups of conflicts that share members.
fn components(conflicts: Vec<Pair>) -> Vec<Vec<Pair>> {
    let mut roots: BTreeMap<u32, u32> = BTreeMap::new();
    fn root(roots: &BTreeMap<u32, u32>, mut of: u32) -> u32 {
        while let Some(next) = roots.get(&of).filter(|next| **next != of) {
            of = *next;
        }
        of
    }
    for (a, b) in &conflicts {
        let (a, b) = (root(&roots, *a), root(&roots, *b));
        roots.insert(a.max(b), a.min(b));
    }
    let mut of: BTreeMap<u32, Vec<Pair>> = BTreeMap::new();
    for (a, b) in conflicts {
        of.entry(root(&roots, a)).or_default().push((a, b));
    }
    of.into_values().collect()
}

fn exact_cover(members: &[u32], conflicts: &[Pair], weights: &BTreeMap<u32, usize>) -> BTreeSet<u32> {
    let weight = |mask: u32| -> usize {
        let of = |(place, member): (usize, &u32)| {
            if mask >> place & 1 == 1 { weights.get(member).copied().unwrap_or(1) } else { 0 }
        };
        members.iter().enumerate().map(of).sum()
    };
    let place = |member: u32| members.iter().position(|it| *it == member).unwrap_or(0);
    let pairs: Vec<u32> = conflicts.iter().map(|(a, b)| 1 << place(*a) | 1 << place(*b)).collect();
    let covers = (0..1_u32 << members.len()).filter(|mask| pairs.iter().all(|pair| mask & pair != 0));
    // Higher numbers are higher bits, so the largest mask of equal ones.
    let best = covers.min_by_key(|mask| (weight(*mask), std::cmp::Reverse(*mask))).unwrap_or(0);
    (0..).zip(members).filter(|(place, _)| best >> place & 1 == 1).map(|(_, member)| *member).collect()
}

fn greedy_cover(mut conflicts: Vec<Pair>, weights: &BTreeMap<u32, usize>) -> BTreeSet<u32> {
    let mut cover = BTreeSet::new();
    while !conflicts.is_empty() {
        let mut against: BTreeMap<u32, usize> = BTreeMap::new();
        for (a, b) in &conflicts {
            *against.entry(*a).or_default() += weights.get(b).copied().unwrap_or(1);
            *against.entry(*b).or_default() += weights.get(a).copied().unwrap_or(1);
        }
        // The share of its own weight in what it excludes, compared without a division.
        let own = |member: u32| weights.get(&member).copied().unwrap_or(1) as u128;
        let worst = against.iter().max_by(|(a, of_a), (b, of_b)| {
            let (a_is, b_is) = (**of_a as u128 * own(**b), **of_b as u128 * own(**a));
            a_is.cmp(&b_is).then(a.cmp(b))
        });
        let Some((worst, _)) = worst.map(|(member, against)| (*member, *against)) else { break };
        conflicts.retain(|(a, b)| *a != worst && *b != worst);
        cover.insert(worst);
    }
    cover
}
