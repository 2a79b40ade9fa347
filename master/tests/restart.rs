//! A master that is killed and started again, with and without a memory.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{fs, sync::Arc};

use common::{Master, Node, assigned, request, terms};
use master::{JournalError, MasterError};
use rules::{
    Round, job::WorkersState, node::JoinRequest, push::Push, verdict::JobVerdict, world::Assignment,
};
use tokio_stream::wrappers::TcpListenerStream;

async fn two(master: &Master) -> [Node; 2] {
    let mut nodes = [master.subscribe("a").await, master.subscribe("b").await];
    for node in &mut nodes {
        node.join(2, None).await;
    }
    nodes
}

async fn come_back(master: &Master, assignments: &[Assignment], workers_state: WorkersState) -> [Node; 2] {
    let mut nodes = [master.subscribe("a").await, master.subscribe("b").await];
    for (node, assignment) in nodes.iter_mut().zip(assignments) {
        node.resume(2, assignment, workers_state).await.unwrap();
    }
    nodes
}

async fn succeed(nodes: [Node; 2], round: u32) {
    let mut nodes = nodes;
    for node in &mut nodes {
        node.succeed(round).await;
    }
    for node in nodes {
        node.leave().await;
    }
}

#[tokio::test]
async fn a_running_round_continues_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::with_state(dir.path());
    let mut nodes = two(&master).await;
    let assignments = assigned(&mut nodes).await;
    master.kill();
    let master = Master::with_state(dir.path());
    let nodes = come_back(&master, &assignments, WorkersState::Running).await;
    assert!(master.logs("recovered job job (round 0, 2 nodes); master restart 1"));
    // That no node is lost after the grace is tested in virtual time: rules/src/job_master/tests.rs, the simulator.
    succeed(nodes, 0).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
    assert!(!dir.path().join("journal").exists(), "the next job may use the directory");
    let master = Master::with_state(dir.path());
    common::run_a_job(master.address, &common::Way::default()).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn the_state_stays_until_the_verdict_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let prepared = || {
        let mut config = common::config(&Arc::default());
        config.state_dir = Some(dir.path().to_owned());
        master::prepare(config).unwrap()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, way) = (listener.local_addr().unwrap(), common::Way::default());
    let (over, ()) = tokio::join!(
        prepared().until_over(TcpListenerStream::new(listener)),
        common::run_a_job(address, &way)
    );
    let over = over.unwrap();
    assert_eq!(over.verdict(), &JobVerdict::Succeeded);
    // It is told to end before it has ended by itself.
    drop(over);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let over = prepared().until_over(TcpListenerStream::new(listener)).await.unwrap();
    assert!(dir.path().join("journal").exists());
    assert_eq!(over.finish().await, JobVerdict::Succeeded);
    assert!(!dir.path().join("journal").exists());
}

#[tokio::test]
async fn a_member_that_does_not_come_back_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::with_state(dir.path());
    let mut nodes = two(&master).await;
    let assignments = assigned(&mut nodes).await;
    master.kill();
    let master = Master::with_state(dir.path());
    let mut a = master.subscribe("a").await;
    a.resume(2, &assignments[0], WorkersState::Running).await.unwrap();
    let Push::Regroup { why, .. } = a.next().await else { panic!("expected a regroup") };
    let grace = rules::liveness::return_grace(common::GRACE, 2).as_secs_f64();
    assert!(why.contains(&format!("was not restored within {grace} s")), "{why}");
}

#[tokio::test]
async fn nodes_that_joined_before_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::with_state(dir.path());
    let mut a = master.subscribe("a").await;
    a.join(2, None).await;
    master.kill();
    let master = Master::with_state(dir.path());
    assert!(master.logs("recovered job job (between rounds, 1 node); master restart 1"));
    // It says it again, because it has heard no answer; then the other one comes.
    let mut nodes = two(&master).await;
    assigned(&mut nodes).await;
    succeed(nodes, 0).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn a_node_that_missed_the_end_receives_it_from_the_restarted_master() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::with_state(dir.path());
    let mut nodes = two(&master).await;
    let assignments = assigned(&mut nodes).await;
    let [mut a, mut b] = nodes;
    a.succeed(0).await;
    b.succeed(0).await;
    assert_eq!(a.next().await, Push::JobEnd(JobVerdict::Succeeded));
    a.acknowledge().await.unwrap();
    master.kill();
    let master = Master::with_state(dir.path());
    assert!(master.logs("which is over; master restart 1"));
    let mut b = master.subscribe("b").await;
    b.resume(2, &assignments[1], WorkersState::Succeeded).await.unwrap();
    b.leave().await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn without_a_journal_the_nodes_restore_the_job() {
    let master = Master::start(|_| {});
    let mut nodes = two(&master).await;
    let assignments = assigned(&mut nodes).await;
    master.kill();
    let master = Master::start(|_| {});
    let nodes = come_back(&master, &assignments, WorkersState::Running).await;
    succeed(nodes, 0).await;
    assert!(master.logs("took over round 0 (2 nodes)"));
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn a_folder_is_locked_by_one_master() {
    let dir = tempfile::tempdir().unwrap();
    let first = Master::with_state(dir.path());
    // The first to lock it wins; a master that serves a node holds the lock.
    let _node = first.subscribe("a").await;
    let refused = Master::with_state(dir.path()).ended().await.unwrap_err();
    assert!(matches!(&refused, MasterError::Journal(JournalError::InUse { .. })), "{refused}");
}

#[tokio::test]
async fn a_torn_end_is_logged_and_a_damaged_middle_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let master = Master::with_state(dir.path());
    let mut nodes = two(&master).await;
    let assignments = assigned(&mut nodes).await;
    master.kill();
    let whole = fs::read(&journal).unwrap();
    // An incomplete commit: no call was answered for it.
    fs::write(&journal, [&whole[..], &[7, 0, 0]].concat()).unwrap();
    let master = Master::with_state(dir.path());
    let _nodes = come_back(&master, &assignments, WorkersState::Running).await;
    // A tail that was truncated after it was durable looks the same.
    assert!(
        master.logs("the journal ends with an incomplete record (3 bytes): either the master was killed")
    );
    assert!(master.logs("or the file was truncated or changed later"));
    master.kill();
    let mut damaged = whole;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    fs::write(&journal, damaged).unwrap();
    let refused = Master::with_state(dir.path()).ended().await.unwrap_err().to_string();
    assert!(
        refused.contains("journal is damaged at byte ") && refused.contains("move the file away"),
        "{refused}"
    );
}

#[tokio::test]
async fn losses_are_counted_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        Master::start(|config| {
            config.state_dir = Some(dir.path().to_owned());
            config.policy.restart_count = 1;
        })
    };
    let mut master = start();
    let mut nodes = two(&master).await;
    assigned(&mut nodes).await;
    let [mut a, b] = nodes;
    drop(b);
    assert!(matches!(a.next().await, Push::Regroup { .. }));
    master.kill();
    master = start();
    let after = Some(Round(0));
    let again = async |master: &Master| {
        let mut nodes = [master.subscribe("a").await, master.subscribe("c").await];
        let join = JoinRequest { after, ..request("a", terms(2, 2)) };
        nodes[0].join_as(join).await.unwrap();
        nodes[1].join(2, None).await;
        nodes
    };
    let mut nodes = again(&master).await;
    assert_eq!(assigned(&mut nodes).await[0].round, Round(1));
    let [mut a, c] = nodes;
    drop(c);
    let Push::JobEnd(JobVerdict::Failed(failure)) = a.next().await else { panic!("expected the end") };
    assert!(failure.to_string().contains("not replaced (1 of 1 replacement used)"), "{failure}");
    a.acknowledge().await.unwrap();
    assert!(matches!(master.ended().await.unwrap(), JobVerdict::Failed(_)));
}
