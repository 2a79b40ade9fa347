//! Two hosts that do not reach each other, and no third that could tell which of them is at fault.

use support::launch::Running;

use super::job::Job;
use crate::hosts::{Fault, Network};

/// A job of two without a link between them, and this policy: no node is tainted, and both leave or neither.
fn with_policy<'a>(network: &'a Network, policy: &[&str], both_leave: bool) -> (Job<'a>, Vec<Running>) {
    let flags: Vec<&str> = ["--nnodes=2"].iter().chain(policy).copied().collect();
    let job = Job::on(network, &flags);
    let nodes = job.start();
    let report = job.report(0);
    assert_eq!(report.verdicts(), ["inconclusive"; 2], "{report:#?}");
    assert!(
        report.nodes.iter().all(|node| node.taint.is_none() && node.excluded == both_leave),
        "{report:#?}"
    );
    assert_eq!((report.guard.taints, report.guard.mass_failure), (0, false), "{report:#?}");
    (job, nodes)
}

#[test]
fn of_two_hosts_the_faulty_one_is_unknown_and_the_policy_decides() {
    let Some(network) = Network::of(2) else { return };
    network.break_host(1, Fault::Mute);

    let (job, nodes) = with_policy(&network, &[], false);
    for outcome in job.fails(nodes, 202).iter().take(2) {
        let output = &outcome.stderr;
        assert!(
            output.contains("cannot tell which of these 2 nodes (of 2 checked) is at fault: "),
            "{output}"
        );
        assert!(output.contains("; the first of them failed with node number 1 ("), "{output}");
        assert!(output.contains("), which is also unverified: "), "{output}");
        assert!(
            output.contains("no node is tainted. Check these nodes first, then the network between"),
            "{output}"
        );
    }

    let (job, nodes) = with_policy(&network, &["--on-inconclusive=proceed"], false);
    let _world = job.first_world(2);
    for node in &nodes {
        let output = job.await_output(node, "network check ended, but no node passed: 1 check round, ");
        assert!(output.contains("; also admitted: node number 0 ("), "{output}");
    }
    let _end = job.ends_well(nodes);

    let (job, nodes) = with_policy(&network, &["--on-inconclusive=relaunch"], true);
    for outcome in job.leave(nodes, 202) {
        let output = &outcome.stderr;
        assert!(output.contains("excluded by the network check (inconclusive): "), "{output}");
    }
    assert_eq!(job.ran(), []);
}
