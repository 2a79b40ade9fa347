//! What a master finds in its `--state-dir`.

use std::{fs, path::Path};

use support::{cluster::Cluster, programs};

/// A running job of two nodes, with its master just killed.
fn killed(dir: &Path) -> (Cluster, String, [support::launch::Running; 2]) {
    let state = format!("--state-dir={}", dir.display());
    let mut job = Cluster::with_master(programs!(), &["--reconnect-grace=20", &state]);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _world = job.await_world(2, 0);
    job.kill_master();
    for node in &nodes {
        let _away = job.await_output(node, "workers keep running; reconnecting");
    }
    (job, state, nodes)
}

#[test]
fn a_torn_tail_is_tolerated() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut job, state, nodes) = killed(dir.path());
    let path = dir.path().join("journal");
    let mut journal = fs::read(&path).expect("the master wrote it");
    let whole = journal.len();
    journal.extend_from_within(whole - 20..whole - 10);
    fs::write(&path, &journal[..whole + 5]).expect("our own directory");
    job.restart_master(&["--reconnect-grace=20", &state]);
    let output = job.await_master_log("recovered job");
    assert!(
        output.contains("the journal ends with an incomplete record (5 bytes)")
            && output.contains("or the file was truncated"),
        "{output}"
    );
    for node in &nodes {
        let _back = job.await_output(node, "reconnected to the job master");
    }
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)], "no worker was restarted");
}

#[test]
fn a_damaged_journal_is_refused_and_a_master_without_it_takes_the_job_over() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut job, state, nodes) = killed(dir.path());
    let path = dir.path().join("journal");
    let mut journal = fs::read(&path).expect("the master wrote it");
    let middle = journal.len() / 2;
    journal[middle] ^= 0x10;
    fs::write(&path, &journal).expect("our own directory");
    let refused = job.master_line().flags(["--port=0", &state]).finish();
    assert!(!matches!(refused.code, None | Some(0)), "{refused:#?}");
    assert!(refused.stderr.contains("journal is damaged at byte "), "{refused:#?}");
    assert!(refused.stderr.contains("move the file away"), "{refused:#?}");
    // As it says.
    fs::remove_file(&path).expect("our own directory");
    job.restart_master(&["--reconnect-grace=20", &state]);
    let _said = job.await_master_log("took over round 0 (2 nodes)");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)], "no worker was restarted");
}

#[test]
fn two_masters_do_not_share_a_state_directory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", dir.path().display());
    let mut job = Cluster::with_master(programs!(), &[&state]);
    let refused = job.master_line().flags(["--port=0", &state]).finish();
    assert!(!matches!(refused.code, None | Some(0)), "{refused:#?}");
    assert!(refused.stderr.contains("is in use by another running job master"), "{refused:#?}");
    let node = job.ranked(0).start();
    job.ends_well([node]);
}

#[test]
fn the_next_job_starts_without_state() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = format!("--state-dir={}", dir.path().display());
    for _ in 0..2 {
        let mut job = Cluster::with_master(programs!(), &[&state]);
        let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
        let _world = job.await_world(2, 0);
        job.ends_well(nodes);
    }
}
