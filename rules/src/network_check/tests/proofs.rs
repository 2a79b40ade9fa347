//! What tests prove.

use proptest::prelude::*;

use super::{
    super::{
        Kind, Policy, TestRecord, TestResult,
        facts::Facts,
        known::Known,
        rehearsal::{Cluster, watch},
    },
    clusters::wild,
};

/// What is known when the check of this cluster is over.
fn known(cluster: &Cluster) -> Known {
    let mut known = None;
    watch(cluster, Policy::new(cluster.seed), |scene| known = Some(scene.check.known.clone()));
    known.unwrap()
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
        usual: None,
        bytes_per_second: None,
        reasons: Vec::new(),
        explained,
    }
}

/// The same with one test more, in the last round.
fn with(known: &Known, test: TestRecord) -> Known {
    let mut known = known.clone();
    known.rounds.last_mut().unwrap().tests.push(test);
    known
}

proptest! {
    /// Invariant 11: a test that passes never condemns its ends, and one that fails makes nobody good.
    #[test]
    fn proofs_only_add(cluster in wild(24), a: u32, b: u32) {
        let known = known(&cluster);
        prop_assume!(!known.rounds.is_empty());
        let (a, b) = (a % cluster.nodes, b % cluster.nodes);
        prop_assume!(a != b);
        let before = Facts::of(&known);
        let passed = Facts::of(&with(&known, test(&[a, b], TestResult::Pass, false)));
        for node in [a, b] {
            prop_assert!(passed.is(node, |it| !it.condemned || it.is_gone));
        }
        let failed = Facts::of(&with(&known, test(&[a, b], TestResult::Fail, false)));
        for (before, after) in before.nodes.iter().zip(&failed.nodes) {
            prop_assert!(before.has_passed || !after.good);
        }
    }

    /// Invariant 14: a test with one that is gone says nothing of the other; and a failed group of three of nobody.
    #[test]
    fn explained_tests_and_threes_say_nothing(cluster in wild(24), a: u32, b: u32, c: u32) {
        let known = known(&cluster);
        prop_assume!(!known.rounds.is_empty());
        let [a, b, c] = [a, b, c].map(|node| node % cluster.nodes);
        let before = Facts::of(&known);
        for test in [test(&[a, b], TestResult::Fail, true), test(&[a, b, c], TestResult::Fail, false)] {
            let after = Facts::of(&with(&known, test));
            for (before, after) in before.nodes.iter().zip(&after.nodes) {
                prop_assert_eq!(
                    (before.good, before.condemned, before.flaky),
                    (after.good, after.condemned, after.flaky)
                );
            }
        }
    }
}
