//! Turns gRPC calls into commands for the job's owner. Decides nothing.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use master_proto::{
    PROTOCOL_VERSION,
    convert::{
        CheckpointMessage, ConvertError, Join, ProgressMessage, StacksPart, StreamMessage, resume_request,
        sender,
    },
    pb,
    trust::{TOKEN_REQUIRED, Token, check_sender},
};
use rules::{NodeId, Round, job::Event, job_status::JobStatus};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    Extensions, Request, Response, Status,
    metadata::{MetadataMap, MetadataValue},
    service::Interceptor,
};

use crate::{
    admission::Peer,
    job_loop::{Caller, Command, Rejected},
    journal::random,
    log::{Log, OncePerPeer},
    status_feed::StatusFeed,
    streams::{MAX_SUBSCRIBERS, QUEUED_MESSAGES},
};

/// The master's calls.
#[derive(Debug)]
pub(crate) struct MasterService {
    commands: mpsc::Sender<Command>,
    /// The number of the next stream, which tells it from its successors. The first is random, so that a heartbeat for
    /// a stream of an earlier life of the master is recognised.
    sessions: AtomicU64,
    refusals: OncePerPeer,
    feed: StatusFeed,
}

/// A call had the job's token, which this master requires.
#[derive(Debug, Clone, Copy)]
struct TokenChecked;

/// Rejects calls without the job's token, if it has one.
pub(crate) fn auth_interceptor(
    token: Option<Token>,
    log: Log,
) -> impl Interceptor + Clone + Send + Sync + 'static {
    let refusals = Arc::new(OncePerPeer::new(log));
    move |mut request: Request<()>| {
        if let Some(token) = &token
            && let Err(refused) = token.check(&request)
        {
            if let Some(peer) = Peer::of(request.extensions()) {
                refusals.log(peer.ip, "token", "rejected a call: the job token is missing or wrong");
            }
            return Err(refused);
        }
        if token.is_some() {
            mark_valid(request.extensions());
            request.extensions_mut().insert(TokenChecked);
        }
        Ok(request)
    }
}

impl MasterService {
    /// Sends what is called to `commands`.
    pub(crate) fn new(commands: mpsc::Sender<Command>, feed: StatusFeed, log: Log) -> Self {
        let sessions = AtomicU64::new(random() >> 1);
        Self { commands, sessions, refusals: OncePerPeer::new(log), feed }
    }

    /// Validates a message, and that it is from the node that it names.
    fn decode<T>(
        &self,
        (metadata, from): (&MetadataMap, &Extensions),
        call: &'static str,
        message: Result<T, ConvertError>,
        node: impl FnOnce(&T) -> Option<&NodeId>,
    ) -> Result<T, Status> {
        let peer = Peer::of(from);
        let refuse = |kind, reason: &dyn std::fmt::Display| {
            if let Some(peer) = peer {
                self.refusals.log(peer.ip, kind, format_args!("its {call} was rejected: {reason}"));
            }
        };
        let message = message.map_err(|error| {
            refuse(call, &error);
            Status::invalid_argument(error.to_string())
        })?;
        if let Some(node) = node(&message) {
            check_sender(metadata, node).inspect_err(|refused| refuse("secret", &refused.message()))?;
        }
        mark_valid(from);
        Ok(message)
    }

    /// Records an event that a node reports of itself.
    async fn report(
        &self,
        sent_by: (&MetadataMap, &Extensions),
        call: &'static str,
        event: Result<Event, ConvertError>,
    ) -> Result<(), Status> {
        let event = self.decode(sent_by, call, event, Event::speaker)?;
        self.record(sent_by.1, event, None).await
    }

    async fn record(&self, from: &Extensions, event: Event, session: Option<u64>) -> Result<(), Status> {
        let event = Box::new(event);
        let caller = self.ask(|reply| Command::Event { event, session, reply }).await?.map_err(rejected)?;
        if let (Caller::Member, Some(peer)) = (caller, Peer::of(from)) {
            peer.mark_member();
        }
        Ok(())
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Status> {
        let (answered, answer) = oneshot::channel();
        self.commands.send(command(answered)).await.map_err(|_| over())?;
        answer.await.map_err(|_| over())
    }
}

/// The connection of a valid call stays open: a follower of the status makes no further call on it.
fn mark_valid(from: &Extensions) {
    if let Some(peer) = Peer::of(from) {
        peer.mark_valid();
    }
}

/// The answer to calls after the end of the job.
fn over() -> Status {
    Status::unavailable("the job is over, or its master is about to exit")
}

/// The answer when the streams of too many nodes share one connection.
fn too_many_sessions() -> Status {
    Status::resource_exhausted(
        "this connection already carries the streams of other nodes; each launcher needs a connection of \
         its own, so a proxy must not share one between launchers",
    )
}

fn rejected(reason: Rejected) -> Status {
    match reason {
        Rejected::NotSubscribed => Status::failed_precondition(
            "the job master does not know this node's connection; the launcher reconnects by itself",
        ),
        Rejected::Full => Status::resource_exhausted(format!(
            "{MAX_SUBSCRIBERS} nodes are subscribed to this master, the maximum"
        )),
    }
}

/// Returns the address that a call comes from.
fn peer_address(from: &Extensions) -> String {
    Peer::of(from).map_or_else(String::new, |peer| peer.ip.to_string())
}

fn status_message(status: &JobStatus) -> Result<pb::JobStatus, Status> {
    let json = serde_json::to_string(status).map_err(|error| Status::internal(error.to_string()))?;
    Ok(pb::JobStatus { json })
}

type StatusStream = Pin<Box<dyn Stream<Item = Result<pb::JobStatus, Status>> + Send>>;

type PushStream = Pin<Box<dyn Stream<Item = Result<pb::StreamMessage, Status>> + Send>>;

#[tonic::async_trait]
impl pb::master_server::Master for MasterService {
    type SubscribeStream = PushStream;
    type WatchStatusStream = StatusStream;

    async fn subscribe(
        &self,
        request: Request<pb::SubscribeRequest>,
    ) -> Result<Response<PushStream>, Status> {
        let (metadata, from, request) = request.into_parts();
        if request.protocol_version != PROTOCOL_VERSION {
            return Err(Status::failed_precondition(format!(
                "this master speaks protocol version {PROTOCOL_VERSION}, the agent speaks {}; install the same \
                 release on every node",
                request.protocol_version
            )));
        }
        let node =
            self.decode((&metadata, &from), "subscription", sender(request.node_id), |node| Some(node))?;
        let counted_session = match Peer::of(&from) {
            Some(peer) => Some(peer.open_session().ok_or_else(too_many_sessions)?),
            None => None,
        };
        let (pushes, messages) = mpsc::channel(QUEUED_MESSAGES);
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        // `open` lives as long as this call and then the stream, however that ends.
        let (open, closed) = oneshot::channel::<()>();
        let (commands, gone) = (self.commands.clone(), node.clone());
        let peer = Peer::of(&from).cloned();
        tokio::spawn(async move {
            let _closed = closed.await;
            drop(counted_session);
            let ended = peer.as_ref().and_then(Peer::end);
            // The owner may be gone, too.
            let _gone = commands.send(Command::Closed { node: gone.clone(), session, ended }).await;
            // A stream ends before its connection: when the launcher exits, or when the master closes the stream.
            if let (Some(peer), None) = (peer, ended) {
                let ended = peer.ended().await;
                let _gone = commands.send(Command::Ended { node: gone, session, ended }).await;
            }
        });
        let caller = self.ask(|reply| Command::Subscribe { node, session, pushes, reply });
        if let (Caller::Member, Some(peer)) = (caller.await?.map_err(rejected)?, Peer::of(&from)) {
            peer.mark_member();
        }
        let pushes = ReceiverStream::new(messages).map(move |message| {
            let _until_dropped = &open;
            Ok(StreamMessage::from(message).into())
        });
        let mut reply: Response<PushStream> = Response::new(Box::pin(pushes));
        if from.get::<TokenChecked>().is_some() {
            reply.metadata_mut().insert(TOKEN_REQUIRED, MetadataValue::from_static("1"));
        }
        Ok(reply)
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Result<Response<pb::JoinReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let session = request.session;
        let join =
            self.decode((&metadata, &from), "join", Join::try_from(request), |join| Some(join.sender()))?;
        self.record(&from, Event::Joined(join.from_peer(|| peer_address(&from))), session).await?;
        Ok(Response::new(pb::JoinReply {}))
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Result<Response<pb::ResumeReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let session = request.node.as_ref().and_then(|node| node.session);
        let event = resume_request(request, || peer_address(&from));
        let event = self.decode((&metadata, &from), "resume", event, Event::speaker)?;
        self.record(&from, event, session).await?;
        Ok(Response::new(pb::ResumeReply {}))
    }

    async fn report_hosting(
        &self,
        request: Request<pb::HostingReport>,
    ) -> Result<Response<pb::HostingReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.report((&metadata, &from), "hosting report", Event::try_from(request)).await?;
        Ok(Response::new(pb::HostingReply {}))
    }

    async fn report_inventory(
        &self,
        request: Request<pb::InventoryReport>,
    ) -> Result<Response<pb::InventoryReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.report((&metadata, &from), "inventory", Event::try_from(request)).await?;
        Ok(Response::new(pb::InventoryReply {}))
    }

    async fn report_check(
        &self,
        request: Request<pb::CheckReport>,
    ) -> Result<Response<pb::CheckReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.report((&metadata, &from), "check report", Event::try_from(request)).await?;
        Ok(Response::new(pb::CheckReply {}))
    }

    async fn report_failure(
        &self,
        request: Request<pb::FailureReport>,
    ) -> Result<Response<pb::FailureReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.report((&metadata, &from), "failure report", Event::try_from(request)).await?;
        Ok(Response::new(pb::FailureReply {}))
    }

    async fn report_detail(
        &self,
        request: Request<pb::DetailReport>,
    ) -> Result<Response<pb::DetailReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.report((&metadata, &from), "detail report", Event::try_from(request)).await?;
        Ok(Response::new(pb::DetailReply {}))
    }

    async fn report_training(
        &self,
        request: Request<pb::TrainingReport>,
    ) -> Result<Response<pb::TrainingReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let message = ProgressMessage::try_from(request);
        let message =
            self.decode((&metadata, &from), "progress report", message, |message| Some(&message.node))?;
        self.ask(|reply| Command::Progress { message, reply }).await?;
        Ok(Response::new(pb::TrainingReply {}))
    }

    async fn report_stacks(
        &self,
        request: Request<pb::StacksPart>,
    ) -> Result<Response<pb::StacksReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let part = StacksPart::try_from(request);
        let part = self.decode((&metadata, &from), "stack report", part, |part| Some(&part.node))?;
        self.ask(|reply| Command::Stacks { part, reply }).await?.map_err(rejected)?;
        Ok(Response::new(pb::StacksReply {}))
    }

    async fn report_checkpoint(
        &self,
        request: Request<pb::CheckpointReport>,
    ) -> Result<Response<pb::CheckpointReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let message = CheckpointMessage::try_from(request);
        let message =
            self.decode((&metadata, &from), "checkpoint report", message, |message| Some(message.sender()))?;
        match message {
            CheckpointMessage::Report { node, report } => {
                self.record(&from, Event::CheckpointReported { node, report }, None).await?;
            }
            CheckpointMessage::Progress { node, progress } => {
                self.ask(|reply| Command::Checkpoints { node, progress, reply }).await?;
            }
        }
        Ok(Response::new(pb::CheckpointReply {}))
    }

    async fn report_end(&self, request: Request<pb::EndReport>) -> Result<Response<pb::EndReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.report((&metadata, &from), "end report", Event::try_from(request)).await?;
        Ok(Response::new(pb::EndReply {}))
    }

    async fn acknowledge_end(
        &self,
        request: Request<pb::EndAcknowledgement>,
    ) -> Result<Response<pb::EndAcknowledgementReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let node =
            self.decode((&metadata, &from), "acknowledgement", sender(request.node_id), |node| Some(node))?;
        self.record(&from, Event::EndAcknowledged { node }, None).await?;
        Ok(Response::new(pb::EndAcknowledgementReply {}))
    }

    async fn beat(&self, request: Request<pb::BeatRequest>) -> Result<Response<pb::BeatReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let node =
            self.decode((&metadata, &from), "heartbeat", sender(request.node_id), |node| Some(node))?;
        let (taken_round, session) = (request.taken_round.map(Round), request.session);
        let reply = self.ask(|reply| Command::Beat { node, session, taken_round, reply }).await?;
        let millis = |next: Duration| u64::try_from(next.as_millis()).unwrap_or(u64::MAX);
        let next_millis = reply.next.map_or(0, millis);
        Ok(Response::new(pb::BeatReply { is_known: reply.is_known, next_millis }))
    }

    async fn show_world(
        &self,
        request: Request<pb::ShowWorldRequest>,
    ) -> Result<Response<pb::WorldTable>, Status> {
        mark_valid(request.extensions());
        Ok(Response::new(self.ask(|reply| Command::ShowWorld { reply }).await?))
    }

    async fn show_taint_report(
        &self,
        request: Request<pb::ShowTaintReportRequest>,
    ) -> Result<Response<pb::TaintReport>, Status> {
        mark_valid(request.extensions());
        let json = self.ask(|reply| Command::ShowTaintReport { reply }).await?;
        Ok(Response::new(pb::TaintReport { json: json.as_ref().to_owned() }))
    }

    async fn show_status(
        &self,
        request: Request<pb::ShowStatusRequest>,
    ) -> Result<Response<pb::JobStatus>, Status> {
        mark_valid(request.extensions());
        let status = self.feed.status().await.ok_or_else(over)?;
        status_message(&status).map(Response::new)
    }

    async fn watch_status(
        &self,
        request: Request<pb::WatchStatusRequest>,
    ) -> Result<Response<StatusStream>, Status> {
        mark_valid(request.extensions());
        let (to, statuses) = mpsc::channel(1);
        tokio::spawn(self.feed.clone().follow(to, |status| Some(status_message(status))));
        Ok(Response::new(Box::pin(ReceiverStream::new(statuses))))
    }
}
