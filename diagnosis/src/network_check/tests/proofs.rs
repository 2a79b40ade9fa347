//! What tests prove.

use proptest::prelude::*;

use super::{
    super::{
        Kind, Policy, TestRecord, TestResult,
        check_log::CheckLog,
        facts::Facts,
        rehearsal::{Cluster, rehearse_observed},
    },
    clusters::wild,
};

/// What is known when the check of this cluster is over.
fn log(cluster: &Cluster) -> CheckLog {
    let mut log = None;
    rehearse_observed(cluster, Policy::new(cluster.seed), |scene| log = Some(scene.check.log.clone()));
    log.unwrap()
}

fn test(members: &[u32], result: TestResult, explained: bool) -> TestRecord {
    TestRecord {
        kind: Kind::Witness,
        members: members.to_vec(),
        across: false,
        result,
        ended: std::time::Duration::ZERO,
        comm: None,
        ratio_permille: None,
        baseline: None,
        bytes_per_second: None,
        reasons: Vec::new(),
        explained,
    }
}

/// The same with one test more, in the last round.
fn with(log: &CheckLog, test: TestRecord) -> CheckLog {
    let mut log = log.clone();
    log.rounds.last_mut().unwrap().tests.push(test);
    log
}

proptest! {
    /// Invariant 11: a test that passes never condemns its ends, and one that fails makes no node good.
    #[test]
    fn proofs_only_add(cluster in wild(24), a: u32, b: u32) {
        let log = log(&cluster);
        prop_assume!(!log.rounds.is_empty());
        let (a, b) = (a % cluster.nodes, b % cluster.nodes);
        prop_assume!(a != b);
        let before = Facts::of(&log);
        let passed = Facts::of(&with(&log, test(&[a, b], TestResult::Pass, false)));
        for node in [a, b] {
            prop_assert!(passed.is(node, |it| !it.condemned || it.is_gone));
        }
        let failed = Facts::of(&with(&log, test(&[a, b], TestResult::Fail, false)));
        for (before, after) in before.nodes.iter().zip(&failed.nodes) {
            prop_assert!(before.has_passed || !after.good);
        }
    }

    /// Invariant 14: a test with one that is gone is no evidence on the other; nor is a failed group of three evidence
    /// against a node. It may show that two links are bad and not their common end.
    #[test]
    fn explained_tests_and_failed_threes_are_no_evidence(cluster in wild(24), a: u32, b: u32, c: u32) {
        let log = log(&cluster);
        prop_assume!(!log.rounds.is_empty());
        let [a, b, c] = [a, b, c].map(|node| node % cluster.nodes);
        let before = Facts::of(&log);
        let explained = Facts::of(&with(&log, test(&[a, b], TestResult::Fail, true)));
        for (before, after) in before.nodes.iter().zip(&explained.nodes) {
            prop_assert_eq!(
                (before.good, before.condemned, before.flaky),
                (after.good, after.condemned, after.flaky)
            );
        }
        let three = Facts::of(&with(&log, test(&[a, b, c], TestResult::Fail, false)));
        for (before, after) in before.nodes.iter().zip(&three.nodes) {
            prop_assert_eq!((before.good, before.condemned), (after.good, after.condemned));
            prop_assert!(before.flaky || !after.flaky);
        }
    }
}
