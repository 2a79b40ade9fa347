//! The pairs of tests.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{
    super::{
        Effect, Kind, Policy,
        facts::Facts,
        rehearsal::{Cluster, rehearse, rehearse_observed},
    },
    clusters::{patient, wild},
};

proptest! {
    /// Invariants 1, 2, 12 and 13: every live node is in one group, no other in any; groups are small; only a retest
    /// repeats a pair; a witness is verified.
    #[test]
    fn groups_are_as_they_should_be(cluster in wild(40), exclude_straggler: bool) {
        let mut met = BTreeSet::new();
        let policy = Policy { exclude_straggler, ..Policy::new(cluster.seed) };
        rehearse_observed(&cluster, policy, |scene| {
            for effect in scene.effects {
                let Effect::Start { round, groups, .. } = effect else { continue };
                let known = &scene.check.log;
                let mut group_counts: BTreeMap<u32, u32> = BTreeMap::new();
                let facts = Facts::of(known);
                let odd = *round == 0 && known.order.len() % 2 == 1;
                assert_eq!(groups.iter().filter(|group| group.members.len() == 3).count(), usize::from(odd));
                for (index, group) in (0..).zip(groups) {
                    assert_eq!(group.id, index);
                    for member in &group.members {
                        *group_counts.entry(*member).or_default() += 1;
                    }
                    match group.members[..] {
                        [_] => assert_eq!(group.kind, Kind::Idle),
                        [a, b] => {
                            let is_new = met.insert((a.min(b), a.max(b)));
                            assert!(is_new || matches!(group.kind, Kind::Retest | Kind::RackDiagnosis), "{group:?}");
                        }
                        ref members => assert_eq!(members.len(), 3),
                    }
                    if matches!(group.kind, Kind::Witness | Kind::Retest | Kind::Probe) {
                        // Nothing more is learnt of a node that is known to pass and fail by turns.
                        assert!(!group.members.iter().any(|node| facts.is(*node, |it| it.surely_flaky)), "{group:?}");
                    }
                    if group.kind == Kind::Witness {
                        let good = group.members.iter().filter(|node| facts.is(**node, |it| it.is_witness()));
                        assert_eq!(good.count(), 1);
                    }
                }
                assert!(group_counts.values().all(|group_counts| *group_counts == 1));
                assert_eq!(group_counts.into_keys().collect::<Vec<_>>(), known.live().collect::<Vec<_>>());
            }
        });
    }

    /// Invariant 16: where stragglers stay, nothing is tested because of them.
    #[test]
    fn slow_nodes_that_stay_take_no_round(cluster in wild(40)) {
        let slow = Cluster { slow_nic: cluster.slow_nic, noise: cluster.noise, ..Cluster::healthy(cluster.nodes, 4) };
        prop_assert_eq!(rehearse(&slow, Policy::new(cluster.seed)).rounds.len(), 1);
    }
}

/// Invariant 20: without a good node, after 2^b - 1 rounds every block of 2^b places has met in all pairs.
#[test]
fn the_seed_search_completes_blocks() {
    let nodes = 32;
    let cluster = Cluster { faulty: (0..nodes).collect(), ..Cluster::healthy(nodes, 1) };
    let mut places = BTreeMap::new();
    let mut met = BTreeSet::new();
    rehearse_observed(&cluster, patient(3), |scene| {
        let Some(Effect::Start { round, groups, .. }) = scene.effects.last() else { return };
        if *round == 0 {
            let order = groups.iter().flat_map(|group| group.members.clone());
            places = order.zip(0_u32..).collect();
        }
        for group in groups.iter().filter(|group| group.members.len() == 2) {
            let (a, b) = (places[&group.members[0]], places[&group.members[1]]);
            met.insert((a.min(b), a.max(b)));
        }
        let rounds = round + 1;
        if (rounds + 1).is_power_of_two() {
            let block = rounds + 1;
            for a in 0..nodes {
                for b in a + 1..(a / block + 1) * block {
                    assert!(met.contains(&(a, b)), "{a} and {b} after {rounds} rounds");
                }
            }
        }
    });
    assert_eq!(met.len() as u32, nodes * (nodes - 1) / 2);
}
