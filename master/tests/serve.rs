//! The master over real sockets: two to four nodes' worth of calls, as the wire has them.

mod common;

use std::{sync::Arc, time::Duration};

use common::{LIMIT, Master, Node, Way, assigned, channel, request, run_a_job, terms};
use master_proto::{
    PROTOCOL_VERSION,
    convert::join_request,
    pb::{self, master_client::MasterClient},
};
use rules::{
    NodeRank, Round,
    job::NodeEnd,
    node::JoinRequest,
    push::Push,
    verdict::{JobFailure, JobVerdict},
};
use tokio::{
    net::TcpListener,
    time::{Instant, pause},
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;

#[tokio::test]
async fn two_nodes_rendezvous_restart_and_end_together() {
    let master = Master::start(|_| {});
    let mut nodes = [master.subscribe("a").await, master.subscribe("b").await];
    for node in &mut nodes {
        node.join(2, None).await;
    }
    let assignments = assigned(&mut nodes).await;
    assert_eq!(
        (assignments[0].round, assignments[0].world_size, assignments[0].master_port),
        (Round(0), 4, 29_500)
    );
    assert_eq!(assignments[0].master_addr, "127.0.0.1", "the address that its words come from");
    assert_eq!((assignments[1].node_rank, assignments[1].first_rank), (NodeRank(1), 2));
    // Node b restarts its workers, so a is called back.
    nodes[1].fail(Round(0)).await.unwrap();
    let Push::Regroup { round: Round(0), why, .. } = nodes[0].next().await else {
        panic!("expected a regroup")
    };
    assert!(why.contains("worker 0 exited with 1"), "{why}");
    for node in &mut nodes {
        node.join(2, Some(0)).await;
    }
    assert_eq!(assigned(&mut nodes).await[1].round, Round(1));
    for node in &mut nodes {
        node.succeed(1).await;
    }
    for node in nodes {
        node.leave().await;
    }
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn a_node_that_vanishes_is_replaced() {
    let master = Master::start(|_| {});
    let mut nodes = Vec::new();
    for (rank, id) in (0..).zip(["a", "b", "c", "d"]) {
        let mut node = master.subscribe(id).await;
        let wish = Some(NodeRank(rank));
        node.join_as(JoinRequest { wish, ..request(id, terms(4, 4)) }).await.unwrap();
        nodes.push(node);
    }
    let assignments = assigned(&mut nodes).await;
    assert_eq!(assignments[3].nodes, 4);
    drop(nodes.remove(2));
    for node in &mut nodes {
        let Push::Regroup { why, .. } = node.next().await else { panic!("expected a regroup") };
        assert!(why.contains("node rank 2 (host-c, 127.0.0.1) was lost"), "{why}");
        let after = Some(Round(0));
        let wish = Some(assignments[usize::from(node.id == "b") + 3 * usize::from(node.id == "d")].node_rank);
        node.join_as(JoinRequest { wish, after, ..request(&node.id, terms(4, 4)) }).await.unwrap();
    }
    let mut replacement = master.subscribe("e").await;
    let wish = Some(NodeRank(2));
    replacement.join_as(JoinRequest { wish, ..request("e", terms(4, 4)) }).await.unwrap();
    nodes.insert(2, replacement);
    let assignments = assigned(&mut nodes).await;
    assert_eq!((assignments[2].node_rank, assignments[2].round), (NodeRank(2), Round(1)));
    for node in &mut nodes {
        node.succeed(1).await;
    }
    for node in nodes {
        node.leave().await;
    }
    assert!(master.logs("round 1: 4 nodes"));
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn a_job_whose_only_launcher_is_stopped_fails() {
    let master = Master::start(|config| config.policy.host = Some(common::node_id("a")));
    let mut a = master.subscribe("a").await;
    a.join(1, None).await;
    let round = a.asked_to_host().await;
    a.host(round).await.unwrap();
    a.assignment().await;
    assert!(!master.has_logged("round 0: 1 node"), "a job of one node is no news");
    a.end(NodeEnd::Left { signal: 15 }).await.unwrap();
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Failed(JobFailure::Stopped { signal: 15 }));
}

// Connections close beside, while the test waits for what the master says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_stream_replaces_the_first() {
    let master = Master::start(|_| {});
    let mut first = master.subscribe("a").await;
    first.join(2, None).await;
    let mut second = master.subscribe("a").await;
    while let Some(push) = first.push().await.unwrap() {
        assert!(matches!(push, Push::Pending(_)), "{push:?}");
    }
    drop(first);
    // A node whose stream breaks after that is the clock: were the end of the first stream taken for that of its
    // node, that one would be lost before this one.
    let mut other = master.subscribe("z").await;
    other.join(2, None).await;
    assert!(matches!(second.next().await, Push::Host { round: Round(0), .. }));
    drop(other);
    assert!(master.logs("(host-z, 127.0.0.1) was lost"));
    let mut nodes = [second, master.subscribe("b").await];
    nodes[1].join(2, None).await;
    assigned(&mut nodes).await;
}

#[tokio::test]
async fn heartbeats_and_the_table_are_answered() {
    let master = Master::start(|_| {});
    let mut nodes = [master.subscribe("a").await, master.subscribe("b").await];
    let table = nodes[0].client.show_world(pb::ShowWorldRequest {}).await.unwrap().into_inner();
    assert_eq!((table.round, table.members.len()), (None, 0));
    for node in &mut nodes {
        node.join(2, None).await;
    }
    assigned(&mut nodes).await;
    let table = nodes[0].client.show_world(pb::ShowWorldRequest {}).await.unwrap().into_inner();
    assert_eq!((table.round, table.master_port), (Some(0), 29_500));
    assert_eq!(table.members[1].host_name, "host-b");
    let session = nodes[0].session;
    let mut beat = async |id: &str, session: u64| {
        let beat = pb::BeatRequest { node_id: common::node_id(id).0, taken_round: None, session };
        nodes[0].client.beat(common::signed_by(id, beat)).await.unwrap().into_inner()
    };
    assert_eq!(beat("a", session).await, pb::BeatReply { is_known: true, next_millis: 1000 });
    assert!(!beat("a", session.wrapping_sub(1)).await.is_known, "it is not said beside the present stream");
    assert!(!beat("stranger", session).await.is_known);
}

/// What was sent on a closed connection may arrive when the network is whole again, after the node has resumed.
#[tokio::test]
async fn a_request_of_an_older_stream_is_refused() {
    let master = Master::start(|_| {});
    let old = master.subscribe("a").await.session;
    let mut node = master.subscribe("a").await;
    assert_ne!(node.session, old);
    let late = node.join_in(old, request("a", terms(1, 1))).await.unwrap_err();
    assert_eq!(late.code(), tonic::Code::FailedPrecondition, "{late}");
    node.join(1, None).await;
    let Push::Host { round, .. } = node.next().await else { panic!("it is the only node") };
    assert_eq!(round, Round(0));
}

#[tokio::test]
async fn ranks_follow_the_topology_file_and_a_file_that_hangs_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("topology");
    std::fs::write(&file, "s0 p 10.0.0.1\ns1 p 10.0.0.2\ns0 p 10.0.0.3\n").unwrap();
    let master = Master::start(|config| {
        config.policy.has_topology = true;
        config.topology_file = Some(file.clone());
    });
    let mut nodes = Vec::new();
    for (id, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        let mut node = master.subscribe(id).await;
        node.join_as(JoinRequest { address: address.into(), ..request(id, terms(3, 3)) }).await.unwrap();
        nodes.push(node);
    }
    let assignments: Vec<u32> =
        assigned(&mut nodes).await.iter().map(|assignment| assignment.node_rank.0).collect();
    assert_eq!(assignments, [0, 2, 1]);
    assert!(master.logs("node rank 1: 10.0.0.3 host-c s0"));
    // A fifo without a writer hangs in open().
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    nodes[1].fail(Round(0)).await.unwrap();
    for node in &mut nodes {
        let address = format!("10.0.0.{}", 1 + u32::from(node.id == "b") + 2 * u32::from(node.id == "c"));
        let after = Some(Round(0));
        node.join_as(JoinRequest { address, after, ..request(&node.id, terms(3, 3)) }).await.unwrap();
    }
    loop {
        match nodes[0].next().await {
            Push::Regroup { .. } => {}
            Push::Host { round, .. } => break assert_eq!(round, Round(1)),
            other => panic!("{other:?}"),
        }
    }
    assert!(master.logs("the topology file could not be read within"));
}

#[tokio::test]
async fn another_protocol_version_and_invalid_messages_are_refused_with_a_reason() {
    let master = Master::start(|_| {});
    let mut client = MasterClient::new(channel(master.address, &Way::default()).await.unwrap());
    let old = pb::SubscribeRequest { protocol_version: 99, node_id: "a".into() };
    let status = client.subscribe(old).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("the agent speaks 99"), "{status}");
    let nameless = pb::SubscribeRequest { protocol_version: PROTOCOL_VERSION, node_id: String::new() };
    let status = client.subscribe(nameless).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "node_id is missing"));
    for _ in 0..3 {
        let status = client.join(pb::JoinRequest::default()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "terms is missing"));
    }
    let join = master.count_logged("its join");
    assert_eq!(join, 1, "logged once");
}

#[tokio::test]
async fn a_node_without_a_stream_cannot_join() {
    let master = Master::start(|_| {});
    let mut a = master.subscribe("a").await;
    let join = join_request(request("b", terms(1, 1)));
    let status = a.client.join(common::signed_by("b", join)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("does not know this node's connection"), "{status}");
}

#[tokio::test]
async fn a_node_of_another_job_is_refused_and_its_stream_ends() {
    let master = Master::start(|_| {});
    let mut a = master.subscribe("a").await;
    a.join(2, None).await;
    let mut b = master.subscribe("b").await;
    b.join_as(request("b", terms(3, 3))).await.unwrap();
    let Push::Refused { reason } = b.next().await else { panic!("expected a refusal") };
    assert!(reason.contains("nnodes=2:2") && reason.contains("nnodes=3:3"), "{reason}");
    assert_eq!(b.push().await.unwrap(), None);
}

#[tokio::test]
async fn many_nodes_share_their_commits() {
    const NODES: u32 = 200;
    let dir = tempfile::tempdir().unwrap();
    let master = Master::with_state(dir.path());
    let address = master.address;
    let node = |number: u32| async move {
        let id = format!("n{number}");
        let mut node = Node::subscribe(address, &id).await.unwrap();
        node.join(NODES, None).await;
        if let Push::Host { round, .. } = node.next().await {
            node.host(round).await.unwrap();
            assert_eq!(node.assignment().await.nodes, NODES);
        }
        node.succeed(0).await;
        node.leave().await;
    };
    let nodes: Vec<_> = (0..NODES).map(|number| tokio::spawn(node(number))).collect();
    for node in nodes {
        node.await.unwrap();
    }
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn the_master_exits_soon_after_the_last_acknowledgement() {
    let master = Master::start(|_| {});
    // A connection that stays open delays the end no longer than the flush.
    let _idle = Node::subscribe(master.address, "idle").await.unwrap();
    run_a_job(master.address, &Way::default()).await;
    let known = std::time::Instant::now();
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
    assert!(known.elapsed() < LIMIT / 10);
}

/// It makes one call, and none that a node makes. The clock is that of the test: 90 s take no time.
#[tokio::test]
async fn a_follower_of_the_status_stays_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let lines = Arc::default();
    let _master = tokio::spawn(master::serve(TcpListenerStream::new(listener), common::config(&lines)));
    let mut client = MasterClient::new(channel(address, &Way::default()).await.expect("it connects"));
    let watched = client.watch_status(pb::WatchStatusRequest {}).await;
    let mut watched = watched.expect("it is answered").into_inner();
    pause();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(90) {
        let status = watched.message().await.expect("the connection stays open");
        assert!(status.is_some(), "the job is not over");
    }
}
