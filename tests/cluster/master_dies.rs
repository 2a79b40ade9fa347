//! The master is killed and comes back, or stays away.

use nix::sys::signal::Signal;
use support::{
    cluster::{Cluster, alive, kill_node, pids, places},
    free_port, programs,
};

use crate::lines;

/// Rank 1 of round 0 fails when it is told to.
const RANK_1_FAILS: [&str; 4] = ["dump", "1@0 await fail", "1@0 exit 3", "await go"];

/// A master that remembers, the flags it was started with, and its directory.
fn remembering(more: &[&'static str]) -> (Cluster, Vec<String>, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut flags = vec![format!("--state-dir={}", dir.path().display())];
    flags.extend(more.iter().map(|&flag| flag.to_owned()));
    let job = Cluster::with_master(programs!(), &words(&flags));
    (job, flags, dir)
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(|flag| &**flag).collect()
}

#[test]
fn a_master_with_a_journal_restarts_and_no_worker_notices() {
    let (mut job, flags, _dir) = remembering(&["--reconnect-grace=20"]);
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&RANK_1_FAILS).start());
    let world = job.await_world(2, 0);
    job.kill_master();
    for node in &nodes {
        let output = job.await_output(node, "workers keep running; reconnecting");
        assert!(!output.contains("restart"), "{output}");
    }
    job.restart_master(&words(&flags));
    let _said = job.await_master_log("recovered job");
    for node in &nodes {
        let _said = job.await_output(node, "reconnected to the job master");
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was restarted");
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
    // It still knows the members: a failure restarts both, into the round that follows.
    job.touch("fail");
    let next = job.await_world(2, 1);
    assert_eq!(next[1].var("TORCHELASTIC_RESTART_COUNT"), "1");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn a_terminated_master_restarts_like_a_killed_one() {
    let (mut job, flags, _dir) = remembering(&["--reconnect-grace=20"]);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    job.signal_master(Signal::SIGTERM);
    let told = job.finish_master().expect_code(143);
    assert!(told.stderr.contains("SIGTERM"), "{told:#?}");
    for node in &nodes {
        let _away = job.await_output(node, "workers keep running; reconnecting");
    }
    job.restart_master(&words(&flags));
    for node in &nodes {
        let _back = job.await_output(node, "reconnected to the job master");
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was restarted");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn a_master_that_was_frozen_gives_no_node_up() {
    let mut job = Cluster::with_master(programs!(), &["--heartbeat-timeout=1"]);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    job.signal_master(Signal::SIGSTOP);
    // Longer than any node may be silent, which is six heartbeats of a second each; how much longer does not matter.
    std::thread::sleep(std::time::Duration::from_secs(9));
    job.signal_master(Signal::SIGCONT);
    // Its log would have it at once; a further node is served only after that.
    let spare = job.ranked(2).flags(["--nnodes=2"]).start();
    let _heard = job.await_output(&spare, "this node is a spare");
    assert!(!job.master_log().contains("was lost"), "{}", job.master_log());
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was restarted");
    job.ends_well(nodes.into_iter().chain([spare]));
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn losses_are_kept_by_a_master_with_a_journal() {
    let (mut job, flags, _dir) = remembering(&["--reconnect-grace=1", "--restart-count=1"]);
    let first = job.ranked(0).flags(["--nnodes=2"]).start();
    let second = job.ranked(1).flags(["--nnodes=2"]).start();
    let _world = job.await_world(2, 0);
    kill_node(second);
    let second = job.ranked(1).flags(["--nnodes=2"]).start();
    let _world = job.await_world(2, 1);
    job.kill_master();
    let _away = job.await_output(&first, "workers keep running; reconnecting");
    let _away = job.await_output(&second, "workers keep running; reconnecting");
    job.restart_master(&words(&flags));
    let _back = job.await_output(&first, "reconnected to the job master");
    let _back = job.await_output(&second, "reconnected to the job master");
    kill_node(second);
    let [outcome] = &job.finish([first], 1)[..] else { panic!("one node") };
    assert!(outcome.stderr.contains("; not replaced (1 of 1 replacement used)"), "{outcome:#?}");
    let _master = job.finish_master().expect_code(1);
}

#[test]
fn a_node_that_dies_while_the_master_is_away_is_lost_after_the_grace() {
    let (mut job, flags, _dir) = remembering(&["--reconnect-grace=2"]);
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=1:2"]).start());
    let world = job.await_world(2, 0);
    job.kill_master();
    let _away = job.await_output(&first, "workers keep running; reconnecting");
    kill_node(second);
    assert!(alive(world[0].pid));
    job.restart_master(&words(&flags));
    let alone = job.await_world(1, 1);
    assert_eq!(places(&alone), [1]);
    job.ends_well([first]);
}

#[test]
fn a_master_without_a_journal_asks_the_nodes_and_none_restarts() {
    let flags = ["--reconnect-grace=20"];
    let mut job = Cluster::with_master(programs!(), &flags);
    let line = ["--nnodes=3", "--max-restarts=1"];
    let steps = ["dump", "2@0 exit 0", "1@0 await fail", "1@0 exit 3", "await go"];
    let nodes = [0, 1, 2].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let world = job.await_world(3, 0);
    // One of them has succeeded, and waits for the end of the job.
    job.await_death(&world[2]);
    job.kill_master();
    for node in &nodes[..2] {
        let _away = job.await_output(node, "workers keep running; reconnecting");
    }
    job.restart_master(&flags);
    let output = job.await_master_log("took over round 0 (3 nodes)");
    assert!(
        output.contains("earlier replacements of nodes are unknown and count as 0"),
        "what it cannot know is logged: {output}"
    );
    assert!(world[..2].iter().all(|worker| alive(worker.pid)), "no worker was restarted");
    job.touch("fail");
    let next = job.await_world(3, 1);
    assert_eq!(next[1].var("TORCHELASTIC_RESTART_COUNT"), "1");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
}

#[test]
fn a_master_that_stays_away_ends_only_what_needs_it() {
    let mut job = Cluster::with_master(programs!(), &[]);
    let line = ["--nnodes=3", "--max-restarts=1", "--rdzv-conf=join_timeout=5"];
    let steps = ["dump", "1@0 await fail", "1@0 exit 3", "0@0 await done", "0@0 exit 0", "await go"];
    let [done, fails, goes_on] = [0, 1, 2].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let world = job.await_world(3, 0);
    job.kill_master();
    let _away = job.await_output(&goes_on, "workers keep running; reconnecting");
    job.touch("fail");
    let _needs_it = job.finish([fails], 75);
    assert!(alive(world[0].pid) && alive(world[2].pid), "those that need no master go on");
    job.touch("done");
    let _was_done = job.finish([done], 0);
    assert!(alive(world[2].pid), "those that need no master go on");
    goes_on.signal(Signal::SIGTERM);
    let _told = job.finish([goes_on], 1);
}

#[test]
fn the_launcher_with_the_master_restarts_with_its_state() {
    let mut job = lines();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", dir.path().display());
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "--reconnect-grace=1", &state];
    let host = job.node(1).flags(line).start();
    let _serves = job.await_output(&host, "this launcher serves the job master");
    let other = job.node(2).flags(line).start();
    let before = job.await_world(2, 0);
    kill_node(host);
    let _away = job.await_output(&other, "workers keep running; reconnecting");
    assert!(alive(before[1].pid), "the other node's workers need no master");
    let again = job.node(1).flags(line).start();
    let after = job.await_world(2, 1);
    assert_eq!(places(&after), [2, 1], "the one that stayed comes first");
    assert_ne!(pids(&before), pids(&after));
    job.ends_well([again, other]);
}

#[test]
fn without_state_the_job_ends_with_the_launcher_that_served_the_master() {
    let job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let conf = "--rdzv-conf=join_timeout=5";
    let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "--max-restarts=1", conf];
    let host = job.node(1).flags(line).start();
    let _serves = job.await_output(&host, "this launcher serves the job master");
    let other = job.node(2).flags(line).steps(&RANK_1_FAILS).start();
    let before = job.await_world(2, 0);
    kill_node(host);
    let _away = job.await_output(&other, "workers keep running; reconnecting");
    assert!(alive(before[1].pid), "its workers need no master");
    job.touch("fail");
    let outcomes = job.finish([other], 1);
    assert!(outcomes[0].stderr.contains("the job master was unreachable for 5 s"), "{outcomes:#?}");
}
