//! Several things broken at once.

use super::{
    super::{
        Kind, NodeVerdict, Policy, RoundRecord, TestRecord, TestResult,
        check_log::CheckLog,
        facts::Facts,
        rehearsal::{Cluster, rehearse},
    },
    clusters::{faults, patient, tainted, with},
};
use crate::network_check::{LocalCheck, Subject};

/// The rack-pair rule by itself: a node that failed twice over a path which two good pairs failed over too, and which
/// no node passed, is not condemned.
#[test]
fn failures_over_a_bad_path_between_racks_are_no_evidence() {
    let local = LocalCheck::default();
    let subjects = (0..12)
        .map(|node| Subject { rack: node / 4, pod: 0, seen_before: false, local: local.clone() })
        .collect();
    let mut log = CheckLog::new(Policy::new(0), subjects);
    let test = |a: u32, b: u32, result| TestRecord {
        kind: Kind::Screen,
        members: vec![a, b],
        across: false,
        result,
        ended: std::time::Duration::ZERO,
        comm: None,
        ratio_permille: None,
        baseline: None,
        bytes_per_second: None,
        reasons: Vec::new(),
        explained: false,
    };
    let passed = [(1, 8), (2, 9), (4, 10), (5, 11), (6, 8), (7, 9)];
    let failed = [(1, 4), (2, 5), (0, 6), (0, 7)];
    let tests = passed.iter().map(|(a, b)| test(*a, *b, TestResult::Pass));
    let tests = tests.chain(failed.iter().map(|(a, b)| test(*a, *b, TestResult::Fail)));
    log.rounds.push(RoundRecord {
        began: std::time::Duration::ZERO,
        took: std::time::Duration::ZERO,
        tests: tests.collect(),
    });
    assert!(Facts::of(&log).is(0, |node| !node.condemned && node.evidence.is_empty()));
    // One of the good pairs passes after all: then the path is fit, and both speak against the node.
    log.rounds[0].tests.push(test(3, 4, TestResult::Pass));
    assert!(Facts::of(&log).is(0, |node| node.is_suspect() && node.evidence.len() == 2));
}

/// 8 racks of 8, two broken paths between racks, and broken nodes among them: no healthy node is blamed.
#[test]
fn broken_paths_between_racks_blame_no_node() {
    let mut named = 0;
    for seed in 0..300 {
        let (a, b, c) = ((seed % 8) as u32, (seed / 8 % 8) as u32, (seed / 64 % 8) as u32);
        let mut dead_rack_pairs: std::collections::BTreeSet<(u32, u32)> = [(a.min(b), a.max(b))].into();
        dead_rack_pairs.insert((a.min(c), a.max(c)));
        dead_rack_pairs.retain(|(a, b)| a != b);
        let faulty = [(seed * 7 % 64) as u32, (seed * 13 % 64) as u32].into();
        let cluster = Cluster { faulty, dead_rack_pairs, seed, ..Cluster::healthy(64, 8) };
        let outcome = rehearse(&cluster, patient(seed));
        assert_eq!(faults(&outcome), cluster.faulty, "seed {seed}");
        assert_eq!(tainted(&outcome), cluster.faulty, "seed {seed}");
        for pair in &outcome.rack_pairs {
            assert!(cluster.dead_rack_pairs.contains(&pair.racks), "seed {seed}: {pair:?}");
            named += 1;
        }
        assert!(outcome.links.iter().all(|link| cluster.is_cut(link.nodes.0, link.nodes.1)), "seed {seed}");
    }
    assert!(named > 400, "{named} paths were named");
}

#[test]
fn a_rack_that_is_cut_off_is_left_out_and_not_tainted() {
    for seed in 0..50 {
        let faulty = [3, 18].into();
        let cluster = Cluster { dead_uplinks: [2].into(), faulty, seed, ..Cluster::healthy(64, 8) };
        let outcome = rehearse(&cluster, patient(seed));
        assert_eq!(outcome.uplinks, [2], "seed {seed}");
        let fit: std::collections::BTreeSet<u32> = (16..24).filter(|node| *node != 18).collect();
        assert_eq!(with(&outcome, |it| *it == NodeVerdict::Unreachable), fit, "seed {seed}");
        assert_eq!(tainted(&outcome), [3, 18].into(), "seed {seed}");
        assert!(outcome.links.is_empty() && outcome.rack_pairs.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_flaky_node_taints_no_other_node() {
    let mut found = 0;
    for seed in 0..300 {
        let cluster =
            Cluster { flaky: [(8, 0.5)].into(), faulty: [2].into(), seed, ..Cluster::healthy(64, 4) };
        let outcome = rehearse(&cluster, patient(seed));
        assert!(tainted(&outcome).is_subset(&[2, 8].into()), "seed {seed}");
        found += u32::from(tainted(&outcome).contains(&8));
    }
    assert!(found > 60, "{found} of 300");
}
