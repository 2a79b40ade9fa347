//! The master's host is cut off and the master dies meanwhile: its nodes try to connect where no answer comes, and are
//! found again however long that took.

use std::{thread::sleep, time::Duration};

use support::{
    cluster::{Cluster, alive},
    launch::Launch,
    programs,
};

use crate::hosts::Network;

/// The nodes; the master is on the host after them.
const NODES: usize = 3;

/// A host's address on the network between nodes and master.
fn control(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// The job outlives masters that die while their host is cut off for these times, one after the other.
fn outlives(cuts: &[u64]) {
    let Some(network) = Network::of(NODES + 1) else { return };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", folder.path().display());
    let mut job = Cluster::of_lines(programs!());
    let master = |job: &Cluster| -> Launch {
        let [program, flag] = network.entering(NODES);
        job.master_line_in(&[&program, &flag]).flags(["--port=50001", &state])
    };
    job.start_master(master(&job));
    let nodes: Vec<_> = (0..NODES)
        .map(|host| {
            let [program, flag] = network.entering(host);
            let line = job.line_in(&[&program, &flag], &control(host)).env("PLACE", (host + 1).to_string());
            let line = line.env("DLROVER_MASTER_ADDR", format!("{}:50001", control(NODES)));
            line.env("NODE_RANK", host.to_string()).flags([format!("--nnodes={NODES}")]).start()
        })
        .collect();
    let world = job.await_world(3, 0);
    for (past, seconds) in cuts.iter().enumerate() {
        network.set_control(NODES, "down");
        job.kill_master();
        // The duration of the cut is what is tested.
        sleep(Duration::from_secs(*seconds));
        network.set_control(NODES, "up");
        job.start_master(master(&job));
        let _said = job.await_master_log("recovered job");
        for node in &nodes {
            // After a short cut a node may have noticed only a broken connection.
            let back = || node.stderr().matches("reconnected to the job master").count() > past;
            job.wait("a node that is back", || back().then_some(()));
        }
        assert!(world.iter().all(|worker| alive(worker.pid)), "{seconds} s: {}", job.all_output());
    }
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1), (0, 2)], "no worker was restarted");
}

#[test]
fn nodes_in_back_off_come_back_to_a_master_after_1_3_5_and_8_seconds() {
    outlives(&[1, 3, 5, 8]);
}

#[test]
fn nodes_in_back_off_come_back_to_a_master_after_12_seconds() {
    outlives(&[12]);
}

#[test]
fn nodes_in_back_off_come_back_to_a_master_after_18_seconds() {
    outlives(&[18]);
}

#[test]
fn nodes_in_back_off_come_back_to_a_master_after_25_seconds() {
    outlives(&[25]);
}
