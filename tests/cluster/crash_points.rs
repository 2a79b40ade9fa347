//! Real masters are killed at every point that they name, and the job comes out as if nothing had happened.
//!
//! Two nodes; a worker of the second fails once. However often the master dies, that makes two rounds of two
//! workers, one spent restart, and a good end.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
    thread,
};

use support::{
    cluster::{Cluster, kill_node},
    programs,
};

/// Jobs at a time.
const WIDTH: usize = 4;

/// While the job runs: each at the first time it is passed, and at some later ones.
const POINTS: [(&str, &[u32]); 8] = [
    ("before-write", &[1, 3, 5]),
    ("mid-write", &[2, 4, 6]),
    ("after-write", &[1, 4, 6]),
    ("after-sync", &[2, 3, 5]),
    ("before-effects", &[1, 4]),
    ("between-effects", &[1, 2, 4]),
    ("after-effects", &[2, 5]),
    ("after-answer", &[3, 6]),
];

/// At the start of a master that takes the state up, and at the end of a job.
const ENDS: [&str; 8] = [
    "before-snapshot",
    "mid-snapshot",
    "before-snapshot-sync",
    "before-rename",
    "after-rename",
    "after-snapshot",
    "before-remove",
    "after-remove",
];

const STEPS: [&str; 4] = ["dump", "1@0 await fail", "1@0 exit 3", "await go"];

fn is_as_if_nothing_had_happened(crash_at: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", dir.path().display());
    let flags = ["--reconnect-grace=30", &state];
    let mut job = Cluster::with_crashing_master(programs!(), &flags, crash_at);
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&STEPS).start());
    let first = job.await_world(2, 0);
    job.touch("fail");
    let second = job.await_world(2, 1);
    job.go();
    let _outcomes = job.finish(nodes, 0);
    if crash_at != "after-remove" {
        let _master = job.finish_master().expect_code(0);
    }
    assert_eq!(job.ran(), [(0, 0), (0, 1), (1, 0), (1, 1)], "no round is lost or counted twice");
    for (worker, restarts) in first.iter().chain(&second).zip(["0", "0", "0", "1"]) {
        assert_eq!(worker.var("TORCHELASTIC_RESTART_COUNT"), restarts);
    }
    // At the last point the nodes are gone before the master is.
    job.wait("the master's death at the point", || (job.deaths() == 1).then_some(()));
}

/// A node is killed, and may be replaced once: a loss that is counted twice ends the job.
fn counts_a_loss_once(crash_at: &str) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", dir.path().display());
    let flags = ["--reconnect-grace=2", "--restart-count=1", &state];
    let mut job = Cluster::with_crashing_master(programs!(), &flags, crash_at);
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _world = job.await_world(2, 0);
    kill_node(second);
    let replacement = job.ranked(1).flags(["--nnodes=2"]).start();
    let _world = job.await_world(2, 1);
    job.ends_well([first, replacement]);
    assert_eq!(job.ran(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(job.deaths(), 1, "the point was never reached");
}

/// Runs a case at all points, some at a time, and says at which it went wrong.
fn all(case: fn(&str), points: impl IntoIterator<Item = String>) {
    let queue: Mutex<VecDeque<String>> = Mutex::new(points.into_iter().collect());
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WIDTH {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(point) = next else { return };
                    if catch_unwind(AssertUnwindSafe(|| case(&point))).is_err() {
                        wrong.lock().unwrap_or_else(PoisonError::into_inner).push(point);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(wrong.is_empty(), "went wrong at {wrong:?}; see above");
}

#[test]
fn a_job_survives_its_master_at_every_named_point() {
    let points =
        POINTS.iter().flat_map(|(point, times)| times.iter().map(move |time| format!("{point}:{time}")));
    all(is_as_if_nothing_had_happened, points);
}

#[test]
fn a_job_survives_its_master_at_its_start_and_its_end() {
    all(is_as_if_nothing_had_happened, ENDS.map(str::to_owned));
}

#[test]
fn a_loss_is_counted_once_whenever_the_master_dies() {
    // From the second node's joining to the round after the loss.
    all(counts_a_loss_once, (3..=7).map(|time| format!("after-sync:{time}")));
}
