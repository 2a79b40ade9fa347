//! Links and paths between racks, distinguished from the nodes at their ends.

use std::collections::BTreeSet;

use super::{
    super::{
        LinkFault, LinkKind, NetworkElement, NodeVerdict, Policy,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{faults, patient, tainted, with},
};

/// The pairs of the first round of such a cluster.
fn screened(cluster: &Cluster) -> Vec<Vec<u32>> {
    let outcome = rehearse(cluster, patient(cluster.seed));
    outcome.rounds[0].tests.iter().map(|test| test.members.clone()).collect()
}

/// The three pairs of a group of three.
fn pairs(members: &[u32]) -> [(u32, u32); 3] {
    let [a, b, c] = members[..] else { panic!("{members:?}") };
    [(a, b), (a, c), (b, c)].map(|(a, b)| (a.min(b), a.max(b)))
}

#[test]
fn a_dead_link_in_a_group_of_three_is_named() {
    for nodes in (5..=21).step_by(2) {
        for seed in 0..10 {
            let healthy = Cluster { seed, ..Cluster::healthy(nodes, 1) };
            let three = screened(&healthy).into_iter().find(|members| members.len() == 3).unwrap();
            for ends in pairs(&three) {
                let outcome =
                    rehearse(&Cluster { dead_links: [ends].into(), ..healthy.clone() }, patient(seed));
                assert_eq!(
                    outcome.links,
                    [LinkFault { nodes: ends, kind: LinkKind::Dead }],
                    "{nodes} {seed}"
                );
                assert!(tainted(&outcome).is_empty());
                // 1 for none broken, 1 for an odd number, 3 for a link.
                assert!(outcome.rounds.len() <= 5, "{nodes} {seed}: {} rounds", outcome.rounds.len());
            }
        }
    }
}

fn excluding(seed: u64) -> Policy {
    Policy { exclude_straggler: true, ..patient(seed) }
}

#[test]
fn a_slow_link_is_named_and_its_ends_are_not() {
    for seed in 0..40 {
        let healthy = Cluster { noise: 0.1, seed, ..Cluster::healthy(20, 4) };
        let pair = screened(&healthy)[3].clone();
        let ends = (pair[0].min(pair[1]), pair[0].max(pair[1]));
        let outcome = rehearse(&Cluster { slow_links: [(ends, 4.0)].into(), ..healthy }, excluding(seed));
        assert_eq!(outcome.links, [LinkFault { nodes: ends, kind: LinkKind::Slow }], "seed {seed}");
        assert!(tainted(&outcome).is_empty(), "seed {seed}");
    }
}

#[test]
fn a_slow_card_of_four_nodes_or_five_is_found() {
    for (nodes, seed) in (4..=6).flat_map(|nodes| (0..100).map(move |seed| (nodes, seed))) {
        let cluster =
            Cluster { slow_nic: [(0, 8.0)].into(), noise: 0.05, seed, ..Cluster::healthy(nodes, 1) };
        assert_eq!(tainted(&rehearse(&cluster, excluding(seed))), [0].into(), "{nodes} nodes, seed {seed}");
    }
}

/// A test takes as long as the slower of its ends, and slow ones are tested more often than others.
#[test]
fn slow_cards_are_no_slow_links() {
    let (mut wrong, mut found) = (0, 0);
    for seed in 0..200 {
        let cards: BTreeSet<u32> =
            [seed * 5 % 24, seed * 7 % 24 / 2, seed * 11 % 24].map(|it| it as u32).into();
        let slow_nic = cards.iter().map(|card| (*card, 4.0)).collect();
        let cluster = Cluster { slow_nic, noise: 0.2, seed, ..Cluster::healthy(24, 3) };
        let outcome = rehearse(&cluster, excluding(seed));
        assert!(tainted(&outcome).is_subset(&cards), "seed {seed}: {:?}", tainted(&outcome));
        assert!(outcome.rounds.len() <= 6, "seed {seed}: {} rounds", outcome.rounds.len());
        wrong += u32::from(!outcome.links.is_empty() || !outcome.rack_pairs.is_empty());
        found += u32::from(tainted(&outcome) == cards);
    }
    // A time that scatters is short now and then.
    assert!(wrong <= 2 && found >= 195, "{wrong} wrong, {found} found");
}

/// Two bad paths that a rack shares look like nodes of it that are broken, unless nearby nodes are tested.
#[test]
fn two_bad_paths_of_a_rack_blame_no_node() {
    for seed in 0..300 {
        let (nodes, racks) = (12 + (seed % 40) as u32, 4 + (seed % 5) as u32);
        let (nodes, rack) = (nodes.max(3 * racks), (seed % u64::from(racks)) as u32);
        let others = [(rack + 1) % racks, (rack + 2) % racks];
        let dead_rack_pairs = others.map(|other| (rack.min(other), rack.max(other))).into();
        let cluster = Cluster { dead_rack_pairs, seed, ..Cluster::healthy(nodes, racks) };
        // The last rack may have one node or none, which then cannot be distinguished from a broken one.
        if (0..nodes).filter(|node| cluster.rack(*node) == rack).count() < 2 {
            continue;
        }
        let outcome = rehearse(&cluster, patient(seed));
        assert!(tainted(&outcome).is_empty(), "seed {seed}: {:?}", tainted(&outcome));
        assert!(outcome.rack_pairs.iter().all(|pair| cluster.dead_rack_pairs.contains(&pair.racks)));
    }
}

/// Whatever the kind of test that they failed in.
#[test]
fn in_racks_that_reach_only_themselves_the_broken_are_found() {
    for seed in 0..50 {
        let dead_rack_pairs = [(0, 1), (0, 2), (1, 2)].into();
        let faulty = [3, 20, 40].into();
        let cluster = Cluster { dead_rack_pairs, faulty, seed, ..Cluster::healthy(45, 3) };
        let outcome = rehearse(&cluster, patient(seed));
        assert_eq!(faults(&outcome), cluster.faulty, "seed {seed}");
        assert_eq!(tainted(&outcome), cluster.faulty, "seed {seed}");
        // One of the three trains.
        assert_eq!(with(&outcome, |it| *it == NodeVerdict::Unreachable).len(), 28, "seed {seed}");
        assert!(outcome.rounds.len() <= 8, "seed {seed}: {} rounds", outcome.rounds.len());
    }
}

/// A rack of which one node got out in a group of three is not cut off.
#[test]
fn a_group_of_three_that_passed_proves_its_paths() {
    let seed = 9_800_581_617_161_492_980;
    let cluster = Cluster {
        dead_rack_pairs: [(1, 2), (1, 5)].into(),
        faulty: [3, 8].into(),
        seed,
        ..Cluster::healthy(27, 9)
    };
    let outcome = rehearse(&cluster, patient(seed));
    assert_eq!(tainted(&outcome), cluster.faulty);
    assert!(outcome.uplinks.is_empty());
}

/// Three pairs of one path failed, and a fourth node of the rack with others: one cause is smaller than a path and a node.
#[test]
fn a_dead_path_leaves_doubt_about_the_other_uplinks_of_its_rack() {
    let partial = |nodes, racks, seed, rack, share| Cluster {
        seed,
        noise: 0.1,
        partial_uplinks: [(rack, share)].into(),
        ..Cluster::healthy(nodes, racks)
    };
    let one_pod = partial(12, 3, 6_100_346_960_954_007, 1, 0.25);
    let two_pods = Cluster { pod_size: 3, ..partial(16, 5, 5_265_855_726_524_977, 0, 0.5) };
    for cluster in [one_pod, two_pods] {
        let outcome = rehearse(&cluster, Policy { max_rounds: 8, ..patient(cluster.seed) });
        assert!(tainted(&outcome).is_empty(), "{outcome:#?}");
    }
}

#[test]
fn few_dead_pairs_may_be_a_path_or_part_of_the_uplinks_of_either_rack() {
    let of = |nodes, racks, seed, rack, share| {
        let partial_uplinks = [(rack, share)].into();
        let cluster = Cluster { seed, partial_uplinks, ..Cluster::healthy(nodes, racks) };
        rehearse(&cluster, Policy::new(seed))
    };
    // All three tests out of a rack of two failed.
    let dark = of(39, 31, 1_238_445_577_931_834, 4, 0.5);
    assert_eq!(dark.uplinks, [4]);
    let candidates = dark.ambiguous.iter().flat_map(|it| &it.candidates);
    assert!(
        candidates.eq(&[NetworkElement::Uplink(4), NetworkElement::PartialUplink(4)]),
        "{:?}",
        dark.ambiguous
    );
    // Two pairs of racks 2 and 3 are dead, and other pairs of the same two pass.
    let mixed = of(41, 6, 4_109_628_295_282_467, 3, 0.25);
    assert_eq!(mixed.partial_uplinks.iter().map(|it| it.rack).collect::<Vec<_>>(), [2]);
    let candidates = mixed.ambiguous.iter().flat_map(|it| &it.candidates);
    assert!(
        candidates.eq(&[NetworkElement::PartialUplink(2), NetworkElement::PartialUplink(3)]),
        "{:?}",
        mixed.ambiguous
    );
}

#[test]
fn of_two_pods_that_do_not_reach_each_other_either_may_be_cut_off() {
    let dead_pods = [0].into();
    let seed = 7_862_277_849_701_792;
    let cluster = Cluster { seed, pod_size: 2, dead_pods, ..Cluster::healthy(5, 3) };
    let outcome = rehearse(&cluster, Policy::new(seed));
    let candidates: Vec<_> = outcome.ambiguous.iter().flat_map(|it| it.candidates.clone()).collect();
    assert!(
        [NetworkElement::Pod(0), NetworkElement::Pod(1)].iter().all(|pod| candidates.contains(pod)),
        "{candidates:?}"
    );
}
