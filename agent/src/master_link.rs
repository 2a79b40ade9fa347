//! The connection to the master: one task that keeps a stream to the master open, sends messages in order, and turns
//! pushes of the master into events.
//!
//! A broken stream is opened again for as long as the agent lives. Messages that were not sent by then are dropped:
//! the agent gets [`Event::MasterBack`] and reports its state again.

mod connect;
mod error;
mod members;
mod send;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use master_proto::{
    MAX_PUSH_BYTES,
    convert::{Payload, StreamMessage},
    pb::{self, master_client::MasterClient},
    trust::{NodeSecret, TOKEN_REQUIRED},
};
use rules::{Moment, NodeId, NodeRank, Round, chain, push::Push, worker_group::Event};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{Status, Streaming, transport::Channel};
use tracing::warn;

use self::error::LinkError;
pub(crate) use self::{
    connect::Connector,
    error::{has_no_grpc_status, web_server_at},
};
pub use self::{
    connect::{ConnectError, MasterAt, STORE_QUESTION},
    send::ToMaster,
};
use crate::{questions::QuestionState, store_host::Allowed};

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

    /// What closed the connection, stays silent, or answered without gRPC's status. torch's store does either with the
    /// bytes of a gRPC client.
    async fn identify_peer(&self, error: LinkError) -> LinkError {
        match error {
            LinkError::BrokeOff { at } if self.connector.is_tcp_store().await => LinkError::Torchrun { at },
            LinkError::BrokeOff { at } if self.connector.is_web_server().await => LinkError::WebServer { at },
            LinkError::Silent { at, .. } if self.connector.is_tcp_store().await => LinkError::Torchrun { at },
            LinkError::Silent { at, .. } => LinkError::Mute { at },
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
                    if let Event::Pushed(Push::Assigned(assignment)) = &event {
                        self.hosted = (assignment.node_rank == NodeRank(0)).then_some(assignment.round);
                    }
                    let taken = match &event {
                        Event::Pushed(Push::Assigned(assignment)) => Some(assignment.round),
                        _ => None,
                    };
                    if self.emit(event).await.is_some() {
                        return Ok(AgentGone);
                    }
                    // Not without heartbeats: within one process there is nothing to take over.
                    if let (Some(round), Some(_)) = (taken, welcome.beat) {
                        self.acknowledge_assignment(client, round, welcome).await?;
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
                let beat = pb::BeatRequest { node_id: node.0.clone(), taken_round: None, session };
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
    async fn acknowledge_assignment(
        &self,
        client: &mut MasterClient<Channel>,
        round: Round,
        Welcome { session, .. }: Welcome,
    ) -> Result<(), LinkError> {
        let beat = pb::BeatRequest { node_id: self.node.0.clone(), taken_round: Some(round.0), session };
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
        let mut client = MasterClient::new(channel).max_decoding_message_size(MAX_PUSH_BYTES);
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
                "this node has a job token, and the job master at {} requires none: unless it requires certificates \
                 (--tls-client-ca; dlrover-run: --tls-ca), any host that reaches it can join the job; set DLROVER_JOB_TOKEN for the process that serves it",
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
            let silent = LinkError::Silent { at: self.connector.to_string(), timeout: HINT };
            let error = tokio::select! {
                answer = &mut call => return answer,
                error = self.identify_peer(silent) => error,
            };
            // When the agent is gone, the task ends after the call.
            let _gone = self.emit(Event::MasterAway { reason: error.to_string() }).await;
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
}

/// A random time between half of it and all of it, so that a thousand agents do not reconnect at the same moment.
fn jittered(pause: Duration) -> Duration {
    // The last bytes of a random id are random.
    let random = uuid::Uuid::new_v4().as_u128() & 0xff;
    let share = u32::try_from(random).unwrap_or_default();
    pause / 2 + pause / 2 * share / 256
}

#[cfg(test)]
mod tests;
