//! Slow nodes.

use proptest::prelude::*;

use super::{
    super::{
        NodeVerdict, Policy,
        ratio::means_of_others,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{tainted, with},
};

fn times() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(1.0..1000.0, 2..40)
}

/// Each over the mean of the others.
fn ratios(times: &[f64]) -> Vec<Option<f64>> {
    let means = means_of_others(times).into_iter().zip(times);
    means.map(|(mean, time)| mean?.ratio_of(*time)).collect()
}

fn near(a: &[Option<f64>], b: &[Option<f64>]) -> bool {
    let are_near = |(a, b): (&Option<f64>, &Option<f64>)| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-6 * a.abs().max(1.0),
        (None, None) => true,
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(are_near)
}

proptest! {
    /// Invariant 18, and 17 for the ratio: order and unit of the times change nothing, equals are equal, and without
    /// outliers it is the time over the mean of the others.
    #[test]
    fn ratios_match_their_definition(times in times(), scale in 0.001..1000.0, turn in 0..40_usize) {
        let found = ratios(&times);
        let scaled: Vec<f64> = times.iter().map(|time| time * scale).collect();
        prop_assert!(near(&found, &ratios(&scaled)));
        let turn = turn % times.len();
        let (mut turned, mut expected) = (times.clone(), found.clone());
        turned.rotate_left(turn);
        expected.rotate_left(turn);
        prop_assert!(near(&expected, &ratios(&turned)));
        let equal = (times.len() > 2).then_some(1.0);
        prop_assert!(near(&ratios(&vec![times[0]; times.len()]), &vec![equal; times.len()]));
        for (index, time) in times.iter().enumerate() {
            let mut others = times.clone();
            others.remove(index);
            others.sort_by(f64::total_cmp);
            let (low, high) = (others[(others.len() - 1) / 2], others[others.len() / 2]);
            let middle = (low + high) / 2.0;
            let (least, greatest) = (others.first().unwrap(), others.last().unwrap());
            if others.len() >= 3 && *greatest <= 2.0 * middle && *least >= middle / 2.0 {
                let mean = others.iter().sum::<f64>() / others.len() as f64;
                prop_assert!(near(&[Some(time / mean)], &[found[index]]));
            }
        }
    }

    /// Invariant 17: a node that computes slowly is called so, takes no round, and makes no other slow. It takes two others
    /// to decide which is slow.
    #[test]
    fn a_node_that_computes_slowly_makes_no_other_slow(nodes in 3..60_u32, slow in 0..60_u32, exclude_straggler: bool, seed: u64) {
        let slow = slow % nodes;
        let cluster = Cluster { slow_compute: [(slow, 3.0)].into(), seed, ..Cluster::healthy(nodes, 1) };
        let policy = Policy { exclude_straggler, taint_guard_permille: 1000, ..Policy::new(seed) };
        let outcome = rehearse(&cluster, policy);
        prop_assert_eq!(with(&outcome, |it| *it == NodeVerdict::StragglerCompute), [slow].into());
        prop_assert_eq!(with(&outcome, |it| *it == NodeVerdict::Healthy).len() as u32, nodes - 1);
        prop_assert_eq!(tainted(&outcome).len(), usize::from(exclude_straggler));
        prop_assert_eq!(outcome.rounds.len(), 1);
    }

    /// A slow card is found where stragglers are left out, and its partners are not.
    #[test]
    fn a_slow_card_is_distinguished_from_its_partners(nodes in 8..60_u32, slow in 0..60_u32, noise in 0.0..0.2, seed: u64) {
        let slow = slow % nodes;
        let cluster = Cluster { slow_nic: [(slow, 6.0)].into(), noise, seed, ..Cluster::healthy(nodes, 1) };
        let policy = Policy { exclude_straggler: true, ..Policy::new(seed) };
        let outcome = rehearse(&cluster, policy);
        prop_assert_eq!(with(&outcome, |it| *it == NodeVerdict::StragglerNetwork), [slow].into());
        prop_assert_eq!(tainted(&outcome), [slow].into());
    }
}

/// A slow card that is tested again and again, as scatter asks for, must not become the measure of its own tests.
#[test]
fn a_slow_card_of_a_small_cluster_is_found_however_often_it_is_tested() {
    for seed in 0..500_u64 {
        let slow = (seed % 8) as u32;
        let cluster = Cluster { slow_nic: [(slow, 4.0)].into(), noise: 0.15, seed, ..Cluster::healthy(8, 1) };
        let outcome = rehearse(&cluster, Policy { exclude_straggler: true, ..Policy::new(seed) });
        let found = with(&outcome, |it| *it == NodeVerdict::StragglerNetwork);
        assert_eq!(found, [slow].into(), "seed {seed}: {} rounds", outcome.rounds.len());
    }
}
