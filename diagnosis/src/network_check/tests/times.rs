//! Times that are long, or wrong: which nodes are slow, and which are not.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        NodeVerdict, Outcome, Policy,
        rehearsal::{Cluster, rehearse},
    },
    clusters::with,
};

fn excluding(seed: u64) -> Policy {
    Policy { exclude_straggler: true, taint_guard_permille: 1000, ..Policy::new(seed) }
}

fn stragglers(outcome: &Outcome) -> BTreeSet<u32> {
    with(outcome, |it| matches!(it, NodeVerdict::StragglerNetwork | NodeVerdict::StragglerCompute))
}

/// Tainted, left out, or called anything else than healthy.
fn blamed(outcome: &Outcome) -> BTreeSet<u32> {
    let is_blamed = |number: &u32| {
        let node = &outcome.nodes[*number as usize];
        node.tainted || node.excluded || node.verdict != NodeVerdict::Healthy
    };
    (0..outcome.nodes.len() as u32).filter(is_blamed).collect()
}

/// The tests of the first round within racks are few, and one of them, or the only one, is the slow card's.
#[test]
fn a_slow_card_is_found_where_its_first_test_is_the_only_one_within_a_rack() {
    for (nodes, racks, seed, slow) in [(9, 5, 34, 1)] {
        for factor in [4.0, 1000.0] {
            let cluster =
                Cluster { slow_nic: [(slow, factor)].into(), seed, ..Cluster::healthy(nodes, racks) };
            let outcome = rehearse(&cluster, excluding(seed));
            assert_eq!(stragglers(&outcome), [slow].into(), "{nodes} nodes, times {factor}: {outcome:#?}");
        }
    }
}

/// One slow card in any place of any small cluster: the runs, and those that went wrong.
fn slow_cards(seeds: u64) -> (u32, Vec<String>) {
    let (mut runs, mut wrong) = (0, Vec::new());
    for nodes in 4..=40_u32 {
        for (racks, slow) in (1..=nodes / 2).flat_map(|racks| (0..nodes).map(move |slow| (racks, slow))) {
            for seed in (0..seeds).map(|run| run << 32 | u64::from(nodes * 41 + racks * 7 + slow)) {
                let cluster =
                    Cluster { slow_nic: [(slow, 4.0)].into(), seed, ..Cluster::healthy(nodes, racks) };
                let blamed = blamed(&rehearse(&cluster, excluding(seed)));
                runs += 1;
                if blamed != [slow].into() {
                    wrong.push(format!("{nodes} nodes, {racks} racks, seed {seed}, slow {slow}: {blamed:?}"));
                }
            }
        }
    }
    (runs, wrong)
}

#[test]
fn one_slow_card_is_found_wherever_it_is() {
    let (runs, wrong) = slow_cards(1);
    assert!(wrong.is_empty() && runs > 10_000, "{} of {runs}: {:#?}", wrong.len(), wrong.get(..9));
}

#[test]
#[ignore = "the same many times: some minutes"]
fn one_slow_card_is_found_wherever_it_is_each_time() {
    let (runs, wrong) = slow_cards(20);
    println!("{runs} runs, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {runs}: {wrong:#?}", wrong.len());
}

/// Transfers between racks take 2.5 times as long as those within, and that is as it should be.
#[test]
fn far_racks_make_no_node_slow() {
    for nodes in 4..=24_u32 {
        for (racks, seed) in (2..=nodes / 2).flat_map(|racks| (0..4_u64).map(move |seed| (racks, seed))) {
            let healthy = Cluster { seed, ..Cluster::healthy(nodes, racks) };
            let pairs = (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b)));
            let far = pairs.filter(|(a, b)| healthy.rack(*a) != healthy.rack(*b));
            let slow_links: BTreeMap<(u32, u32), f64> = far.map(|ends| (ends, 2.5)).collect();
            for faulty in [BTreeSet::new(), [seed as u32].into()] {
                let cluster =
                    Cluster { slow_links: slow_links.clone(), faulty: faulty.clone(), ..healthy.clone() };
                let outcome = rehearse(&cluster, excluding(seed));
                let case = format!("{nodes} nodes, {racks} racks, seed {seed}, faulty {faulty:?}");
                assert_eq!(stragglers(&outcome), [].into(), "{case}");
                assert!(outcome.links.is_empty() && outcome.rack_pairs.is_empty(), "{case}: {outcome:#?}");
            }
        }
    }
}

/// One node reports any times and results: the others are no slower for it.
#[test]
fn a_lying_node_makes_no_other_slow() {
    for (nodes, liar) in (4..=24_u32).flat_map(|nodes| (0..nodes).map(move |liar| (nodes, liar))) {
        for (exclude_straggler, seed) in
            [false, true].into_iter().flat_map(|it| (0..4_u64).map(move |seed| (it, seed)))
        {
            let racks = 1 + (seed as u32 % 3) * nodes / 6;
            let cluster = Cluster { liars: [liar].into(), seed, ..Cluster::healthy(nodes, racks) };
            let outcome = rehearse(&cluster, Policy { exclude_straggler, ..excluding(seed) });
            let others: BTreeSet<u32> = stragglers(&outcome).into_iter().filter(|it| *it != liar).collect();
            assert!(
                others.is_empty(),
                "{nodes} nodes, {racks} racks, seed {seed}, liar {liar}, {exclude_straggler}: {others:?}"
            );
        }
    }
}

/// Of two that disagree either may be wrong; so may one of three, where the two others disagree.
#[test]
fn too_few_clocks_blame_no_node() {
    for factor in [3.0, 1e-7, 1e5] {
        for seed in 0..4 {
            let cluster = Cluster { slow_compute: [(1, factor)].into(), seed, ..Cluster::healthy(2, 1) };
            assert_eq!(blamed(&rehearse(&cluster, excluding(seed))), [].into(), "two, times {factor}");
            let cluster = Cluster { slow_compute: [(1, factor)].into(), seed, ..Cluster::healthy(3, 1) };
            let expected = if factor > 1.0 { [1].into() } else { BTreeSet::new() };
            assert_eq!(blamed(&rehearse(&cluster, excluding(seed))), expected, "three, times {factor}");
        }
    }
}

#[test]
fn outliers_that_were_left_out_are_named() {
    let slow_compute = [(4, 2.1), (5, 2.1)].into();
    let outcome = rehearse(&Cluster { slow_compute, ..Cluster::healthy(6, 1) }, excluding(0));
    assert_eq!(
        outcome.nodes[4].evidence[0].message,
        "2.10 times the baseline compute time in each of 2 samples: at least 105.0 ms against 50.0 ms, for \
         matrix products by cuBLAS on simulated GPU; the baseline is the mean of 4 nodes that ran the same computation; \
         outliers left out: node 5 (105.0 ms)"
    );
    let slow_nic = [(4, 4.0), (9, 4.0)].into();
    let outcome = rehearse(&Cluster { slow_nic, ..Cluster::healthy(12, 1) }, excluding(1));
    let message = &outcome.nodes[4].evidence[0].message;
    assert!(
        message.contains(": 4.00 times the baseline within racks: 100.0 ms, the mean of ")
            && message.contains(" other nodes, "),
        "{message}"
    );
    assert!(message.contains(", outliers left out: "), "{message}");
}
