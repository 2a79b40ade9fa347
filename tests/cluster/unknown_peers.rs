//! What an unknown peer on the network, without a token, can do to a job: nothing that ends it, fakes its
//! end or holds it up. Each case is an attack that was once run with success.

use master_proto::pb::{self, end_report::End};
use support::{
    cluster::{Cluster, alive},
    free_port, programs,
    unknown_peer::UnknownPeer,
};
use tonic::Code;

use crate::{cluster, lines};

#[test]
fn an_unknown_peer_cannot_make_a_job_succeed() {
    let mut job = cluster();
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    let mut peer = UnknownPeer::at(job.address());
    let shown = peer.world();
    assert_eq!(shown.members.len(), 2);
    for member in &shown.members {
        let end = End::Succeeded(pb::NodeSucceeded { round: 0 });
        let refused = peer.say_end(&member.node_id, end).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let _said = job.await_master_log("127.0.0.1: its end report was rejected: ");
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn an_unknown_peer_cannot_report_a_failure_of_a_node() {
    let mut job = cluster();
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let world = job.await_world(2, 0);
    let mut peer = UnknownPeer::at(job.address());
    for member in peer.world().members {
        for gives_up in [false, true] {
            let refused = peer.say_failure(&member.node_id, 0, gives_up).expect_err("it is not that node");
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        }
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn an_unknown_peer_cannot_remove_the_node_that_serves_the_master() {
    let mut job = lines();
    let address = format!("127.0.0.1:{}", free_port());
    let endpoint = format!("--rdzv-endpoint={address}");
    let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint];
    let nodes = [1, 2].map(|place| job.node(place).flags(line).start());
    let world = job.await_world(2, 0);
    let mut peer = UnknownPeer::at(&address);
    for member in peer.world().members {
        let left = End::Left(pb::NodeLeft { signal: 15 });
        let refused = peer.say_end(&member.node_id, left).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn a_peer_with_the_token_cannot_act_for_another_node() {
    let mut job = Cluster::of_lines(programs!());
    let token = "s3cret";
    let master = job.master_line().flags(["--port=0", "--reconnect-grace=0.5"]);
    job.start_master(master.env("DLROVER_JOB_TOKEN", token));
    let nodes =
        [0, 1].map(|rank| job.ranked(rank).env("DLROVER_JOB_TOKEN", token).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    let mut peer = UnknownPeer::with_token(job.address(), Some(token));
    for member in peer.world().members {
        let refused = peer.subscribe(&member.node_id).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        let join = pb::JoinRequest { node_id: member.node_id, ..peer.join_request("none", 2, 2) };
        let refused = peer.join(join).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    // No stream was taken over: none of the nodes had to come back.
    assert!(nodes.iter().all(|node| !node.stderr().contains("the workers go on")));
    assert!(world.iter().all(|worker| alive(worker.pid)), "no worker was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn an_unknown_peer_that_joins_first_with_another_job_excludes_no_node() {
    let mut job = cluster();
    let mut peer = UnknownPeer::at(job.address());
    let mut session = peer.subscribe(&peer.own_id()).expect("any peer may");
    peer.join(peer.join_request("theirs", 2, 2)).expect("any peer may");
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _world = job.await_world(2, 0);
    let reason = peer.receives(&mut session, |push| match push {
        pb::stream_message::Payload::Refused(pb::Refused { reason }) => Some(reason),
        _ => None,
    });
    assert!(reason.contains("the job has rdzv-id=none, the joining node has rdzv-id=theirs"), "{reason}");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn unknown_peers_that_join_and_disconnect_use_up_no_replacements() {
    let mut job = cluster();
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2:3"]).start());
    let _world = job.await_world(2, 0);
    // One more than --restart-count has, and one that would be too many.
    for number in 0_u32..5 {
        let mut peer = UnknownPeer::at(job.address());
        peer.become_another(number);
        let mut session = peer.subscribe(&peer.own_id()).expect("any peer may");
        peer.join(peer.join_request("none", 2, 3)).expect("any peer may");
        peer.receives(&mut session, |push| {
            matches!(push, pb::stream_message::Payload::Assigned(_)).then_some(())
        });
        drop((session, peer));
        let gone = || job.master_log().matches("(stranger, 127.0.0.200) was lost: ").count();
        job.wait("the loss of an unknown peer", || (gone() > number as usize).then_some(()));
    }
    assert!(
        job.master_log().contains("(0 of 3 replacements used for this node rank)"),
        "{}",
        job.master_log()
    );
    job.ends_well(nodes);
}

/// Idle connections from 127.0.0.99, each opened again as soon as it is closed, for as long as this lives.
struct Flood {
    _runtime: tokio::runtime::Runtime,
}

impl Flood {
    fn of(number: usize, address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let to: std::net::SocketAddr = address.replace("0.0.0.0", "127.0.0.1").parse().expect("host:port");
        for _ in 0..number {
            runtime.spawn(async move {
                loop {
                    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
                    socket.bind(([127, 0, 0, 99], 0).into()).expect("an address of this host");
                    if let Ok(stream) = socket.connect(to).await {
                        let _closed = stream.readable().await;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            });
        }
        Self { _runtime: runtime }
    }
}

#[test]
fn idle_connections_of_unknown_peers_exclude_no_node() {
    let mut job = Cluster::of_lines(programs!());
    let master = job.master_line_in(&["sh", "-c", "ulimit -n 200; exec \"$@\"", "sh"]);
    job.start_master(master.flags(["--port=0", "--reconnect-grace=0.5"]));
    let flood = Flood::of(300, job.address());
    let _full = job.await_master_log("closed");
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _world = job.await_world(2, 0);
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
    drop(flood);
}
