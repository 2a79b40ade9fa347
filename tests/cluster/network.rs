//! Links go down: every node in a network namespace of its own, all joined by a bridge in one more.

use support::{cluster::Cluster, programs};

use crate::hosts::Network;

#[test]
fn a_node_behind_a_dead_link_is_lost_and_rejoins_as_a_new_node() {
    let Some(network) = Network::of(3) else { return };
    let mut job = Cluster::of_lines(programs!());
    let [program, flag] = network.entering_hub();
    let master = job.master_line_in(&[&program, &flag]).flags(["--port=50001", "--heartbeat-timeout=1"]);
    job.start_master(master);
    let line = ["--nnodes=2:3", "--rdzv-conf=lastcall_timeout=0"];
    let start = |number: usize| {
        let [program, flag] = network.entering(number);
        let node = job.line_in(&[&program, &flag], &format!("10.77.0.{}", number + 1));
        let node = node.env("DLROVER_MASTER_ADDR", "10.77.0.254:50001").env("NODE_RANK", number.to_string());
        // It reports its own address; the master sees the same.
        node.flags(line).env("PLACE", (number + 1).to_string()).start()
    };
    let nodes = [start(0), start(1)];
    let both = job.await_world(2, 0);
    assert!(both.iter().all(|worker| worker.var("MASTER_ADDR") == "10.77.0.1"), "{both:#?}");
    let third = start(2);
    let all = job.await_world(3, 1);
    network.set_control(2, "down");
    let _two = job.await_world(2, 2);
    let _said = job.await_master_log("10.77.0.3) was lost: no heartbeat for 6 s");
    assert!(!support::cluster::alive(all[2].pid), "it has ended its workers itself");
    network.set_control(2, "up");
    let _three = job.await_world(3, 3);
    job.ends_well(nodes.into_iter().chain([third]));
}
