//! A master on a thread of its own, which can be killed, and nodes that say what a test tells them to.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed unwrap fails the test, and its output is read"
)]

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Condvar, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use master::{MasterConfig, MasterError};
use master_proto::{
    PROTOCOL_VERSION,
    convert::{Payload, StreamMessage, end_report, join_request},
    pb::{self, master_client::MasterClient},
    trust::{NodeSecret, Token, Trust},
};
use rules::{
    NodeId, NodeRank, Round, RunId,
    job::{Claim, NodeEnd, OnGiveUp, Policy, WorkersState},
    liveness::Timeout,
    node::{JoinRequest, NodeAttributes, Terms},
    push::Push,
    verdict::JobVerdict,
    world::Assignment,
};
use tokio::{net::TcpListener, sync::oneshot, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Status, Streaming,
    transport::{Channel, ClientTlsConfig, Endpoint},
};

/// Far beyond what loopback needs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How long a broken stream may take to come back.
pub const GRACE: Duration = Duration::from_secs(2);

/// What a master has said so far, and word of each further line.
#[derive(Default)]
pub struct Lines {
    text: Mutex<Vec<String>>,
    more: Condvar,
}

/// What a master is told by default; its lines go to `lines`.
pub fn config(lines: &Arc<Lines>) -> MasterConfig {
    let lines = Arc::clone(lines);
    MasterConfig {
        taints: master::TaintConfig::default(),
        stacks: master::StacksConfig::default(),
        policy: Policy {
            restart_count: 3,
            on_give_up: OnGiveUp::Replace,
            host: None,
            has_topology: false,
            host_timeout: LIMIT,
            reconnect_grace: GRACE,
            terms: None,
            is_open: false,
            taint_guard_permille: 300,
            lease: None,
        },
        timeout: Timeout { reconnect_grace: GRACE, heartbeat_timeout: Some(Duration::from_secs(15)) },
        state_dir: None,
        topology_file: None,
        trust: Trust::default(),
        http: None,
        log: Arc::new(move |line| {
            eprintln!("master: {line}");
            lines.text.lock().unwrap().push(line.to_string());
            lines.more.notify_all();
        }),
    }
}

/// A master that serves.
pub struct Master {
    pub address: SocketAddr,
    pub lines: Arc<Lines>,
    kill: oneshot::Sender<()>,
    thread: JoinHandle<Option<Result<JobVerdict, MasterError>>>,
}

impl Master {
    pub fn start(change: impl FnOnce(&mut MasterConfig)) -> Self {
        let lines = Arc::default();
        let mut config = config(&lines);
        change(&mut config);
        let (kill, killed) = oneshot::channel();
        let (tell, address) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let ended = runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    ended = master::serve(TcpListenerStream::new(listener), config) => Some(ended),
                    _ = killed => None,
                }
            });
            // Connections end with it, as they do when a process dies.
            runtime.shutdown_background();
            ended
        });
        Self { address: address.recv().unwrap(), lines, kill, thread }
    }

    pub fn with_state(dir: &Path) -> Self {
        Self::start(|config| config.state_dir = Some(dir.to_owned()))
    }

    /// Whatever is on its way is lost.
    pub fn kill(self) {
        self.kill.send(()).unwrap();
        assert!(self.thread.join().unwrap().is_none(), "it had ended before it was killed");
    }

    pub async fn ended(self) -> Result<JobVerdict, MasterError> {
        let Self { kill: _not_yet, thread, .. } = self;
        let ended = tokio::task::spawn_blocking(move || thread.join().unwrap().expect("it was not killed"));
        timeout(LIMIT, ended).await.expect("the end in time").unwrap()
    }

    /// Waits until a line with `words` is logged.
    pub fn logs(&self, words: &str) -> bool {
        let has_not = |text: &mut Vec<String>| !text.iter().any(|line| line.contains(words));
        let text = self.lines.text.lock().unwrap();
        let (_lines, waited) = self.lines.more.wait_timeout_while(text, LIMIT, has_not).unwrap();
        !waited.timed_out()
    }

    pub fn has_logged(&self, words: &str) -> bool {
        self.count_logged(words) > 0
    }

    /// Returns how many lines with `words` are logged.
    pub fn count_logged(&self, words: &str) -> usize {
        self.lines.text.lock().unwrap().iter().filter(|line| line.contains(words)).count()
    }

    pub async fn subscribe(&self, id: &str) -> Node {
        Node::subscribe(self.address, id).await.unwrap()
    }
}

/// How a node reaches the master.
#[derive(Clone, Default)]
pub struct Way {
    pub token: Option<Token>,
    pub tls: Option<ClientTlsConfig>,
}

/// The secret of the node that a test calls so. Their ids are in the order of the last letters of these names.
pub fn secret(name: &str) -> NodeSecret {
    let last = name.bytes().last().unwrap();
    let made_up = (0..).map(|number| NodeSecret::new(&format!("{name} {number}")));
    let mut fitting = made_up.filter(|secret| secret.node_id().0.starts_with(&format!("{last:02x}")));
    fitting.next().unwrap()
}

/// The id of the node that a test calls so.
pub fn node_id(name: &str) -> NodeId {
    secret(name).node_id()
}

/// A word of the node that a test calls so.
pub fn signed_by<T>(name: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    secret(name).put_on(&mut request);
    request
}

/// One node's side of the wire.
pub struct Node {
    pub id: String,
    pub client: MasterClient<Channel>,
    pub pushes: Streaming<pb::StreamMessage>,
    way: Way,
    last: Option<(u64, u64)>,
    /// That of its welcome.
    pub session: u64,
}

pub fn terms(min_nodes: u32, max_nodes: u32) -> Terms {
    Terms {
        run_id: RunId("job".into()),
        min_nodes,
        max_nodes,
        node_unit: 1,
        last_call: Duration::from_millis(200),
        join_timeout: LIMIT,
        require_uniform: false,
        check: None,
        hang: None,
        save_at_breakpoint: false,
    }
}

pub fn request(id: &str, terms: Terms) -> JoinRequest {
    JoinRequest {
        node_id: node_id(id),
        wish: None,
        local_world_size: 2,
        role: "default".into(),
        address: String::new(),
        node_ip: None,
        terms,
        attributes: NodeAttributes { host_name: format!("host-{id}"), ..NodeAttributes::default() },
        after: None,
        checked: None,
        question_port: 0,
        shards: Vec::new(),
    }
}

pub async fn channel(address: SocketAddr, way: &Way) -> Result<Channel, tonic::transport::Error> {
    match &way.tls {
        None => Endpoint::from_shared(format!("http://{address}"))?.connect().await,
        Some(tls) => {
            let endpoint = Endpoint::from_shared(format!("https://{address}"))?;
            endpoint.tls_config(tls.clone())?.connect().await
        }
    }
}

impl Node {
    pub async fn subscribe(address: SocketAddr, id: &str) -> Result<Self, Status> {
        Self::subscribe_by(address, id, Way::default()).await
    }

    pub async fn subscribe_by(address: SocketAddr, id: &str, way: Way) -> Result<Self, Status> {
        let channel =
            channel(address, &way).await.map_err(|error| Status::unavailable(format!("{error:?}")))?;
        let mut client = MasterClient::new(channel);
        let subscribe = pb::SubscribeRequest { protocol_version: PROTOCOL_VERSION, node_id: node_id(id).0 };
        let mut request = signed_by(id, subscribe);
        if let Some(token) = &way.token {
            token.put_on(&mut request);
        }
        let pushes = client.subscribe(request).await?.into_inner();
        let mut node = Self { id: id.into(), client, pushes, way, last: None, session: 0 };
        match node.payload().await? {
            Some(Payload::Welcome { session, .. }) => {
                node.session = session;
                Ok(node)
            }
            other => panic!("expected a welcome, got {other:?}"),
        }
    }

    pub fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = signed_by(&self.id, message);
        if let Some(token) = &self.way.token {
            token.put_on(&mut request);
        }
        request
    }

    pub async fn join_as(&mut self, request: JoinRequest) -> Result<(), Status> {
        self.join_in(self.session, request).await
    }

    pub async fn join_in(&mut self, session: u64, request: JoinRequest) -> Result<(), Status> {
        let request = pb::JoinRequest { session: Some(session), ..join_request(request) };
        self.client.join(self.signed(request)).await.map(drop)
    }

    /// Joins a job of so many nodes, after the round it has left.
    pub async fn join(&mut self, nodes: u32, after: Option<u32>) {
        let request = JoinRequest { after: after.map(Round), ..request(&self.id, terms(nodes, nodes)) };
        self.join_as(request).await.unwrap();
    }

    pub async fn resume(
        &mut self,
        nodes: u32,
        assignment: &Assignment,
        workers_state: WorkersState,
    ) -> Result<(), Status> {
        let claim = Claim {
            fence: None,
            round: assignment.round,
            node_rank: assignment.node_rank,
            nodes: assignment.nodes,
            master_addr: assignment.master_addr.clone(),
            master_port: assignment.master_port,
            workers_state,
        };
        let node = join_request(request(&self.id, terms(nodes, nodes)));
        let node = Some(pb::JoinRequest { session: Some(self.session), ..node });
        let claimed = pb::ResumeRequest::from((request(&self.id, terms(nodes, nodes)), claim));
        let request = self.signed(pb::ResumeRequest { node, ..claimed });
        self.client.resume(request).await.map(drop)
    }

    pub async fn host(&mut self, round: Round) -> Result<(), Status> {
        let report = pb::HostingReport {
            node_id: node_id(&self.id).0,
            round: round.0,
            master_addr: None,
            master_port: 29_500,
        };
        let request = self.signed(report);
        self.client.report_hosting(request).await.map(drop)
    }

    pub async fn fail(&mut self, round: Round) -> Result<(), Status> {
        let report = pb::FailureReport {
            node_id: node_id(&self.id).0,
            round: round.0,
            reason: "worker 0 exited with 1".into(),
            gives_up: false,
            has_detail: false,
            age_micros: 0,
        };
        let request = self.signed(report);
        self.client.report_failure(request).await.map(drop)
    }

    pub async fn end(&mut self, end: NodeEnd) -> Result<(), Status> {
        let request = self.signed(end_report(&node_id(&self.id), end));
        self.client.report_end(request).await.map(drop)
    }

    pub async fn succeed(&mut self, round: u32) {
        self.end(NodeEnd::Succeeded { round: Round(round) }).await.unwrap();
    }

    pub async fn acknowledge(&mut self) -> Result<(), Status> {
        let request = self.signed(pb::EndAcknowledgement { node_id: node_id(&self.id).0 });
        self.client.acknowledge_end(request).await.map(drop)
    }

    /// The next push, whatever it is; `None` when the stream has ended.
    pub async fn push(&mut self) -> Result<Option<Push>, Status> {
        Ok(self.payload().await?.map(|payload| match payload {
            Payload::Push(push) => push,
            Payload::Welcome { .. } => panic!("a second welcome on one stream"),
        }))
    }

    async fn payload(&mut self) -> Result<Option<Payload>, Status> {
        let message = timeout(LIMIT, self.pushes.message()).await.expect("a message in time")?;
        let Some(message) = message else { return Ok(None) };
        let StreamMessage { epoch, seq, payload } = message.try_into().unwrap();
        assert!(
            self.last.is_none_or(|(life, last)| life == epoch && last < seq),
            "{:?} then {seq}",
            self.last
        );
        self.last = Some((epoch, seq));
        Ok(payload)
    }

    /// The next push that is more than a word about waiting.
    pub async fn next(&mut self) -> Push {
        loop {
            match self.push().await.unwrap().expect("the stream is open") {
                Push::Pending(_) => {}
                push => return push,
            }
        }
    }

    pub async fn assignment(&mut self) -> Assignment {
        match self.next().await {
            Push::Assigned(assignment) => {
                let taken = Some(assignment.round.0);
                let (node_id, session) = (node_id(&self.id).0, self.session);
                let beat = pb::BeatRequest { node_id, taken_round: taken, session };
                let beat = self.signed(beat);
                self.client.beat(beat).await.unwrap();
                assignment
            }
            other => panic!("expected an assignment, got {other:?}"),
        }
    }

    pub async fn asked_to_host(&mut self) -> Round {
        match self.next().await {
            Push::Host { round, .. } => round,
            other => panic!("expected to be asked to host, got {other:?}"),
        }
    }

    /// Hears that the job succeeded, and says so.
    pub async fn leave(mut self) {
        assert_eq!(self.next().await, Push::JobEnd(JobVerdict::Succeeded));
        self.acknowledge().await.unwrap();
    }
}

/// Assigns nodes that all joined; the first of them is the host.
pub async fn assigned(nodes: &mut [Node]) -> Vec<Assignment> {
    let round = nodes[0].asked_to_host().await;
    nodes[0].host(round).await.unwrap();
    let mut assignments = Vec::new();
    for node in nodes {
        assignments.push(node.assignment().await);
    }
    assert_eq!(assignments[0].node_rank, NodeRank(0));
    assignments
}

/// Two nodes run a job of one round to its end.
pub async fn run_a_job(address: SocketAddr, way: &Way) {
    let mut nodes = Vec::new();
    for id in ["good-a", "good-b"] {
        nodes.push(Node::subscribe_by(address, id, way.clone()).await.unwrap());
    }
    for node in &mut nodes {
        node.join(2, None).await;
    }
    assigned(&mut nodes).await;
    for node in &mut nodes {
        node.succeed(0).await;
    }
    for node in nodes {
        node.leave().await;
    }
}
