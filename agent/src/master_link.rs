//! The connection to the master: one task that keeps a stream to the master open, sends messages in order, and turns
//! pushes of the master into events.
//!
//! A broken stream is opened again for as long as the agent lives. Messages that were not sent by then are dropped:
//! the agent gets [`Event::MasterBack`] and reports its state again.

mod connect;
mod members;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use diagnosis::gpus::Inventory;
use master_proto::{
    convert::{
        ConvertError, Payload, StacksPart, StreamMessage, check_report, cut, detail_report, end_report,
        inventory_report, join_request, training_report,
    },
    pb::{self, master_client::MasterClient},
    trust::{NodeSecret, TOKEN_REQUIRED},
};
use rules::{
    Moment, NodeId, NodeRank, Round,
    check_order::CheckReport,
    job::{Claim, NodeEnd},
    node::JoinRequest,
    push::Push,
    root_cause::FailureDetail,
    training::TrainingReport,
    worker_group::Event,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{Code, Status, Streaming, transport::Channel};
use tracing::warn;

pub(crate) use self::connect::Connector;
pub use self::connect::{ConnectError, MasterAt};
use crate::{questions::QuestionState, store_host::Allowed};
use rules::chain;

/// How long the master may take to acknowledge a call. It only records it; what follows is pushed.
const CALL: Duration = Duration::from_secs(10);

/// After this time without an answer to the first subscription, the node says that it waits for one.
const HINT: Duration = Duration::from_secs(2);

/// Connections that are kept after their streams were abandoned.
const MAX_KEPT: usize = 64;

/// The first pause after a broken stream; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause. Together with the time of an attempt it is shorter than a restarted master waits:
/// [`rules::liveness::LONGEST_GAP`].
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A message of the agent to the master.
#[derive(Debug)]
pub enum ToMaster {
    /// Requests a node rank.
    Join(JoinRequest),
    /// Reports the state of this node.
    Resume(JoinRequest, Claim),
    /// The store of a round is open.
    Hosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// The accelerators of this node.
    Inventory(Box<Inventory>),
    /// The result of a test, or its progress.
    Checked { report: CheckReport, is_progress: bool },
    /// Workers failed; the first of them ended at this time since 1970, if that is known. With `has_detail`, more is to
    /// be said of it.
    Failure { round: Round, reason: String, gives_up: bool, has_detail: bool, noticed: Option<Duration> },
    /// What is known of the worker that failed first.
    Detail { round: Round, detail: Box<FailureDetail> },
    /// The progress of the workers.
    Training(TrainingReport),
    /// A part of their stacks.
    Stacks(StacksPart),
    /// This node has ended.
    End(NodeEnd),
    /// Acknowledges the end of the job.
    AcknowledgeEnd,
}

/// Why a stream ended, or could not be opened.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the job master at {at} did not answer within {} s", timeout.as_secs_f64())]
    Silent { at: String, timeout: Duration },
    #[error(
        "something accepts connections at {at} and does not answer: if another program has the port, choose another port"
    )]
    Mute { at: String },
    #[error("the job master at {at} rejected the request: {}", status.message())]
    Refused { at: String, status: Status },
    #[error("the job master at {at} closed the connection")]
    BrokeOff { at: String },
    #[error(
        "the peer at {at} speaks torchrun's rendezvous (the TCPStore protocol) and is not a job master; all nodes of \
         a job need the same launcher: start dlrover-run there too"
    )]
    Torchrun { at: String },
    #[error("{}", web_server_at(at))]
    WebServer { at: String },
    #[error("the job master at {at} does not know this node any more")]
    Forgotten { at: String },
    #[error("the job master at {at} sent an invalid message")]
    InvalidPush {
        at: String,
        #[source]
        source: ConvertError,
    },
}

/// An answer that is not gRPC's: tonic derives its status from HTTP's.
pub(crate) fn has_no_grpc_status(status: &Status) -> bool {
    status.message().starts_with("grpc-status header missing")
}

pub(crate) fn web_server_at(at: &str) -> String {
    format!(
        "a web server or a proxy answers at {at}, and not a job master: give the address at which the job's nodes meet, \
         or choose a port that is free"
    )
}

impl LinkError {
    /// Whether another attempt would fail the same way. A master that once accepted this node may be restarted with
    /// its old settings; an invalid message never becomes valid.
    fn is_final(&self, was_open_once: bool) -> bool {
        match self {
            Self::Connect(error) => error.is_final() && !was_open_once,
            Self::Refused { status, .. } => match status.code() {
                Code::InvalidArgument => true,
                Code::FailedPrecondition | Code::Unauthenticated | Code::Unimplemented => !was_open_once,
                _ => false,
            },
            Self::Silent { .. }
            | Self::Mute { .. }
            | Self::BrokeOff { .. }
            | Self::Torchrun { .. }
            // A proxy answers so while the master behind it has yet to start.
            | Self::WebServer { .. }
            | Self::Forgotten { .. }
            | Self::InvalidPush { .. } => false,
        }
    }
}

/// The message queue and its task, which ends when the sender is dropped and all messages were sent.
#[derive(Debug)]
pub struct MasterLink {
    /// Unbounded, because the agent sends a handful of messages a round and must never wait.
    pub messages: mpsc::UnboundedSender<ToMaster>,
    pub task: JoinHandle<()>,
}

/// What the task needs besides its channels.
#[derive(Debug)]
pub struct LinkParts {
    /// Where the master is.
    pub master: MasterAt,
    /// Proves the identity of this node.
    pub secret: NodeSecret,
    /// The addresses that may connect to the store here, if they are restricted.
    pub allowed: Option<Allowed>,
    /// Where the state of the stream is published.
    pub question_state: Arc<QuestionState>,
    /// The origin of the agent's clock.
    pub started: Instant,
}

/// Starts the task. Messages are sent by the returned channel; events are received from `events`.
pub fn start<E>(parts: LinkParts, events: mpsc::Sender<E>) -> MasterLink
where
    E: From<Event> + Send + 'static,
{
    let (messages, inbox) = mpsc::unbounded_channel();
    let LinkParts { master, secret, allowed, question_state, started } = parts;
    let task = tokio::spawn(async move {
        let node = secret.node_id();
        let mut link = MasterConnection {
            connector: Connector::new(master, secret),
            node,
            events,
            messages: inbox,
            is_open: false,
            last_push: None,
            allowed,
            hosted: None,
            question_state,
            started,
            kept: Vec::new(),
            is_warned: false,
            was_open_once: false,
        };
        link.run().await;
    });
    MasterLink { messages, task }
}

struct MasterConnection<E> {
    connector: Connector,
    node: NodeId,
    events: mpsc::Sender<E>,
    messages: mpsc::UnboundedReceiver<ToMaster>,
    /// The master has answered on the current stream.
    is_open: bool,
    /// The last push: the master's epoch and sequence number.
    last_push: Option<(u64, u64)>,
    /// The addresses that may connect to the store here, if they are restricted.
    allowed: Option<Allowed>,
    /// The round whose store is here and whose members are not known yet.
    hosted: Option<Round>,
    question_state: Arc<QuestionState>,
    started: Instant,
    /// Connections of abandoned streams. They are closed when another stream is open, or with the process: a master
    /// that sees a connection close takes the launcher for dead.
    kept: Vec<Channel>,
    /// That the master requires no token.
    is_warned: bool,
    /// A master has answered here before.
    was_open_once: bool,
}

/// An open stream.
#[derive(Debug, Clone, Copy)]
struct Welcome {
    /// When the first heartbeat is due; `None`: none is wanted.
    beat: Option<Duration>,
    /// The number of the session.
    session: u64,
    /// How long the answer to a heartbeat may take.
    timeout: Duration,
}

/// The agent has ended.
struct AgentGone;

impl<E: From<Event>> MasterConnection<E> {
    /// Runs until the agent ends.
    async fn run(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            self.is_open = false;
            let conversed = self.run_stream().await;
            self.question_state.set_connected(false);
            let error = match conversed {
                Ok(AgentGone) => return,
                Err(error) => error,
            };
            self.was_open_once |= self.is_open;
            let was_open_once = self.was_open_once;
            let error = if was_open_once { error } else { self.identify_peer(error).await };
            if self.is_open {
                pause = FIRST_PAUSE;
            }
            let reason = chain(&error);
            let is_final = error.is_final(was_open_once);
            let event =
                if is_final { Event::Pushed(Push::Refused { reason }) } else { Event::MasterAway { reason } };
            if self.emit(event).await.is_some() || is_final {
                return;
            }
            if self.drop_messages_for(jittered(pause)).await.is_some() {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What closed the connection, or answered without gRPC's status.
    async fn identify_peer(&self, error: LinkError) -> LinkError {
        match error {
            LinkError::Silent { at, .. } => LinkError::Mute { at },
            LinkError::BrokeOff { at } if self.connector.is_tcp_store().await => LinkError::Torchrun { at },
            LinkError::BrokeOff { at } if self.connector.is_web_server().await => LinkError::WebServer { at },
            LinkError::Refused { at, status }
                if has_no_grpc_status(&status) && self.connector.is_web_server().await =>
            {
                LinkError::WebServer { at }
            }
            error => error,
        }
    }

    /// Messages without a stream are dropped: the agent's state is reported again later.
    async fn drop_messages_for(&mut self, wait: Duration) -> Option<AgentGone> {
        let over = sleep(wait);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return None,
                message = self.messages.recv() => if message.is_none() {
                    return Some(AgentGone);
                },
            }
        }
    }

    /// Runs one stream, from its opening to its end.
    async fn run_stream(&mut self) -> Result<AgentGone, LinkError> {
        let sent = Instant::now();
        let (mut client, mut pushes) = self.subscribe().await?;
        let welcome = self.welcome(&mut pushes).await?;
        // The last one is the current one.
        self.kept.drain(..self.kept.len().saturating_sub(1));
        // Before the first heartbeat: see `QuestionState`.
        self.question_state.set_connected(true);
        self.is_open = true;
        while self.messages.try_recv().is_ok() {}
        if self.emit(self.heard_event(sent)).await.is_some() || self.emit(Event::MasterBack).await.is_some() {
            return Ok(AgentGone);
        }
        // Concurrently: a slow call does not make the node less alive.
        let heartbeats = self.heartbeats(client.clone(), welcome);
        let exchange = self.exchange(&mut client, &mut pushes, welcome);
        tokio::select! {
            ended = exchange => ended,
            error = heartbeats => Err(error),
        }
    }

    /// Sends messages and receives pushes, until the stream ends.
    async fn exchange(
        &mut self,
        client: &mut MasterClient<Channel>,
        pushes: &mut Streaming<pb::StreamMessage>,
        welcome: Welcome,
    ) -> Result<AgentGone, LinkError> {
        self.allow_members(client).await?;
        loop {
            tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => {
                        if self.send(client, message, welcome).await?.is_some() {
                            return Ok(AgentGone);
                        }
                    }
                    None => return Ok(AgentGone),
                },
                push = pushes.message() => {
                    let pushed = self.pushed(push)?;
                    let Some(event) = self.event(pushed) else { continue };
                    if let Event::Pushed(Push::Seat(assignment)) = &event {
                        self.hosted = (assignment.node_rank == NodeRank(0)).then_some(assignment.round);
                    }
                    let seat = match &event {
                        Event::Pushed(Push::Seat(assignment)) => Some(assignment.round),
                        _ => None,
                    };
                    if self.emit(event).await.is_some() {
                        return Ok(AgentGone);
                    }
                    // Not without heartbeats: within one process there is nothing to take over.
                    if let (Some(round), Some(_)) = (seat, welcome.beat) {
                        self.take_seat(client, round, welcome).await?;
                    }
                    self.allow_members(client).await?;
                }
            }
        }
    }

    /// The master has answered a message sent at that time.
    fn heard_event(&self, sent: Instant) -> Event {
        Event::MasterAnswered { sent: Moment::new(sent.saturating_duration_since(self.started)) }
    }

    /// Sends heartbeats while the master wants them. Each waits for the answer to the one before; `rules::contacts`
    /// describes what the master concludes from that.
    fn heartbeats(
        &self,
        mut client: MasterClient<Channel>,
        welcome: Welcome,
    ) -> impl Future<Output = LinkError> + use<E> {
        let (connector, node, events) = (self.connector.clone(), self.node.clone(), self.events.clone());
        let started = self.started;
        async move {
            let mut next = welcome.beat;
            while let Some(pause) = next {
                sleep(pause).await;
                let sent = Instant::now();
                let session = welcome.session;
                let beat = pb::BeatRequest { node_id: node.0.clone(), seated_round: None, session };
                match connector.answered_within(welcome.timeout, client.beat(connector.signed(beat))).await {
                    Ok(pb::BeatReply { is_known: true, next_millis }) => {
                        next = (next_millis > 0).then(|| Duration::from_millis(next_millis));
                    }
                    Ok(_) => return LinkError::Forgotten { at: connector.to_string() },
                    Err(error) => return error,
                }
                let sent = Moment::new(sent.saturating_duration_since(started));
                if events.send(Event::MasterAnswered { sent }.into()).await.is_err() {
                    break;
                }
            }
            std::future::pending().await
        }
    }

    /// Sets the addresses that may connect to the store here, once a round has its members.
    async fn allow_members(&mut self, client: &mut MasterClient<Channel>) -> Result<(), LinkError> {
        let (Some(round), Some(allowed)) = (self.hosted, self.allowed.clone()) else { return Ok(()) };
        let world = self.connector.signed(pb::ShowWorldRequest {});
        let world = self.connector.answered(client.show_world(world)).await?;
        // Otherwise another round has begun, whose assignment will follow.
        if world.round == Some(round.0) {
            allowed.set(members::addresses(&world.members).await);
        }
        self.hosted = None;
        Ok(())
    }

    /// From now on the master counts the loss of this node as that of a rank.
    async fn take_seat(
        &self,
        client: &mut MasterClient<Channel>,
        round: Round,
        Welcome { session, .. }: Welcome,
    ) -> Result<(), LinkError> {
        let beat = pb::BeatRequest { node_id: self.node.0.clone(), seated_round: Some(round.0), session };
        self.connector.answered(client.beat(self.connector.signed(beat))).await.map(drop)
    }

    async fn emit(&self, event: Event) -> Option<AgentGone> {
        self.events.send(event.into()).await.is_err().then_some(AgentGone)
    }

    async fn subscribe(
        &mut self,
    ) -> Result<(MasterClient<Channel>, Streaming<pb::StreamMessage>), LinkError> {
        let channel = self.connector.open().await?;
        // From here on the master may know the connection.
        if self.kept.len() >= MAX_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(channel.clone());
        let mut client = MasterClient::new(channel);
        let request = pb::SubscribeRequest {
            protocol_version: master_proto::PROTOCOL_VERSION,
            node_id: self.node.0.clone(),
        };
        let call = async {
            let reply = client.subscribe(self.connector.signed(request)).await?;
            let is_token_required = reply.metadata().contains_key(TOKEN_REQUIRED);
            Ok(tonic::Response::new((reply.into_inner(), is_token_required)))
        };
        let (pushes, is_token_required) = self.with_hint(self.connector.answered(call)).await?;
        if self.connector.has_token() && !is_token_required && !std::mem::replace(&mut self.is_warned, true) {
            warn!(
                "this node has a job token, and the job master at {} requires none: any host that reaches it can \
                 join the job; set DLROVER_JOB_TOKEN for the process that serves it",
                self.connector
            );
        }
        Ok((client, pushes))
    }

    /// Waits for the answer to a subscription. When a first one is late, the node says why it waits.
    async fn with_hint<T>(&self, call: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
        tokio::pin!(call);
        if let Ok(answer) = timeout(HINT, &mut call).await {
            return answer;
        }
        if !self.was_open_once {
            let reason = LinkError::Mute { at: self.connector.to_string() }.to_string();
            // When the agent is gone, the task ends after the call.
            let _gone = self.emit(Event::MasterAway { reason }).await;
        }
        call.await
    }

    /// Waits for the first push.
    async fn welcome(&mut self, pushes: &mut Streaming<pb::StreamMessage>) -> Result<Welcome, LinkError> {
        let Ok(push) = timeout(CALL, pushes.message()).await else {
            return Err(LinkError::Silent { at: self.connector.to_string(), timeout: CALL });
        };
        match self.pushed(push)?.payload {
            Some(Payload::Welcome { beat, session, timeout }) => {
                let timeout = timeout.map_or(CALL, |timeout| timeout.min(CALL));
                Ok(Welcome { beat, session, timeout })
            }
            _ => Ok(Welcome { beat: None, session: 0, timeout: CALL }),
        }
    }

    fn pushed(&self, push: Result<Option<pb::StreamMessage>, Status>) -> Result<StreamMessage, LinkError> {
        let at = || self.connector.to_string();
        let push = push.map_err(|status| self.connector.refused(status))?;
        let push = push.ok_or_else(|| LinkError::BrokeOff { at: at() })?;
        StreamMessage::try_from(push).map_err(|source| LinkError::InvalidPush { at: at(), source })
    }

    /// `None` for a push that was received before, concerns only the connection, or is unknown to this agent.
    fn event(&mut self, StreamMessage { epoch, seq, payload }: StreamMessage) -> Option<Event> {
        if self.last_push.is_some_and(|(life, last)| life == epoch && seq <= last) {
            return None;
        }
        self.last_push = Some((epoch, seq));
        match payload? {
            Payload::Welcome { .. } => None,
            Payload::Push(push) => Some(Event::Pushed(push)),
        }
    }

    async fn send(
        &mut self,
        client: &mut MasterClient<Channel>,
        message: ToMaster,
        Welcome { session, .. }: Welcome,
    ) -> Result<Option<AgentGone>, LinkError> {
        let node_id = self.node.0.clone();
        match message {
            ToMaster::Join(request) => {
                let request = pb::JoinRequest { session: Some(session), ..join_request(request) };
                self.connector.answered(client.join(self.connector.signed(request))).await?;
            }
            ToMaster::Resume(request, claim) => {
                let mut request = pb::ResumeRequest::from((request, claim));
                if let Some(node) = &mut request.node {
                    node.session = Some(session);
                }
                self.connector.answered(client.resume(self.connector.signed(request))).await?;
            }
            ToMaster::Hosting { round, master_addr, master_port } => {
                let report = pb::HostingReport {
                    node_id,
                    round: round.0,
                    master_addr,
                    master_port: u32::from(master_port),
                };
                self.connector.answered(client.report_hosting(self.connector.signed(report))).await?;
            }
            ToMaster::Inventory(inventory) => {
                let report = inventory_report(node_id, &inventory);
                self.connector.answered(client.report_inventory(self.connector.signed(report))).await?;
            }
            ToMaster::Checked { report, is_progress } => {
                let report = check_report(node_id, report, is_progress);
                self.connector.answered(client.report_check(self.connector.signed(report))).await?;
            }
            ToMaster::Failure { round, reason, gives_up, has_detail, noticed } => {
                let (round, reason) = (round.0, cut(reason));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let age = noticed.map_or(Duration::ZERO, |noticed| now.saturating_sub(noticed));
                let age_micros = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
                let report = pb::FailureReport { node_id, round, reason, gives_up, has_detail, age_micros };
                self.connector.answered(client.report_failure(self.connector.signed(report))).await?;
            }
            ToMaster::Detail { round, detail } => {
                let report = detail_report(node_id, round, *detail);
                self.connector.answered(client.report_detail(self.connector.signed(report))).await?;
            }
            ToMaster::Training(report) => {
                let report = training_report(node_id, report);
                self.connector.answered(client.report_training(self.connector.signed(report))).await?;
            }
            ToMaster::Stacks(part) => {
                let part = pb::StacksPart::from(part);
                self.connector.answered(client.report_stacks(self.connector.signed(part))).await?;
            }
            ToMaster::End(end) => {
                let is_farewell = !matches!(end, NodeEnd::Succeeded { .. });
                let report = end_report(&self.node, end);
                self.connector.answered(client.report_end(self.connector.signed(report))).await?;
                if is_farewell {
                    return Ok(self.emit(Event::EndNoted).await);
                }
            }
            ToMaster::AcknowledgeEnd => {
                let message = pb::EndAcknowledgement { node_id };
                self.connector.answered(client.acknowledge_end(self.connector.signed(message))).await?;
            }
        }
        Ok(None)
    }
}

impl Connector {
    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, LinkError> {
        self.answered_within(CALL, call).await
    }

    async fn answered_within<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, LinkError> {
        match tokio::time::timeout(timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.refused(status)),
            Err(_) => Err(LinkError::Silent { at: self.to_string(), timeout }),
        }
    }

    /// Texts of the transport are not useful in a message; those of the master are.
    fn refused(&self, status: Status) -> LinkError {
        let at = self.to_string();
        match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal | Code::Ok => {
                LinkError::BrokeOff { at }
            }
            _ => LinkError::Refused { at, status },
        }
    }
}

/// A random time between half of it and all of it, so that a thousand agents do not reconnect at the same moment.
fn jittered(pause: Duration) -> Duration {
    // The last bytes of a random id are random.
    let random = uuid::Uuid::new_v4().as_u128() & 0xff;
    let share = u32::try_from(random).unwrap_or_default();
    pause / 2 + pause / 2 * share / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(master: MasterAt) -> LinkParts {
        let (secret, question_state, started) =
            (NodeSecret::new("of a node"), Arc::default(), Instant::now());
        LinkParts { master, secret, allowed: None, question_state, started }
    }

    /// The network is back: the current attempt fails because its data is not acknowledged in time, a pause follows,
    /// and the next attempt succeeds.
    #[test]
    fn a_node_reconnects_within_the_gap_that_a_master_waits_for() {
        let gap = connect::ACKNOWLEDGE + connect::CONNECT + LONGEST_PAUSE;
        assert!(gap < rules::liveness::LONGEST_GAP, "{gap:?}");
    }

    #[tokio::test]
    async fn a_torchrun_at_the_address_is_named() {
        let listeners = store::bind_loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let _torchruns = store::StoreServer::start(listeners, store::Limits::default()).unwrap();
        let master =
            MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
        let (events, mut received) = mpsc::channel::<Event>(16);
        let _link = start(parts(master), events);
        let Some(Event::MasterAway { reason }) = received.recv().await else { panic!("it is no master") };
        assert!(
            reason.contains(&format!("the peer at 127.0.0.1:{port} speaks torchrun's rendezvous")),
            "{reason}"
        );
    }

    #[tokio::test]
    async fn a_port_that_accepts_and_says_nothing_is_named_within_seconds() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let master =
            MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
        let (events, mut received) = mpsc::channel::<Event>(16);
        let _link = start(parts(master), events);
        let event = timeout(CALL - Duration::from_secs(1), received.recv()).await;
        let Ok(Some(Event::MasterAway { reason })) = event else { panic!("it is no master") };
        assert!(
            reason.starts_with(&format!(
                "something accepts connections at 127.0.0.1:{port} and does not answer"
            )),
            "{reason}"
        );
        drop(listener);
    }

    #[tokio::test]
    async fn a_port_that_only_disconnects_is_not_called_a_torchrun() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _hangs_up = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let master =
            MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
        let (events, mut received) = mpsc::channel::<Event>(16);
        let _link = start(parts(master), events);
        let Some(Event::MasterAway { reason }) = received.recv().await else { panic!("it is no master") };
        assert!(!reason.contains("torchrun"), "{reason}");
    }

    #[test]
    fn a_pause_is_never_longer_than_given() {
        for _ in 0..100 {
            let pause = jittered(LONGEST_PAUSE);
            assert!(LONGEST_PAUSE / 2 <= pause && pause <= LONGEST_PAUSE, "{pause:?}");
        }
    }
}
