//! Nodes are killed, fall silent, leave.

use nix::sys::signal::Signal;
use support::{
    cluster::{Cluster, alive, kill_node, places},
    free_port, programs,
};

use crate::{cluster, lines};

#[test]
fn a_killed_node_is_lost_and_enough_others_continue() {
    let mut job = cluster();
    let [first, second, third] = [0, 1, 2].map(|rank| job.ranked(rank).flags(["--nnodes=2:3"]).start());
    let world = job.await_world(3, 0);
    kill_node(second);
    let smaller = job.await_world(2, 1);
    assert_eq!(places(&smaller), [1, 3], "ranks are dense");
    assert!(world.iter().all(|worker| !alive(worker.pid)), "no worker of the old round is left");
    let output = job.await_master_log("127.0.0.2) was lost: its connection to the job master broke");
    assert!(
        output.contains("was not restored within 0.5 s (1 of 3 replacements used for this node rank)"),
        "{output}"
    );
    let output = job.await_output(&first, "was lost: its connection to the job master broke");
    assert!(output.contains("; all nodes restart their workers"), "{output}");
    job.ends_well([first, third]);
}

#[test]
fn secondary_failures_after_a_lost_node_spend_no_restart() {
    let job = cluster();
    let trainer = support::trainer("ring_sgd.py");
    let node = |rank| {
        let line = job.ranked(rank).script(&trainer).flags(["--nnodes=2:3", "--max-restarts=0"]);
        let checkpoint = format!("--checkpoint={}", job.dir().join("ring.json").display());
        line.args(["--steps=300", &checkpoint]).start()
    };
    let [first, second, third] = [0, 1, 2].map(node);
    job.wait("training", || {
        let output = std::fs::read_to_string(first.dir().join("stdout")).ok()?;
        output.contains("step   20").then_some(())
    });
    kill_node(third);
    let outcomes = job.finish([first, second], 0);
    assert!(outcomes[0].stdout.contains("all 2 ranks hold the same weights"), "{outcomes:#?}");
    let excused = outcomes
        .iter()
        .filter(|it| it.stderr.contains("the failure on this node followed from it and uses no restart"))
        .count();
    let failed = outcomes.iter().filter(|it| it.stderr.contains("; not restarting (max restarts: ")).count();
    assert!(
        excused > 0 && excused == failed,
        "a node that was charged was told that it is not: {outcomes:#?}"
    );
}

#[test]
fn workers_of_a_lost_host_do_not_reach_the_next_round() {
    let mut job = cluster();
    let [first, second, third] = [0, 1, 2].map(|rank| job.ranked(rank).flags(["--nnodes=2:3"]).start());
    let before = job.await_world(3, 0);
    kill_node(first);
    let after = job.await_world(2, 1);
    let store = |world: &[support::seen::Dump]| {
        (world[0].var("MASTER_ADDR").to_owned(), world[0].var("MASTER_PORT").to_owned())
    };
    assert_eq!(store(&before).0, "127.0.0.1");
    assert_eq!(store(&after).0, "127.0.0.2", "the next one serves the store");
    job.ends_well([second, third]);
}

#[test]
fn a_silent_node_is_lost_and_rejoins_as_a_new_node() {
    let flags = ["--reconnect-grace=0.5", "--heartbeat-timeout=1"];
    let mut job = Cluster::with_master(programs!(), &flags);
    let line = ["--nnodes=1:2", "--rdzv-conf=lastcall_timeout=0"];
    let first = job.ranked(0).flags(line).start();
    let _alone = job.await_world(1, 0);
    let second = job.ranked(1).flags(line).start();
    let both = job.await_world(2, 1);
    second.signal(Signal::SIGSTOP);
    let _alone = job.await_world(1, 2);
    let _said = job.await_master_log("127.0.0.2) was lost: no heartbeat for 6 s");
    assert!(!alive(both[1].pid), "its guard has ended its workers, for its launcher could not");
    second.signal(Signal::SIGCONT);
    let _both = job.await_world(2, 3);
    let outcomes = job.ends_well([first, second]);
    assert!(
        outcomes[1].stderr.contains("its workers are killed before the job continues without it"),
        "{outcomes:#?}"
    );
}

#[test]
fn a_terminated_node_leaves_at_once() {
    // Neither grace nor silence can end within the test.
    let flags = ["--reconnect-grace=500", "--heartbeat-timeout=500", "--restart-count=0"];
    let mut job = Cluster::with_master(programs!(), &flags);
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=1:2"]).start());
    let _both = job.await_world(2, 0);
    second.signal(Signal::SIGTERM);
    let _alone = job.await_world(1, 1);
    let outcome = second.finish().expect_code(1);
    assert!(outcome.stderr.contains("stopped by SIGTERM"), "{outcome:#?}");
    let output = job.await_master_log("127.0.0.2) left: its launcher received SIGTERM");
    assert!(output.contains("(0 of 0 replacements used for this node rank)"), "nothing is charged: {output}");
    job.ends_well([first]);
}

#[test]
fn a_job_without_nodes_waits_for_others_and_fails_without_them() {
    let mut job = cluster();
    let line = ["--nnodes=2", "--rdzv-conf=join_timeout=5"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let _both = job.await_world(2, 0);
    for node in &nodes {
        node.signal(Signal::SIGTERM);
    }
    let _outcomes = job.finish(nodes, 1);
    let master = job.finish_master().expect_code(1);
    assert!(master.stderr.contains("the job failed: 0 of 2 nodes joined within 5 s"), "{master:#?}");
    assert!(master.stderr.contains("received SIGTERM"), "{master:#?}");
}

#[test]
fn a_terminated_launcher_with_the_master_notifies_the_others() {
    let job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=1:2", "--rdzv-backend=c10d", &endpoint, "--rdzv-conf=lastcall_timeout=0"];
    let host = job.node(1).flags(line).start();
    let _alone = job.await_world(1, 0);
    let other = job.node(2).flags(line).start();
    let _both = job.await_world(2, 1);
    host.signal(Signal::SIGTERM);
    let outcomes = job.finish([other, host], 1);
    let output = &outcomes[0].stderr;
    assert!(output.contains("127.0.0.1), whose launcher served the job master, left: "), "{output}");
    assert!(output.contains("received SIGTERM"), "{output}");
}
