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

use support::{cluster::Cluster, programs};

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
    let dir = tempfile::tempdir().expect("a temporary folder");
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
    assert_eq!(job.deaths(), 1, "the point was never reached");
}

/// Runs all, some at a time, and says which went wrong.
fn all(points: impl IntoIterator<Item = String>) {
    let queue: Mutex<VecDeque<String>> = Mutex::new(points.into_iter().collect());
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WIDTH {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(point) = next else { return };
                    if catch_unwind(AssertUnwindSafe(|| is_as_if_nothing_had_happened(&point))).is_err() {
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
    all(POINTS.iter().flat_map(|(point, times)| times.iter().map(move |time| format!("{point}:{time}"))));
}

#[test]
fn a_job_survives_its_master_at_its_start_and_its_end() {
    all(ENDS.map(str::to_owned));
}
