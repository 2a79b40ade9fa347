//! Nodes beyond what the job takes, and nodes that come to a job that runs.

use support::cluster::{kill_node, places};

use crate::cluster;

#[test]
fn a_spare_succeeds_with_the_job_without_running() {
    let mut job = cluster();
    let mut nodes: Vec<_> = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start()).into();
    let _world = job.await_world(2, 0);
    let spare = job.ranked(2).flags(["--nnodes=2"]).start();
    let _spare = job.await_output(&spare, "the job runs on 2 nodes; this node is a spare");
    nodes.push(spare);
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn a_spare_is_promoted_when_a_place_is_free() {
    let mut job = cluster();
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _world = job.await_world(2, 0);
    let spare = job.ranked(2).flags(["--nnodes=2"]).start();
    let _spare = job.await_output(&spare, "this node is a spare");
    kill_node(second);
    let world = job.await_world(2, 1);
    assert_eq!(places(&world), [1, 3]);
    job.ends_well([first, spare]);
}

#[test]
fn many_new_nodes_cause_one_restart() {
    let mut job = cluster();
    let line = ["--nnodes=1:4", "--rdzv-conf=lastcall_timeout=3"];
    let first = job.ranked(0).flags(line).start();
    let _alone = job.await_world(1, 0);
    let wave = [1, 2, 3].map(|rank| job.ranked(rank).flags(line).start());
    let world = job.await_world(4, 1);
    assert!(world.iter().all(|worker| worker.var("TORCHELASTIC_RESTART_COUNT") == "0"), "{world:#?}");
    let output = job.await_output(&first, "3 more nodes joined; all nodes restart their workers");
    assert_eq!(output.matches("all nodes restart").count(), 1, "{output}");
    job.ends_well([first].into_iter().chain(wave));
    assert_eq!(job.ran(), [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn a_new_node_below_the_maximum_joins_after_the_last_call() {
    let mut job = cluster();
    let line = ["--nnodes=1:4", "--rdzv-conf=lastcall_timeout=0"];
    let first = job.ranked(0).flags(line).start();
    let _alone = job.await_world(1, 0);
    let second = job.ranked(1).flags(line).start();
    let _both = job.await_world(2, 1);
    job.ends_well([first, second]);
}

#[test]
fn a_new_node_takes_no_rank_of_a_member() {
    // At a lower address, and at the same one.
    for newcomer in [2, 5] {
        let mut job = cluster();
        let line = ["--nnodes=2:3", "--rdzv-conf=lastcall_timeout=0"];
        let members = [5, 9].map(|place| job.node(place).flags(line).start());
        let first = job.await_world(2, 0);
        let third = job.node(newcomer).env("PLACE", "77").flags(line).start();
        let second = job.await_world(3, 1);
        assert_eq!((places(&first), places(&second)), (vec![5, 9], vec![5, 9, 77]));
        assert!(
            second.iter().all(|worker| !worker.env.contains_key("DLROVER_RESTORE")),
            "no node was moved: {second:#?}"
        );
        job.ends_well(members.into_iter().chain([third]));
    }
}

#[test]
fn a_member_with_a_new_rank_restores_from_disk() {
    let mut job = cluster();
    let [first, second, third] = [0, 1, 2].map(|rank| job.ranked(rank).flags(["--nnodes=2:3"]).start());
    let _world = job.await_world(3, 0);
    kill_node(second);
    let world = job.await_world(2, 1);
    assert_eq!(places(&world), [1, 3]);
    assert!(!world[0].env.contains_key("DLROVER_RESTORE"), "{world:#?}");
    assert_eq!(world[1].var("DLROVER_RESTORE"), "disk");
    job.ends_well([first, third]);
}
