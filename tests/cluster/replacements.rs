//! Others take the place of nodes that are gone.

use support::cluster::{kill_node, places};

use crate::cluster;

#[test]
fn a_replacement_takes_the_place_of_a_killed_node() {
    let mut job = cluster();
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let before = job.await_world(2, 0);
    kill_node(second);
    let _waits = job.await_output(&first, "1 of 2 nodes joined, missing: node rank 1 (");
    job.await_death(&before[0]);
    let replacement = job.node(9).env("NODE_RANK", "1").flags(["--nnodes=2"]).start();
    let world = job.await_world(2, 1);
    assert_eq!(places(&world), [1, 9]);
    for worker in &world {
        assert_eq!(worker.var("TORCHELASTIC_RESTART_COUNT"), "0", "a membership change spends no restart");
    }
    job.ends_well([first, replacement]);
}

#[test]
fn a_replacement_does_not_wait_for_the_grace() {
    let mut job = support::cluster::Cluster::with_master(support::programs!(), &["--reconnect-grace=500"]);
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _before = job.await_world(2, 0);
    kill_node(second);
    let replacement = job.node(9).env("NODE_RANK", "1").flags(["--nnodes=2"]).start();
    let world = job.await_world(2, 1);
    assert_eq!(places(&world), [1, 9]);
    let _said = job.await_master_log("its connection to the job master was broken when a replacement joined");
    job.ends_well([first, replacement]);
}

#[test]
fn the_fourth_loss_of_a_rank_ends_the_job() {
    let mut job = cluster();
    let first = job.ranked(0).flags(["--nnodes=2"]).start();
    for round in 0..4 {
        let second = job.ranked(1).flags(["--nnodes=2"]).start();
        let _world = job.await_world(2, round);
        kill_node(second);
    }
    let sentence = "; not replaced (3 of 3 replacements used)";
    let outcome = first.finish().expect_code(1);
    assert!(outcome.stderr.contains(sentence), "{outcome:#?}");
    let master = job.finish_master().expect_code(1);
    assert!(master.stderr.contains(sentence), "{master:#?}");
}
