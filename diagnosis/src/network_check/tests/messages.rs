//! The evidence on a node, and its verdict when two apply.

use std::time::Duration;

use super::super::{
    Effect, Event, LocalCheck, NetworkCheck, NodeVerdict, Policy, Probed, Subject,
    rehearsal::{Cluster, rehearse},
};
use crate::moment::Moment;

#[test]
fn a_node_that_computes_and_so_sends_slowly_is_a_compute_straggler() {
    let slow = |node: u32| [(node, 9.0)].into_iter().collect();
    let policy = || Policy { exclude_straggler: true, ..Policy::new(7) };
    let both = Cluster { slow_compute: slow(3), slow_nic: slow(3), ..Cluster::healthy(6, 1) };
    let outcome = rehearse(&both, policy());
    assert_eq!(outcome.nodes[3].verdict, NodeVerdict::StragglerCompute, "{outcome:#?}");
    assert!(outcome.nodes[3].evidence[0].message.contains("the baseline compute time"), "{outcome:#?}");
    let nic = Cluster { slow_nic: slow(3), ..Cluster::healthy(6, 1) };
    assert_eq!(rehearse(&nic, policy()).nodes[3].verdict, NodeVerdict::StragglerNetwork);
    for outcome in [outcome, rehearse(&nic, policy())] {
        let healthy = outcome.nodes.iter().filter(|node| node.verdict == NodeVerdict::Healthy);
        assert_eq!(healthy.count(), 5, "{outcome:#?}");
    }
}

/// The evidence against node 2 of four, which gives this reason for each of its tests, while its partners report that it does not
/// answer.
fn words_against(own: Option<&str>) -> Vec<String> {
    let subject = Subject { rack: 0, pod: 0, seen_before: false, local: LocalCheck::default() };
    let (mut check, mut effects) = NetworkCheck::new(Policy::new(1), Moment::START, vec![subject; 4]);
    loop {
        let effect = effects.remove(0);
        let (round, groups) = match effect {
            Effect::Start { round, groups, .. } => (round, groups),
            Effect::Finish(outcome) => {
                let finding = &outcome.nodes[2];
                assert_eq!(finding.verdict, NodeVerdict::Fault, "{outcome:#?}");
                return finding.evidence.iter().map(|it| it.message.clone()).collect();
            }
            Effect::Cancel { .. } => continue,
        };
        let passed = || Probed::Passed {
            comm: Duration::from_millis(10),
            latency: Duration::from_micros(50),
            bytes_per_second: 1,
        };
        for (group, node) in
            groups.iter().flat_map(|group| group.members.iter().map(move |node| (group, *node)))
        {
            let probed = match (group.members.contains(&2), node, own) {
                (false, ..) => passed(),
                (true, 2, None) => continue,
                (true, 2, Some(reason)) => Probed::Failed { reason: reason.to_owned() },
                (true, ..) => Probed::Failed { reason: "it does not answer".to_owned() },
            };
            effects.extend(
                check.handle(
                    Moment::START,
                    Event::Reported { node, round, probed, compute: Some(Vec::new()) },
                ),
            );
        }
        while effects.is_empty() {
            let deadline = check.deadline().expect("a round is on");
            effects.extend(check.handle(deadline, Event::Deadline));
        }
    }
}

#[test]
fn the_evidence_has_the_nodes_own_reason_where_there_is_one() {
    for message in words_against(Some("my card is on fire")) {
        assert!(message.ends_with(", which is verified: my card is on fire"), "{message}");
    }
}

#[test]
fn a_missing_report_is_named() {
    let silent = words_against(None);
    assert!(silent.iter().all(|message| message.contains(": no report within ")), "{silent:#?}");
}
