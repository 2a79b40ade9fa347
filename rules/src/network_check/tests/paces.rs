//! Who is slow.

use proptest::prelude::*;

use super::{
    super::{
        NodeVerdict, Policy,
        ratio::loo_ratios,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{tainted, with},
};

fn times() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(1.0..1000.0, 2..40)
}

proptest! {
    /// Invariant 18, and 17 for the ratio: order and unit of the times change nothing, equals are equal, and without
    /// outliers it is the time over the mean of the others.
    #[test]
    fn ratios_are_what_they_are_said_to_be(times in times(), scale in 0.001..1000.0, turn in 0..40_usize) {
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6 * a.abs().max(1.0));
        let ratios = loo_ratios(&times);
        let scaled: Vec<f64> = times.iter().map(|time| time * scale).collect();
        prop_assert!(near(&ratios, &loo_ratios(&scaled)));
        let turn = turn % times.len();
        let (mut turned, mut expected) = (times.clone(), ratios.clone());
        turned.rotate_left(turn);
        expected.rotate_left(turn);
        prop_assert!(near(&expected, &loo_ratios(&turned)));
        prop_assert!(near(&loo_ratios(&vec![times[0]; times.len()]), &vec![1.0; times.len()]));
        for (index, time) in times.iter().enumerate() {
            let mut others = times.clone();
            others.remove(index);
            others.sort_by(f64::total_cmp);
            let middle = others.len() / 2;
            let median = if others.len() % 2 == 1 { others[middle] } else { (others[middle - 1] + others[middle]) / 2.0 };
            if others.last().unwrap() <= &(2.0 * median) {
                let mean = others.iter().sum::<f64>() / others.len() as f64;
                prop_assert!(near(&[time / mean], &[ratios[index]]));
            }
        }
    }

    /// Invariant 17: a node that computes slowly is called so, takes no round, and marks nobody else.
    #[test]
    fn a_slow_computer_marks_nobody_else(nodes in 2..60_u32, slow in 0..60_u32, exclude_straggler: bool, seed: u64) {
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
    fn a_slow_card_is_told_from_its_partners(nodes in 8..60_u32, slow in 0..60_u32, noise in 0.0..0.2, seed: u64) {
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
