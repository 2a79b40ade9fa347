//! Which nodes make a round, and with which ranks.

use support::cluster::places;

use crate::cluster;

/// A last call that never ends.
const LONG_CALL: &str = "--rdzv-conf=lastcall_timeout=500";

#[test]
fn the_maximum_of_nodes_starts_at_once() {
    let mut job = cluster();
    let line = ["--nnodes=1:2", LONG_CALL];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let _world = job.await_world(2, 0);
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn the_minimum_of_nodes_starts_after_the_last_call() {
    let mut job = cluster();
    let line = ["--nnodes=2:4", "--rdzv-conf=lastcall_timeout=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let _world = job.await_world(2, 0);
    job.ends_well(nodes);
}

#[test]
fn without_a_last_call_the_minimum_of_nodes_starts_at_once() {
    let mut job = cluster();
    let line = ["--nnodes=2:4", "--rdzv-conf=last_call_timeout=0"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let _world = job.await_world(2, 0);
    job.ends_well(nodes);
}

#[test]
fn a_world_is_a_multiple_of_the_node_unit() {
    let mut job = cluster();
    let line = ["--nnodes=2:5", "--node-unit=2", "--rdzv-conf=lastcall_timeout=2"];
    let mut nodes: Vec<_> = [0, 1, 2].map(|rank| job.ranked(rank).flags(line).start()).into();
    let _two = job.await_world(2, 0);
    let _spare = job.await_output(
        &nodes[2],
        "the job runs on 2 nodes; this node joins when a node rank is free, or when 1 more node joins",
    );
    nodes.push(job.ranked(3).flags(line).start());
    let _four = job.await_world(4, 1);
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn node_ranks_order_the_ranks() {
    let mut job = cluster();
    let nodes = [(1, "2"), (2, "1"), (3, "0")]
        .map(|(place, rank)| job.node(place).env("NODE_RANK", rank).flags(["--nnodes=3"]).start());
    let world = job.await_world(3, 0);
    assert_eq!(places(&world), [3, 2, 1]);
    assert!(world.iter().all(|worker| worker.var("MASTER_ADDR") == "127.0.0.3"), "{world:#?}");
    job.ends_well(nodes);
}

#[test]
fn nodes_without_a_rank_follow_by_address() {
    let mut job = cluster();
    let ranked = job.node(20).flags(["--nnodes=4", "--node-rank=7"]).start();
    let nodes = [10, 9, 2].map(|place| job.node(place).flags(["--nnodes=4"]).start());
    let world = job.await_world(4, 0);
    assert_eq!(places(&world), [20, 2, 9, 10], "the wish first, then by number; ranks are dense");
    job.ends_well(nodes.into_iter().chain([ranked]));
}

#[test]
fn nodes_may_have_different_numbers_of_workers() {
    let mut job = cluster();
    let steps = ["dump", "0 set word hello", "2 get word", "await go"];
    let nodes = [(0, "2"), (1, "1")].map(|(rank, workers)| {
        let node = job.ranked(rank).steps(&steps);
        node.flags(["--nnodes=2", "--nproc-per-node", workers]).start()
    });
    let world = job.await_world(3, 0);
    let seen = |name: &str| world.iter().map(|worker| worker.var(name)).collect::<Vec<_>>();
    assert_eq!(seen("LOCAL_RANK"), ["0", "1", "0"]);
    assert_eq!(seen("LOCAL_WORLD_SIZE"), ["2", "2", "1"]);
    assert_eq!(seen("GROUP_RANK"), ["0", "0", "1"]);
    assert_eq!(seen("GROUP_WORLD_SIZE"), ["2", "2", "2"]);
    assert_eq!(seen("DLROVER_ROUND"), ["0", "0", "0"]);
    assert_eq!(seen("MASTER_ADDR"), ["127.0.0.1"; 3]);
    assert_eq!(job.await_file("2.0.get.word"), "hello", "ranks of both nodes meet at one store");
    job.ends_well(nodes);
}
