//! Slow nodes among nodes that did not time the same thing.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;

use super::{
    super::{
        ComputeKind, ComputeTime, Effect, Event, LocalCheck, NetworkCheck, NodeVerdict, Outcome, Policy,
        Probed, Subject,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{tainted, with},
};
use crate::moment::Moment;

fn policy(seed: u64) -> Policy {
    Policy { exclude_straggler: true, taint_guard_permille: 1000, ..Policy::new(seed) }
}

fn stragglers(outcome: &Outcome) -> BTreeSet<u32> {
    with(outcome, |verdict| *verdict == NodeVerdict::StragglerCompute)
}

/// Any split of the nodes: those in the set have the faster kind.
fn split() -> impl Strategy<Value = Cluster> {
    (2..60_u32, any::<u64>(), any::<u64>()).prop_map(|(nodes, mask, seed)| {
        let other_kind = (0..nodes).filter(|node| mask >> node & 1 == 1).collect();
        Cluster { other_kind, seed, ..Cluster::healthy(nodes, 1) }
    })
}

proptest! {
    /// However they are split, and whichever kind is the rarer, the faster one makes no node slow.
    #[test]
    fn a_mixed_cluster_blames_no_node(cluster in split(), noise in 0.0..0.1) {
        let outcome = rehearse(&Cluster { noise, ..cluster.clone() }, policy(cluster.seed));
        prop_assert_eq!(with(&outcome, |it| *it == NodeVerdict::Healthy).len() as u32, cluster.nodes);
        prop_assert_eq!(outcome.rounds.len(), 1);
    }

    #[test]
    fn two_halves_blame_no_node(half in 1..30_u32, noise in 0.0..0.1, seed: u64) {
        let cluster = Cluster { other_kind: (0..half).collect(), noise, seed, ..Cluster::healthy(2 * half, 1) };
        let outcome = rehearse(&cluster, policy(seed));
        prop_assert_eq!(with(&outcome, |it| *it == NodeVerdict::Healthy).len() as u32, 2 * half);
    }

    /// A slow one is found among its own, though one of the faster kind is faster yet; it takes two others of its kind to judge it.
    #[test]
    fn a_slow_node_is_found_among_its_kind(cluster in split(), slow in 0..60_u32) {
        let slow = slow % cluster.nodes;
        let cluster = Cluster { slow_compute: [(slow, 3.0)].into(), ..cluster };
        let is_other = |node: &u32| cluster.other_kind.contains(node);
        let own_kind = (0..cluster.nodes).filter(|node| is_other(node) == is_other(&slow)).count();
        let outcome = rehearse(&cluster, policy(cluster.seed));
        let expected = if own_kind > 2 { BTreeSet::from([slow]) } else { BTreeSet::new() };
        prop_assert_eq!(stragglers(&outcome), expected.clone());
        prop_assert_eq!(tainted(&outcome), expected);
        prop_assert_eq!(outcome.nodes[slow as usize].compute_permille.is_some(), own_kind > 2);
    }
}

fn cublas(model: &str, millis: u64) -> ComputeTime {
    let kind = ComputeKind::Cublas { model: model.to_owned() };
    ComputeTime { time: Duration::from_millis(millis), kind }
}

/// The check of nodes that came with these times, of which each that is asked measures this again.
fn judged(first: &[ComputeTime], again: &ComputeTime) -> Outcome {
    let subject = |compute: &ComputeTime| Subject {
        rack: 0,
        pod: 0,
        seen_before: false,
        local: LocalCheck { compute: Some(compute.clone()), ..LocalCheck::default() },
    };
    let subjects = first.iter().map(subject).collect();
    let (mut check, mut effects) = NetworkCheck::new(policy(1), Moment::START, subjects);
    loop {
        let (round, groups, asked) = match effects.remove(0) {
            Effect::Start { round, groups, compute_again } => (round, groups, compute_again),
            Effect::Finish(outcome) => return *outcome,
            Effect::Cancel { .. } => unreachable!("all nodes report at once"),
        };
        let nodes = groups.iter().flat_map(|group| group.members.iter().copied());
        for node in nodes {
            let times =
                asked.iter().find(|(asked, _)| *asked == node).map_or(0, |(_, times)| *times as usize);
            let probed = Probed::Passed {
                comm: Duration::from_millis(100),
                latency: Duration::from_micros(50),
                bytes_per_second: 1 << 30,
            };
            let compute = Some(vec![again.clone(); times]);
            effects.extend(check.handle(Moment::START, Event::Reported { node, round, probed, compute }));
        }
    }
}

#[test]
fn what_is_measured_again_counts_only_as_the_same_kind() {
    let first = [cublas("a", 10), cublas("a", 10), cublas("a", 10), cublas("a", 30)];
    let again = |again: ComputeTime| stragglers(&judged(&first, &again));
    assert_eq!(again(cublas("a", 30)), [3].into());
    assert_eq!(again(cublas("a", 10)), [].into());
    assert_eq!(again(cublas("b", 30)), [].into());
    assert_eq!(again(Duration::from_millis(30).into()), [].into());
    let outcome = judged(&first, &cublas("a", 30));
    let message = &outcome.nodes[3].evidence[0].message;
    let times = "30.0 ms against 10.0 ms, for matrix products by cuBLAS on a; the baseline is the mean of 3 nodes that ran the same computation";
    assert!(message.ends_with(times), "{message}");
}

#[test]
fn models_are_kinds() {
    let first = [cublas("a", 10), cublas("a", 10), cublas("b", 40), cublas("b", 40), cublas("c", 400)];
    let outcome = judged(&first, &cublas("b", 40));
    assert_eq!(with(&outcome, |it| *it == NodeVerdict::Healthy).len(), 5, "{outcome:#?}");
    assert_eq!(outcome.nodes[4].compute_permille, None);
}
