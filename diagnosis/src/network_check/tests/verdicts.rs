//! Which nodes are blamed, and in how many rounds.

use crate::rng::Rng;
use proptest::prelude::*;

use super::{
    super::{
        LocalCheck, LocalFault, NetworkCheck, NodeVerdict, Policy, Subject, Tainting,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{broken, excluded, faults, patient, tainted, wild, with},
};
use crate::moment::Moment;

/// Section 4.5 of the study; an odd number of nodes takes one more. `None`: no bound is given.
fn most_rounds(nodes: u32, broken: u32) -> Option<u32> {
    let even = match broken {
        0 => return Some(1),
        _ if broken * 4 <= nodes => 3,
        _ if broken * 3 <= nodes => 4,
        _ if broken * 2 < nodes => 2 + (2 * broken).div_ceil(nodes - 2 * broken),
        _ => return None,
    };
    // The table has more for the smallest odd ones.
    (nodes >= 8).then_some(even + nodes % 2)
}

proptest! {
    /// Invariants 3 and 4: without noise no healthy node is blamed, however many are broken, and with two healthy ones
    /// every broken one is found.
    #[test]
    fn broken_nodes_are_found_and_no_others(cluster in broken(120)) {
        let outcome = rehearse(&cluster, patient(cluster.seed));
        let found = faults(&outcome);
        prop_assert!(found.is_subset(&cluster.faulty), "{found:?}");
        prop_assert_eq!(&tainted(&outcome), &found);
        if cluster.nodes as usize - cluster.faulty.len() >= 2 {
            prop_assert_eq!(&excluded(&outcome), &cluster.faulty);
        }
        // Without racks there is no switch that could be broken instead.
        if cluster.nodes as usize - cluster.faulty.len() >= 2 && cluster.racks == 1 {
            prop_assert_eq!(&found, &cluster.faulty);
        }
    }

    /// Invariant 6, without racks: a rack that fails as a whole is looked into by a round more.
    #[test]
    fn they_take_no_more_rounds_than_promised(cluster in broken(200)) {
        let cluster = Cluster { racks: 1, ..cluster };
        let rounds = rehearse(&cluster, patient(cluster.seed)).rounds.len() as u32;
        if let Some(most) = most_rounds(cluster.nodes, cluster.faulty.len() as u32) {
            prop_assert!(rounds <= most, "{rounds} > {most}");
        }
    }

    /// Invariant 7.
    #[test]
    fn a_healthy_cluster_takes_one_round(nodes in 2..300_u32, racks in 1..20_u32, seed: u64) {
        let outcome = rehearse(&Cluster { seed, ..Cluster::healthy(nodes, racks) }, Policy::new(seed));
        prop_assert_eq!(outcome.rounds.len(), 1);
        prop_assert!(outcome.nodes.iter().all(|node| node.verdict == NodeVerdict::Healthy && node.evidence.is_empty()));
        prop_assert!(outcome.links.is_empty() && outcome.rack_pairs.is_empty() && !outcome.network_untested);
    }

    /// Invariant 10: the result does not depend on the numbers of the nodes.
    #[test]
    fn names_do_not_matter(cluster in broken(40), shuffle: u64) {
        let cluster = Cluster { racks: 1, ..cluster };
        let mut names: Vec<u32> = (0..cluster.nodes).collect();
        Rng::new(shuffle, 0).shuffle(&mut names);
        let rename = |node: &u32| names[*node as usize];
        let renamed = Cluster { faulty: cluster.faulty.iter().map(rename).collect(), ..cluster.clone() };
        let found = faults(&rehearse(&cluster, patient(cluster.seed)));
        let found: std::collections::BTreeSet<u32> = found.iter().map(rename).collect();
        if cluster.nodes as usize - cluster.faulty.len() >= 2 {
            prop_assert_eq!(found, faults(&rehearse(&renamed, patient(cluster.seed))));
        }
    }

    /// Invariant 15: with one healthy node left no other can be distinguished from it.
    #[test]
    fn one_healthy_node_blames_no_other(nodes in 2..12_u32, healthy in 0..12_u32, seed: u64) {
        let faulty = (0..nodes).filter(|node| *node != healthy % nodes).collect();
        let outcome = rehearse(&Cluster { faulty, seed, ..Cluster::healthy(nodes, 1) }, patient(seed));
        prop_assert!(faults(&outcome).is_empty());
        prop_assert_eq!(with(&outcome, |it| *it == NodeVerdict::Inconclusive).len() as u32, nodes);
    }

    /// Invariant 22: never more taints than the guard allows; and each that is given has its reason.
    #[test]
    fn taints_are_guarded_and_have_reasons(cluster in wild(40), share in 0..1000_u32, exclude_straggler: bool) {
        let policy = Policy { taint_guard_permille: share, exclude_straggler, ..Policy::new(cluster.seed) };
        let outcome = rehearse(&cluster, policy);
        let limit = (cluster.nodes * share / 1000).max(2);
        prop_assert_eq!(outcome.guard.limit, limit);
        prop_assert_eq!(outcome.guard.mass_failure, outcome.guard.taints > limit);
        prop_assert!(tainted(&outcome).len() as u32 <= limit);
        for node in outcome.nodes.iter().filter(|node| node.verdict != NodeVerdict::Healthy) {
            prop_assert!(!node.evidence.is_empty(), "{:?}", node);
        }
        for node in outcome.nodes.iter().filter(|node| node.tainted) {
            prop_assert!(node.excluded);
        }
    }
}

/// In racks that are more than a suspect can compare: the bounds of a quarter and of a third.
#[test]
fn many_racks_take_no_more_rounds_than_promised() {
    for (part, most) in [(3, 4), (4, 3), (8, 3), (16, 3)] {
        for (racks, seed) in [64, 256].into_iter().flat_map(|racks| (0..4).map(move |seed| (racks, seed))) {
            let mut faulty: Vec<u32> = (0..1024).collect();
            Rng::new(seed, 0).shuffle(&mut faulty);
            let faulty = faulty.into_iter().take(1024 / part).collect();
            let cluster = Cluster { faulty, seed, ..Cluster::healthy(1024, racks) };
            let outcome = rehearse(&cluster, patient(seed));
            assert!(
                outcome.rounds.len() <= most,
                "{racks} racks, 1/{part}, seed {seed}: {}",
                outcome.rounds.len()
            );
            assert_eq!(faults(&outcome), cluster.faulty);
        }
    }
}

#[test]
fn one_node_or_none_cannot_be_tested() {
    let fault = LocalFault::new("GPU 3", "no answer");
    let fit = Subject { rack: 0, pod: 0, seen_before: false, local: LocalCheck::default() };
    let unfit = Subject {
        rack: 0,
        pod: 0,
        seen_before: false,
        local: LocalCheck { fault: Some(fault), ..LocalCheck::default() },
    };
    for subjects in [vec![], vec![fit.clone()], vec![unfit.clone(), fit, unfit]] {
        let (check, effects) = NetworkCheck::new(Policy::new(0), Moment::START, subjects);
        let outcome = check.outcome().unwrap();
        assert_eq!(effects, [super::super::Effect::Finish(Box::new(outcome.clone()))]);
        assert!(outcome.network_untested && outcome.rounds.is_empty() && check.deadline().is_none());
        for node in &outcome.nodes {
            assert_eq!(node.tainted, node.verdict != NodeVerdict::Healthy);
        }
    }
}

/// Whatever a check of the node itself dies of or hangs at, the part it was at is named, and the node is kept out.
#[test]
fn a_check_without_an_answer_is_a_fault_of_what_it_was_at() {
    for (at, component) in
        [(None, "probe"), (Some("GPU 3 (NVIDIA H100)"), "GPU 3"), (Some("loopback"), "loopback")]
    {
        let fault = LocalFault::unanswered(at, "no answer within 2 s");
        assert_eq!((fault.component.as_str(), fault.reason.as_str()), (component, "no answer within 2 s"));
        assert!(!fault.component.is_nothing_broken());
    }
}

/// A node that was condemned and then went is a fault; one that was not is lost.
#[test]
fn a_lost_node_is_lost_unless_it_was_condemned() {
    let cluster = Cluster { lost: [5].into(), faulty: [2].into(), ..Cluster::healthy(16, 4) };
    let outcome = rehearse(&cluster, patient(1));
    assert_eq!(faults(&outcome), [2].into());
    assert_eq!(with(&outcome, |it| matches!(it, NodeVerdict::Lost { .. })), [5].into());
    // That it went may pass by itself: it is tainted when it is seen again.
    assert_eq!(tainted(&outcome), [2].into());
    let now = Policy { taint_flaky: Tainting::Now, ..patient(1) };
    assert_eq!(tainted(&rehearse(&cluster, now)), [2, 5].into());
}

#[test]
fn a_node_where_nothing_is_known_to_be_broken_is_excluded_and_not_tainted() {
    for component in ["gpu-busy", "switchbox-probe", "gpu-permission", "check-command"] {
        let fault = LocalFault::new(component, "4 of 8 are free");
        let fit = Subject { rack: 0, pod: 0, seen_before: false, local: LocalCheck::default() };
        let unfit = Subject {
            rack: 0,
            pod: 0,
            seen_before: false,
            local: LocalCheck { fault: Some(fault), ..LocalCheck::default() },
        };
        let (check, _) = NetworkCheck::new(Policy::new(0), Moment::START, vec![unfit, fit]);
        let outcome = check.outcome().unwrap();
        assert!(outcome.nodes[0].excluded && !outcome.nodes[0].tainted);
        assert_eq!(outcome.guard.taints, 0);
    }
}
