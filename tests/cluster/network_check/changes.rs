//! What was checked changes: a host dies meanwhile, comes in the place of another, or breaks later; the master dies.

use support::cluster::kill_node;

use super::job::{Job, take};
use crate::hosts::{Fault, Network};

/// A master that loses a node as soon as its connection breaks.
const LOST_SOON: &str = "--reconnect-grace=0.5";

#[test]
fn a_host_that_dies_during_a_round_is_lost_and_no_other_is_blamed() {
    let Some(network) = Network::of(6) else { return };
    // A test without an answer keeps the round open, so that the other node dies in the middle of it.
    network.break_host(3, Fault::Mute);
    let job = Job::with_master(&network, &[LOST_SOON], &["--nnodes=4:6"]);
    let mut nodes = job.start();
    let _tested = job.await_output(&nodes[5], "network check 0, round 0: testing the link to ");
    kill_node(take(&mut nodes, 5));
    let report = job.report(0);
    report.blames(&[(3, "fault"), (5, "lost")]);
    assert!(report.nodes[5].evidence[0].words.starts_with("lost: "), "{report:#?}");
    let left = take(&mut nodes, 3);
    let _world = job.first_world(4);
    let _said = job.leave([left], 201);
    let _end = job.ends_well(nodes);
}

#[test]
fn a_host_that_dies_during_its_own_test_explains_the_failure() {
    let Some(network) = Network::of(4) else { return };
    network.break_host(1, Fault::Mute);
    let job = Job::with_master(&network, &[LOST_SOON], &["--nnodes=3:4"]);
    let mut nodes = job.start();
    let _tested = job.await_output(&nodes[1], "network check 0, round 0: testing the link to ");
    kill_node(take(&mut nodes, 1));
    let report = job.report(0);
    report.blames(&[(1, "lost")]);
    let of_it: Vec<_> =
        report.rounds.iter().flat_map(|it| &it.tests).filter(|it| it.nodes.contains(&1)).collect();
    assert!(of_it.len() == 1 && of_it[0].result == "fail", "{report:#?}");
    let _world = job.first_world(3);
    let _end = job.ends_well(nodes);
}

#[test]
fn a_launcher_that_is_restarted_during_a_check_taints_nothing() {
    let Some(network) = Network::of(4) else { return };
    // A test without an answer keeps the round open.
    network.break_host(1, Fault::Mute);
    let job = Job::with_master(&network, &[LOST_SOON], &["--nnodes=3:4", "--taint-flaky=now"]);
    let mut nodes = job.start();
    let _tested = job.await_output(&nodes[2], "network check 0, round 0: testing the link to ");
    kill_node(take(&mut nodes, 2));
    let again = job.line_of(2).start();
    // There is no evidence against the host, and it passes the next check with the others.
    let output = job.await_master_log("lost: its launcher was started again");
    assert!(!output.contains("lost, taint"), "{output}");
    let report = job.report(1);
    report.blames(&[]);
    assert_eq!(report.nodes.len(), 3, "{report:#?}");
    let left = take(&mut nodes, 1);
    let _said = job.leave([left], 201);
    let world = job.first_world(3);
    assert_eq!(support::cluster::places(&world), [1, 3, 4]);
    nodes.push(again);
    let _end = job.ends_well(nodes);
}

#[test]
fn a_job_that_lacks_a_node_checks_the_replacement_with_the_others() {
    let Some(network) = Network::of(5) else { return };
    network.break_host(2, Fault::Mute);
    let job = Job::on(&network, &["--nnodes=4"]);
    let mut nodes: Vec<_> = (0..4).map(|host| job.line_of(host).start()).collect();
    let first = job.report(0);
    first.blames(&[(2, "fault")]);
    let left = take(&mut nodes, 2);
    let _said = job.leave([left], 201);
    for node in &nodes {
        let _waits = job.await_output(node, "3 of 4 nodes joined, missing: node rank 2");
    }
    assert_eq!(job.ran(), [], "three are not four");
    nodes.push(job.line_as(4, 2).start());
    let second = job.report(1);
    second.blames(&[]);
    let hosts: Vec<&str> = second.nodes.iter().map(|node| &*node.ip).collect();
    assert_eq!(hosts, ["10.78.0.1", "10.78.0.2", "10.78.0.5", "10.78.0.4"], "{second:#?}");
    let world = job.first_world(4);
    assert_eq!(support::cluster::places(&world), [1, 2, 5, 4]);
    let _end = job.ends_well(nodes);
}

#[test]
fn a_host_that_breaks_while_workers_run_is_found_before_the_restart() {
    let Some(network) = Network::of(4) else { return };
    let job = Job::on(&network, &["--nnodes=3:4", "--max-restarts=1"]);
    let steps = ["dump", "0@0 await broken", "0@0 exit 3", "await go"];
    let mut nodes: Vec<_> = (0..4).map(|host| job.line_of(host).steps(&steps).start()).collect();
    job.report(0).blames(&[]);
    let _world = job.first_world(4);
    network.break_host(3, Fault::Mute);
    job.touch("broken");
    job.report(1).blames(&[(3, "fault")]);
    let left = take(&mut nodes, 3);
    let _world = job.await_world(3, 1);
    let _said = job.leave([left], 201);
    let _end = job.ends_well(nodes);
}

#[test]
fn a_master_that_dies_during_a_check_starts_it_again() {
    let Some(network) = Network::of(4) else { return };
    network.break_host(0, Fault::Mute);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", folder.path().display());
    let mut job = Job::with_master(&network, &[&state], &["--nnodes=3:4"]);
    let mut nodes = job.start();
    let _tested = job.await_output(&nodes[0], "network check 0, round 0: testing the link to ");
    job.restart_master(&[&state]);
    let report = job.report(1);
    report.blames(&[(0, "fault")]);
    let left = take(&mut nodes, 0);
    let _world = job.first_world(3);
    let _said = job.leave([left], 201);
    let _end = job.ends_well(nodes);
}
