//! The master over real sockets: two agents' worth of calls, as the wire has them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;

use master_proto::{
    PROTOCOL_VERSION,
    convert::Push,
    pb::{self, master_client::MasterClient},
};
use rules::{Round, job::JobLimits, worker_group::JobVerdict};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Streaming, transport::Channel};

/// Far beyond what loopback needs.
const LIMIT: Duration = Duration::from_secs(60);

async fn serve(nodes: u32) -> (String, JoinHandle<JobVerdict>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let limits = JobLimits { nodes, join_timeout: LIMIT, host_timeout: LIMIT };
    let served =
        tokio::spawn(async move { master::serve(TcpListenerStream::new(listener), limits).await.unwrap() });
    (address, served)
}

struct Node {
    id: String,
    client: MasterClient<Channel>,
    pushes: Streaming<pb::Push>,
}

impl Node {
    async fn attend(address: &str, id: &str) -> Self {
        let mut client = MasterClient::connect(address.to_owned()).await.unwrap();
        let request = pb::AttendRequest { protocol_version: PROTOCOL_VERSION, node_id: id.into() };
        let pushes = client.attend(request).await.unwrap().into_inner();
        Self { id: id.into(), client, pushes }
    }

    async fn join(&mut self) {
        let request = pb::JoinRequest {
            node_id: self.id.clone(),
            local_world_size: 2,
            role: "default".into(),
            node_rank: None,
        };
        self.client.join(request).await.unwrap();
    }

    async fn host(&mut self, round: u32) {
        let report = pb::HostingReport {
            node_id: self.id.clone(),
            round,
            master_addr: "localhost".into(),
            master_port: 5,
        };
        self.client.report_hosting(report).await.unwrap();
    }

    async fn succeed(&mut self) {
        let end = Some(pb::end_report::End::Succeeded(pb::Succeeded {}));
        self.client.report_end(pb::EndReport { node_id: self.id.clone(), end }).await.unwrap();
    }

    async fn next(&mut self) -> Push {
        let push = timeout(LIMIT, self.pushes.message()).await.expect("a push in time");
        push.unwrap().unwrap().try_into().unwrap()
    }
}

#[tokio::test]
async fn two_nodes_meet_restart_and_end_together() {
    let (address, served) = serve(2).await;
    let mut a = Node::attend(&address, "a").await;
    let mut b = Node::attend(&address, "b").await;
    a.join().await;
    b.join().await;
    assert_eq!(a.next().await, Push::Host { round: Round(0) });
    a.host(0).await;
    for node in [&mut a, &mut b] {
        let Push::World(world) = node.next().await else { panic!("expected a world") };
        assert_eq!((world.round, world.members.len(), world.master_port), (Round(0), 2, 5));
    }
    // Node b restarts its workers, so a is called back.
    b.join().await;
    assert_eq!(a.next().await, Push::Regroup { round: Round(0) });
    a.join().await;
    assert_eq!(a.next().await, Push::Host { round: Round(1) });
    a.host(1).await;
    assert!(matches!(a.next().await, Push::World(_)));
    assert!(matches!(b.next().await, Push::World(_)));
    a.succeed().await;
    b.succeed().await;
    assert_eq!(a.next().await, Push::JobEnd(JobVerdict::Succeeded));
    assert_eq!(b.next().await, Push::JobEnd(JobVerdict::Succeeded));
    drop((a, b));
    assert_eq!(timeout(LIMIT, served).await.unwrap().unwrap(), JobVerdict::Succeeded);
}

#[tokio::test]
async fn a_node_that_vanishes_fails_the_job_and_the_other_is_told() {
    let (address, served) = serve(2).await;
    let mut a = Node::attend(&address, "a").await;
    let mut b = Node::attend(&address, "b").await;
    a.join().await;
    b.join().await;
    assert_eq!(a.next().await, Push::Host { round: Round(0) });
    drop(b);
    let Push::JobEnd(JobVerdict::Failed { node, .. }) = a.next().await else { panic!("expected the end") };
    assert_eq!(node.0, "b");
    drop(a);
    assert!(matches!(timeout(LIMIT, served).await.unwrap().unwrap(), JobVerdict::Failed { .. }));
}

#[tokio::test]
async fn another_protocol_version_and_nonsense_are_refused_in_words() {
    let (address, _served) = serve(1).await;
    let mut client = MasterClient::connect(address).await.unwrap();
    let old = pb::AttendRequest { protocol_version: 99, node_id: "a".into() };
    let status = client.attend(old).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("the agent speaks 99"), "{status}");
    let status = client.join(pb::JoinRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
