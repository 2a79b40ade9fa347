//! Two racks of healthy hosts that do not reach each other: the larger one trains, or the job fails by name. No host is
//! tainted for it.

use std::fs;

use support::launch::Running;
use tempfile::TempDir;

use super::{job::Job, report::Report};
use crate::hosts::{Fault, Network, data_address};

/// The last hosts of five, under the second switch.
const FAR: [usize; 2] = [3, 4];

/// The master's option for these hosts under two switches, and the directory of the file that it names.
fn topology(hosts: usize, far: &[usize]) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("topology");
    let switch = |host: &usize| u8::from(far.contains(host));
    let lines = (0..hosts).map(|host| format!("asw-{} psw-0 {}\n", switch(&host), data_address(host)));
    fs::write(&file, lines.collect::<String>()).expect("our own directory");
    let option = format!("--topology-config={}", file.display());
    (folder, option)
}

/// All paths between these hosts and the others are dead from now on.
fn sever(network: &Network, far: &[usize]) {
    for near in (0..network.len()).filter(|host| !far.contains(host)) {
        far.iter().for_each(|far| network.cut(near, *far));
    }
}

/// A job of five hosts that are cut off from each other, and what its first check found.
fn severed<'a>(network: &'a Network, flags: &[&str]) -> (TempDir, Job<'a>, Vec<Running>, Report) {
    sever(network, &FAR);
    let (folder, topology) = topology(network.len(), &FAR);
    let job = Job::with_master(network, &[&topology], flags);
    let nodes = job.start();
    let report = job.report(0);
    assert!(report.nodes.iter().all(|node| node.taint.is_none()), "{report:#?}");
    let cut = report.cut.as_ref().unwrap_or_else(|| panic!("a cut: {report:#?}"));
    assert_eq!(cut.left_out, FAR, "{report:#?}");
    (folder, job, nodes, report)
}

/// The far side leaves, and the near one trains.
fn near_side_trains(job: &Job<'_>, nodes: &mut Vec<Running>, report: &Report, far: &[usize]) {
    for (number, node) in report.nodes.iter().enumerate() {
        assert_eq!(node.psw.as_deref(), Some("psw-0"), "{report:#?}");
        if far.contains(&number) {
            let found = (&*node.verdict, node.excluded, node.taint.is_none());
            assert_eq!(found, ("unreachable", true, true), "{report:#?}");
        }
    }
    let left = nodes.split_off(far[0]);
    for outcome in job.leave(left, 201) {
        let output = outcome.stderr;
        assert!(output.contains("excluded by the network check (unreachable): "), "{output}");
        assert!(output.contains("\n  Check first: the uplink of this node's switch"), "{output}");
    }
}

#[test]
fn of_two_disconnected_racks_the_larger_trains_and_the_other_is_not_tainted() {
    let Some(network) = Network::of(5) else { return };
    let (_folder, job, mut nodes, report) = severed(&network, &["--nnodes=3:5"]);
    near_side_trains(&job, &mut nodes, &report, &FAR);
    let _world = job.first_world(3);
    for node in &nodes {
        let output = job.await_output(node, "network check passed: 3 nodes");
        assert!(output.contains("; excluded: node number 3 (") && output.contains("; cut: "), "{output}");
    }
    let _end = job.ends_well(nodes);
}

#[test]
fn a_cut_that_leaves_too_few_nodes_fails_the_job_and_is_named() {
    let Some(network) = Network::of(5) else { return };
    let (_folder, job, nodes, report) = severed(&network, &["--nnodes=5"]);
    let words = report.cut.expect("a cut").words;
    assert!(words.contains("asw-0") || words.contains("asw-1"), "switches have the file's names: {words}");
    for outcome in job.fails(nodes, 202).iter().take(5) {
        let output = &outcome.stderr;
        assert!(
            output.contains(&format!("the network check found paths that are down: {words}. ")),
            "{output}"
        );
        assert!(output.contains(". 3 of 5 nodes can train together; the job needs 5"), "{output}");
    }
}

#[test]
fn a_cut_path_fails_the_job_with_the_fail_policy() {
    let Some(network) = Network::of(5) else { return };
    let (_folder, job, nodes, _) = severed(&network, &["--nnodes=3:5", "--on-bad-path=fail"]);
    for outcome in job.fails(nodes, 202).iter().take(5) {
        let output = &outcome.stderr;
        assert!(
            output.contains("3 of 5 nodes can train together, but the job fails (on-bad-path=fail)"),
            "{output}"
        );
    }
}

#[test]
fn a_cut_path_is_a_warning_with_the_proceed_policy() {
    let Some(network) = Network::of(5) else { return };
    let (_folder, job, nodes, report) = severed(&network, &["--nnodes=5", "--on-bad-path=proceed"]);
    assert!(report.nodes.iter().all(|node| !node.excluded), "{report:#?}");
    let _world = job.first_world(5);
    for node in &nodes {
        let _said = job
            .await_output(node, "; warning: the job trains although paths are down (on-bad-path=proceed): ");
    }
    let _said =
        job.await_master_log("warning: 5 nodes train although paths are down (on-bad-path=proceed): ");
    let _end = job.ends_well(nodes);
}

#[test]
fn a_path_that_is_cut_during_the_check_taints_no_healthy_host() {
    let far = [4, 5, 6];
    let Some(network) = Network::of(7) else { return };
    // A host that does not answer keeps the first round open, so that the path is cut when the other tests have passed.
    network.break_host(0, Fault::Mute);
    let (_folder, topology) = topology(network.len(), &far);
    let job = Job::with_master(&network, &[&topology], &["--nnodes=3:7"]);
    let mut nodes = job.start();
    let _tested = job.await_output(&nodes[0], "network check 0, round 0: testing the link");
    // The passing of the other tests is not visible before the end of the round. This chooses when the path is cut;
    // what is asserted holds at any time in the round.
    std::thread::sleep(std::time::Duration::from_millis(1000));
    sever(&network, &far);
    let report = job.report(0);
    assert!(report.nodes[1..].iter().all(|node| node.taint.is_none()), "{report:#?}");
    assert_eq!(report.cut.as_ref().map(|cut| &cut.left_out[..]), Some(&far[..]), "{report:#?}");
    near_side_trains(&job, &mut nodes, &report, &far);
    let broken = nodes.remove(0);
    let _world = job.first_world(3);
    let _said = job.leave([broken], 201);
    let _end = job.ends_well(nodes);
}
