//! Whatever is thrown at the master, the job goes on.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use common::{Master, Node, Way, channel, node_id, request, run_a_job, signed_by, terms};
use master_proto::{
    convert::join_request,
    pb::{self, master_client::MasterClient},
};
use rules::verdict::JobVerdict;
use tokio::task::spawn_blocking;
use tonic::Code;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Numbers that are the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.next() % most;
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// A frame of HTTP/2 with the right length, and nothing else that is right.
    fn frame(&mut self) -> Vec<u8> {
        let payload = self.bytes(300);
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let [kind, flags, stream, ..] = self.next().to_le_bytes();
        [&length[1..], &[kind % 10, flags, 0, 0, 0, stream % 8], &payload].concat()
    }
}

/// Sends `bytes` and waits for the master to hang up, but not for long.
fn throw(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let _it_may_hang_up = stream.write_all(bytes);
    let _whatever = stream.read(&mut [0; 4096]);
}

#[tokio::test]
async fn invalid_bytes_change_nothing() {
    let master = Master::start(|_| {});
    let address = master.address;
    let throwing = spawn_blocking(move || {
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        for _ in 0..50 {
            throw(address, &noise.bytes(4000));
            throw(address, &[PREFACE, &noise.bytes(4000)].concat());
            let frames: Vec<u8> = (0..20).flat_map(|_| noise.frame()).collect();
            let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            throw(address, &[PREFACE, &settings, &frames].concat());
        }
    });
    // While it is thrown at, and after.
    run_a_job(address, &Way::default()).await;
    throwing.await.unwrap_or_else(|error| assert!(error.is_panic(), "the master has left by now"));
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn invalid_messages_are_refused() {
    let master = Master::start(|_| {});
    let mut client = MasterClient::new(channel(master.address, &Way::default()).await.unwrap());
    let _subscribed = Node::subscribe(master.address, "x").await.unwrap();
    let good = || join_request(request("x", terms(2, 2)));
    let bad = [
        pb::JoinRequest { node_id: String::new(), ..good() },
        pb::JoinRequest { node_id: "x".repeat(300), ..good() },
        pb::JoinRequest { local_world_size: u32::MAX, ..good() },
        pb::JoinRequest { terms: Some(pb::Terms::default()), ..good() },
        pb::JoinRequest { terms: None, ..good() },
        pb::JoinRequest {
            attributes: Some(pb::NodeAttributes { addresses: vec!["a".into(); 100], ..Default::default() }),
            ..good()
        },
    ];
    for message in bad {
        let status = client.join(message).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(!status.message().is_empty());
    }
    let many = pb::Terms { min_nodes: u32::MAX, max_nodes: u32::MAX, node_unit: 1, ..Default::default() };
    let status = client.join(pb::JoinRequest { terms: Some(many), node_rank: Some(1), ..good() }).await;
    assert_eq!(status.unwrap_err().code(), Code::InvalidArgument, "ranks up to there would be counted");
    let large = pb::JoinRequest { role: "r".repeat(100 << 10), ..good() };
    assert_eq!(client.join(large).await.unwrap_err().code(), Code::OutOfRange);
    let port = pb::HostingReport { node_id: "x".into(), master_port: 0, ..Default::default() };
    assert_eq!(client.report_hosting(port).await.unwrap_err().code(), Code::InvalidArgument);
    let detail = |lines: usize| {
        let cause = Some(pb::failure_detail::Cause::ExitCode(1));
        let detail = pb::FailureDetail { cause, lines: vec!["l".into(); lines], ..Default::default() };
        pb::DetailReport { node_id: node_id("unknown").0, round: 0, detail: Some(detail) }
    };
    let many = client.report_detail(signed_by("unknown", detail(21))).await;
    assert_eq!(many.unwrap_err().code(), Code::InvalidArgument);
    let forged = client.report_detail(signed_by("another", detail(1))).await;
    assert_eq!(forged.unwrap_err().code(), Code::PermissionDenied, "in the name of another node");
    // Well-formed messages of an unknown node.
    client.report_detail(signed_by("unknown", detail(1))).await.unwrap();
    for round in [0, 7, u32::MAX] {
        let node_id = node_id("unknown").0;
        let report = pb::FailureReport {
            node_id: node_id.clone(),
            round,
            reason: "r".into(),
            gives_up: true,
            has_detail: false,
            age_micros: 0,
        };
        client.report_failure(signed_by("unknown", report)).await.unwrap();
        let heard = pb::EndAcknowledgement { node_id: node_id.clone() };
        client.acknowledge_end(signed_by("unknown", heard)).await.unwrap();
        let hosting = pb::HostingReport { node_id, round, master_addr: None, master_port: 1 };
        client.report_hosting(signed_by("unknown", hosting)).await.unwrap();
    }
    run_a_job(master.address, &Way::default()).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn unread_streams_delay_no_other_node() {
    let master = Master::start(|_| {});
    let mut deaf = Vec::new();
    for number in 0..50 {
        deaf.push(Node::subscribe(master.address, &format!("deaf-{number}")).await.unwrap());
    }
    run_a_job(master.address, &Way::default()).await;
    assert_eq!(master.ended().await.unwrap(), JobVerdict::Succeeded);
}
