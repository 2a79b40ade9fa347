//! The agent's side of the wire: one task that keeps a stream to the master open, speaks in the order in which
//! it was told to, and turns what the master pushes into events.
//!
//! A stream that breaks is opened again for as long as the agent lives. What was not said by then is dropped:
//! the agent hears [`Event::MasterBack`] and says again where it stands.

mod connect;
mod members;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use diagnosis::gpus::Inventory;
use master_proto::{
    convert::{
        ConvertError, Payload, StreamMessage, check_report, cut, end_report, inventory_report, join_request,
    },
    pb::{self, master_client::MasterClient},
    trust::NodeSecret,
};
use rules::{
    Moment, NodeId, NodeRank, Round,
    check_order::CheckReport,
    job::{Claim, NodeEnd},
    node::JoinRequest,
    push::Push,
    worker_group::Event,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{Code, Status, Streaming, transport::Channel};

use self::connect::Connector;
pub use self::connect::{ConnectError, MasterAt};
use crate::{questions::Desk, store_host::Allowed};
use rules::chain;

/// How long the master may take to acknowledge a call. It only takes note; what follows is pushed.
const CALL: Duration = Duration::from_secs(10);

/// Connections that are kept after their streams were given up.
const MOST_KEPT: usize = 64;

/// The first pause after a broken stream; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause. With what an attempt may take it is less than a master that was started again waits for:
/// [`rules::liveness::LONGEST_GAP`].
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the agent says to the master.
#[derive(Debug)]
pub enum ToMaster {
    /// Ask for a seat.
    Join(JoinRequest),
    /// Say where this node stands.
    Resume(JoinRequest, Claim),
    /// The store of a round is open.
    Hosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// What this node's accelerators are.
    Inventory(Box<Inventory>),
    /// What a test came to, or how far it has come.
    Checked { report: CheckReport, is_progress: bool },
    /// Workers failed.
    Failure { round: Round, reason: String, gives_up: bool },
    /// This node's part is over.
    End(NodeEnd),
    /// This node has heard that the job is over.
    AcknowledgeEnd,
}

/// Why a stream is no more, or could not be opened.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the job master at {at} did not answer within {} s", timeout.as_secs_f64())]
    Silent { at: String, timeout: Duration },
    #[error("the job master at {at} said: {}", status.message())]
    Refused { at: String, status: Status },
    #[error("the connection to the job master at {at} broke off")]
    BrokeOff { at: String },
    #[error(
        "at {at} the other side speaks torchrun's rendezvous (the TCPStore protocol) and is no job master; all nodes of \
         a job need the same launcher: start dlrover-run there too"
    )]
    Torchrun { at: String },
    #[error("the job master at {at} does not know this node any more")]
    Forgotten { at: String },
    #[error("the job master at {at} said what makes no sense")]
    Nonsense {
        at: String,
        #[source]
        source: ConvertError,
    },
}

impl LinkError {
    /// Another try would end the same way. A master that took this node once may be on its way back to its old
    /// settings, but a word that makes no sense to it never will.
    fn is_final(&self, was_ever_open: bool) -> bool {
        match self {
            Self::Connect(error) => error.is_final() && !was_ever_open,
            Self::Refused { status, .. } => match status.code() {
                Code::InvalidArgument => true,
                Code::FailedPrecondition | Code::Unauthenticated | Code::Unimplemented => !was_ever_open,
                _ => false,
            },
            Self::Silent { .. }
            | Self::BrokeOff { .. }
            | Self::Torchrun { .. }
            | Self::Forgotten { .. }
            | Self::Nonsense { .. } => false,
        }
    }
}

/// Where to say words, and the task that says them: it ends when the sender is dropped and all was said.
#[derive(Debug)]
pub struct MasterLink {
    /// Unbounded, because the agent says a handful of words a round and must never wait to say them.
    pub words: mpsc::UnboundedSender<ToMaster>,
    /// The task.
    pub task: JoinHandle<()>,
}

/// What the task works with beside its channels.
#[derive(Debug)]
pub struct LinkParts {
    /// Where the master is.
    pub master: MasterAt,
    /// What this node proves by that it speaks for itself.
    pub secret: NodeSecret,
    /// Who may connect to the store here, when not everybody may.
    pub allowed: Option<Allowed>,
    /// Where others are told whether a stream is open.
    pub desk: Arc<Desk>,
    /// When the agent's clock began.
    pub started: Instant,
}

/// Starts the task. Words go in by the returned channel; events come out by `events`.
pub fn start<E>(parts: LinkParts, events: mpsc::Sender<E>) -> MasterLink
where
    E: From<Event> + Send + 'static,
{
    let (words, inbox) = mpsc::unbounded_channel();
    let LinkParts { master, secret, allowed, desk, started } = parts;
    let task = tokio::spawn(async move {
        let node = secret.node_id();
        let mut link = MasterConnection {
            connector: Connector::new(master, secret),
            node,
            events,
            words: inbox,
            is_open: false,
            heard: None,
            allowed,
            hosted: None,
            desk,
            started,
            kept: Vec::new(),
        };
        link.run().await;
    });
    MasterLink { words, task }
}

struct MasterConnection<E> {
    connector: Connector,
    node: NodeId,
    events: mpsc::Sender<E>,
    words: mpsc::UnboundedReceiver<ToMaster>,
    /// The master has answered on the present stream.
    is_open: bool,
    /// The last push: the master's life, and its number.
    heard: Option<(u64, u64)>,
    /// Who may connect to the store here, when not everybody may.
    allowed: Option<Allowed>,
    /// The round whose store is here and whose members are not known yet.
    hosted: Option<Round>,
    desk: Arc<Desk>,
    started: Instant,
    /// Connections whose streams were given up. They are closed when another stream is open, or with the process: a
    /// master that sees one closed takes the launcher for dead, and its workers for gone.
    kept: Vec<Channel>,
}

/// A stream that is open.
#[derive(Debug, Clone, Copy)]
struct Welcome {
    /// When the first beat is due; `None`: none is wanted.
    beat: Option<Duration>,
    /// The stream's number.
    session: u64,
    /// How long the answer to a beat may take.
    timeout: Duration,
}

/// The agent is gone; nothing is left to do.
struct AgentGone;

impl<E: From<Event>> MasterConnection<E> {
    /// Ends when the agent is gone.
    async fn run(&mut self) {
        let mut pause = FIRST_PAUSE;
        let mut was_ever_open = false;
        loop {
            self.is_open = false;
            let conversed = self.converse().await;
            self.desk.set_hears(false);
            let error = match conversed {
                Ok(AgentGone) => return,
                Err(error) => error,
            };
            was_ever_open |= self.is_open;
            let error = match error {
                LinkError::BrokeOff { at } if !was_ever_open && self.connector.is_tcp_store().await => {
                    LinkError::Torchrun { at }
                }
                error => error,
            };
            if self.is_open {
                pause = FIRST_PAUSE;
            }
            let reason = chain(&error);
            let is_final = error.is_final(was_ever_open);
            let event =
                if is_final { Event::Pushed(Push::Refused { reason }) } else { Event::MasterAway { reason } };
            if self.tell(event).await.is_some() || is_final {
                return;
            }
            if self.drop_words_for(jittered(pause)).await.is_some() {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What is said while there is no stream is said again from the agent's state.
    async fn drop_words_for(&mut self, wait: Duration) -> Option<AgentGone> {
        let over = sleep(wait);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return None,
                word = self.words.recv() => if word.is_none() {
                    return Some(AgentGone);
                },
            }
        }
    }

    /// One stream, from its opening to its end.
    async fn converse(&mut self) -> Result<AgentGone, LinkError> {
        let sent = Instant::now();
        let (mut client, mut pushes) = self.subscribe().await?;
        let welcome = self.welcome(&mut pushes).await?;
        // The last one is this one's.
        self.kept.drain(..self.kept.len().saturating_sub(1));
        // Before the first beat: see `Desk`.
        self.desk.set_hears(true);
        self.is_open = true;
        while self.words.try_recv().is_ok() {}
        if self.tell(self.heard_at(sent)).await.is_some() || self.tell(Event::MasterBack).await.is_some() {
            return Ok(AgentGone);
        }
        // Beside everything else: a word that takes long to be answered makes the node no less alive.
        let beats = self.beats(client.clone(), welcome);
        let talk = self.talk(&mut client, &mut pushes, welcome);
        tokio::select! {
            ended = talk => ended,
            error = beats => Err(error),
        }
    }

    /// Words and pushes, until the stream is no more.
    async fn talk(
        &mut self,
        client: &mut MasterClient<Channel>,
        pushes: &mut Streaming<pb::StreamMessage>,
        welcome: Welcome,
    ) -> Result<AgentGone, LinkError> {
        self.let_members_in(client).await?;
        loop {
            tokio::select! {
                word = self.words.recv() => match word {
                    Some(word) => {
                        if self.say(client, word).await?.is_some() {
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
                    if self.tell(event).await.is_some() {
                        return Ok(AgentGone);
                    }
                    // Not where nobody beats: alone in one process there is nothing to tell.
                    if let (Some(round), Some(_)) = (seat, welcome.beat) {
                        self.take_seat(client, round, welcome).await?;
                    }
                    self.let_members_in(client).await?;
                }
            }
        }
    }

    /// The master has answered what was said then.
    fn heard_at(&self, sent: Instant) -> Event {
        Event::Heard { sent: Moment::new(sent.saturating_duration_since(self.started)) }
    }

    /// Says that the node lives, for as long as the master wants to hear it and listens. Each beat waits for the answer to
    /// the one before: what the master makes of that is in `rules::presence`.
    fn beats(
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
                if events.send(Event::Heard { sent }.into()).await.is_err() {
                    break;
                }
            }
            std::future::pending().await
        }
    }

    /// Tells the store here whom it may listen to, once a round has its members.
    async fn let_members_in(&mut self, client: &mut MasterClient<Channel>) -> Result<(), LinkError> {
        let (Some(round), Some(allowed)) = (self.hosted, self.allowed.clone()) else { return Ok(()) };
        let world = self.connector.signed(pb::ShowWorldRequest {});
        let world = self.connector.answered(client.show_world(world)).await?;
        // Another round is on its way, and its seats will be told.
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

    async fn tell(&self, event: Event) -> Option<AgentGone> {
        self.events.send(event.into()).await.is_err().then_some(AgentGone)
    }

    async fn subscribe(
        &mut self,
    ) -> Result<(MasterClient<Channel>, Streaming<pb::StreamMessage>), LinkError> {
        let channel = self.connector.open().await?;
        // From here on the master may know of it.
        if self.kept.len() >= MOST_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(channel.clone());
        let mut client = MasterClient::new(channel);
        let request = pb::SubscribeRequest {
            protocol_version: master_proto::PROTOCOL_VERSION,
            node_id: self.node.0.clone(),
        };
        let pushes = self.connector.answered(client.subscribe(self.connector.signed(request))).await?;
        Ok((client, pushes))
    }

    /// The first push.
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
        StreamMessage::try_from(push).map_err(|source| LinkError::Nonsense { at: at(), source })
    }

    /// `None` for what was heard before, is the link's own affair, or is beyond this agent.
    fn event(&mut self, StreamMessage { epoch, seq, payload }: StreamMessage) -> Option<Event> {
        if self.heard.is_some_and(|(life, last)| life == epoch && seq <= last) {
            return None;
        }
        self.heard = Some((epoch, seq));
        match payload? {
            Payload::Welcome { .. } => None,
            Payload::Push(push) => Some(Event::Pushed(push)),
        }
    }

    async fn say(
        &mut self,
        client: &mut MasterClient<Channel>,
        word: ToMaster,
    ) -> Result<Option<AgentGone>, LinkError> {
        let node_id = self.node.0.clone();
        match word {
            ToMaster::Join(request) => {
                self.connector.answered(client.join(self.connector.signed(join_request(request)))).await?;
            }
            ToMaster::Resume(request, claim) => {
                let request = pb::ResumeRequest::from((request, claim));
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
            ToMaster::Failure { round, reason, gives_up } => {
                let report = pb::FailureReport { node_id, round: round.0, reason: cut(reason), gives_up };
                self.connector.answered(client.report_failure(self.connector.signed(report))).await?;
            }
            ToMaster::End(end) => {
                let is_farewell = !matches!(end, NodeEnd::Succeeded { .. });
                let report = end_report(&self.node, end);
                self.connector.answered(client.report_end(self.connector.signed(report))).await?;
                if is_farewell {
                    return Ok(self.tell(Event::EndNoted).await);
                }
            }
            ToMaster::AcknowledgeEnd => {
                let word = pb::EndAcknowledgement { node_id };
                self.connector.answered(client.acknowledge_end(self.connector.signed(word))).await?;
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

    /// What the transport says of itself is no news to a person; what the master says is.
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

/// Somewhere between half of it and all of it, so that a thousand agents do not come back in one moment.
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
        let (secret, desk, started) = (NodeSecret::new("of a node"), Arc::default(), Instant::now());
        LinkParts { master, secret, allowed: None, desk, started }
    }

    /// The path is back: what was sent before is not acknowledged in time, the attempt that is on fails, a pause follows,
    /// and the next attempt gets through.
    #[test]
    fn a_node_is_back_within_the_gap_that_a_master_waits_for() {
        let gap = connect::ACKNOWLEDGE + connect::CONNECT + LONGEST_PAUSE;
        assert!(gap < rules::liveness::LONGEST_GAP, "{gap:?}");
    }

    #[tokio::test]
    async fn a_torchrun_that_serves_the_meeting_is_named() {
        let listeners = store::bind_loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let _torchruns = store::StoreServer::start(listeners, store::Limits::default()).unwrap();
        let master =
            MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
        let (events, mut told) = mpsc::channel::<Event>(16);
        let _link = start(parts(master), events);
        let Some(Event::MasterAway { reason }) = told.recv().await else { panic!("it is no master") };
        assert!(
            reason.contains(&format!("at 127.0.0.1:{port} the other side speaks torchrun's rendezvous")),
            "{reason}"
        );
    }

    #[tokio::test]
    async fn a_port_that_only_hangs_up_is_not_called_a_torchrun() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _hangs_up = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let master =
            MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
        let (events, mut told) = mpsc::channel::<Event>(16);
        let _link = start(parts(master), events);
        let Some(Event::MasterAway { reason }) = told.recv().await else { panic!("it is no master") };
        assert!(!reason.contains("torchrun"), "{reason}");
    }

    #[test]
    fn a_pause_is_never_longer_than_it_was_meant_to_be() {
        for _ in 0..100 {
            let pause = jittered(LONGEST_PAUSE);
            assert!(LONGEST_PAUSE / 2 <= pause && pause <= LONGEST_PAUSE, "{pause:?}");
        }
    }
}
