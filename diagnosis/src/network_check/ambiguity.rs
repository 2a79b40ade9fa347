//! Where the tests leave more than one explanation of the same size.

use std::collections::BTreeSet;

use super::{
    Ambiguity, LinkFault, LinkKind, NetworkElement,
    check_log::CheckLog,
    cut,
    fabric::FabricElement,
    facts::Facts,
    partial_uplinks::{self, PartialUplinkFault},
};

/// So many pairs out of a rack would have shown that some of its uplinks are dead.
const TESTED: usize = 10;

/// All ambiguities.
pub(super) fn all(
    log: &CheckLog,
    facts: &Facts,
    links: &[LinkFault],
    partial: &[PartialUplinkFault],
) -> Vec<Ambiguity> {
    let rack = |rack: u32| log.racks.get(rack as usize).copied().unwrap_or(rack);
    let pod = |pod: u32| log.pods.get(pod as usize).copied().unwrap_or(pod);
    let mut all: BTreeSet<Vec<NetworkElement>> = BTreeSet::new();
    let mut add = |mut candidates: Vec<NetworkElement>| {
        candidates.sort_unstable();
        candidates.dedup();
        if candidates.len() > 1 {
            all.insert(candidates);
        }
    };
    let has_pods = log.pods.len() > 1;
    let is_replaced = |element: FabricElement| partial.iter().any(|partial| partial.replaces(element));
    for blamed in facts.fabric.blamed.iter().filter(|blamed| !is_replaced(blamed.element)) {
        let elements = std::iter::once(&blamed.element).chain(&blamed.rivals);
        // Without known pods their switches are all that is between racks.
        let is_separate = |element: &&FabricElement| {
            has_pods || **element == blamed.element || !matches!(element, FabricElement::PodSwitch(_))
        };
        let elements =
            elements.filter(is_separate).map(|element| cut::network_element(&rack, &pod, *element));
        // So few may all have used the dead part of the paths.
        let is_few = blamed.pairs.len() < TESTED;
        let of_racks = match blamed.element {
            FabricElement::Path(a, b) => vec![a, b],
            FabricElement::Uplink(of) => vec![of],
            FabricElement::PodOut(_) | FabricElement::PodSwitch(_) => Vec::new(),
        };
        let of_racks =
            of_racks.into_iter().filter(|_| is_few).map(|of| NetworkElement::PartialUplink(rack(of)));
        add(elements.chain(of_racks).collect());
    }
    // Where all its dead pairs lead to one other rack, that one's uplinks are as likely.
    for partial in partial {
        let ends = partial.dead.iter().flat_map(|(a, b)| [log.rack(*a), log.rack(*b)]);
        let racks: BTreeSet<u32> = ends.collect();
        if racks.len() == 2 {
            add(racks.into_iter().map(|of| NetworkElement::PartialUplink(rack(of))).collect());
        }
    }
    let is_open = |of: &u32| partial_uplinks::tested(log, facts, *of).len() < TESTED;
    let unpassed = |ends: (u32, u32)| {
        let racks = log.racks_of(ends);
        let is_unpassed = racks.0 != racks.1 && !facts.open_paths.contains(&racks);
        is_unpassed.then(|| NetworkElement::RackPair(rack(racks.0), rack(racks.1)))
    };
    for (number, node) in (0_u32..).zip(&facts.nodes) {
        let own = log.rack(number);
        let is_leaf_dead = facts.racks.is_leaf_dead(own);
        if is_leaf_dead || !(node.is_undecided || node.is_held || node.is_out_of_reach) {
            continue;
        }
        let mut candidates = vec![
            NetworkElement::Node(number),
            NetworkElement::Uplink(rack(own)),
            NetworkElement::Leaf(rack(own)),
        ];
        if node.is_held {
            candidates.push(NetworkElement::PartialUplink(rack(own)));
        }
        candidates.extend(
            node.evidence.iter().filter_map(|test_evidence| unpassed((number, test_evidence.partner))),
        );
        // Of two pods that cannot reach each other, either may be the one that is cut off.
        let pods = (0..).take(log.pods.len()).filter(|it| *it == log.pod(number) || log.pods.len() == 2);
        let pods = pods.filter(|it| has_pods && is_dark_pod(log, facts, *it));
        candidates.extend(pods.map(|it| NetworkElement::Pod(pod(it))));
        add(candidates);
    }
    for link in links.iter().filter(|link| link.kind == LinkKind::Dead) {
        let (racks, known_ends) = (log.racks_of(link.nodes), link.nodes);
        let of_racks = [racks.0, racks.1].into_iter().filter(|of| racks.0 != racks.1 && is_open(of));
        let link = NetworkElement::Link(link.nodes.0, link.nodes.1);
        let of_racks = of_racks.map(|of| NetworkElement::PartialUplink(rack(of)));
        add(std::iter::once(link).chain(unpassed(known_ends)).chain(of_racks).collect());
    }
    all.into_iter().map(|candidates| Ambiguity { candidates }).collect()
}

/// No node of it reaches a node outside it, as far as is known.
fn is_dark_pod(log: &CheckLog, facts: &Facts, pod: u32) -> bool {
    facts.pairs.iter().filter(|test| test.works).all(|test| {
        let pods = (log.pod(test.ends.0), log.pod(test.ends.1));
        pods.0 == pods.1 || (pods.0 != pod && pods.1 != pod)
    })
}
