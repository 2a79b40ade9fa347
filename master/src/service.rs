//! gRPC calls -> events for the job's owner. No decisions here.

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
    convert::{ConvertError, Join, StreamMessage, resume_request, speaker},
    pb,
    trust::{Token, check_speaker},
};
use rules::{NodeId, Round, job::Event};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Extensions, Request, Response, Status, metadata::MetadataMap, service::Interceptor};

use crate::{
    admission::Peer,
    job_loop::{Command, Heed, Rejected},
    journal::random,
    lines::{Log, Once},
    streams::{MOST_SUBSCRIBERS, PUSHES},
};

/// The master's calls.
#[derive(Debug)]
pub(crate) struct MasterService {
    commands: mpsc::Sender<Command>,
    /// Numbers the streams, so that the end of an old one is told from the end of its successor. They begin anywhere: a
    /// beat beside a stream of an earlier life of the master is not one beside a stream of this one.
    sessions: AtomicU64,
    refusals: Once,
}

/// Lets calls pass that carry the job's token, or all where there is none.
pub(crate) fn auth_interceptor(
    token: Option<Token>,
    log: Log,
) -> impl Interceptor + Clone + Send + Sync + 'static {
    let refusals = Arc::new(Once::new(log));
    move |request: Request<()>| {
        if let Some(token) = &token
            && let Err(refused) = token.check(&request)
        {
            if let Some(peer) = Peer::of(request.extensions()) {
                refusals.say(peer.ip, "token", "refused a call: the job token is missing or wrong");
            }
            return Err(refused);
        }
        Ok(request)
    }
}

impl MasterService {
    /// Calls go to whoever reads `commands`.
    pub(crate) fn new(commands: mpsc::Sender<Command>, log: Log) -> Self {
        Self { commands, sessions: AtomicU64::new(random() >> 1), refusals: Once::new(log) }
    }

    /// What a message means, or the field that makes no sense; and whether it is from the node that it speaks for.
    fn decode<T>(
        &self,
        (metadata, from): (&MetadataMap, &Extensions),
        call: &'static str,
        meaning: Result<T, ConvertError>,
        node: impl FnOnce(&T) -> Option<&NodeId>,
    ) -> Result<T, Status> {
        let peer = Peer::of(from);
        let refuse = |kind, words: &dyn std::fmt::Display| {
            if let Some(peer) = peer {
                self.refusals.say(peer.ip, kind, format_args!("refused its {call}: {words}"));
            }
        };
        let meaning = meaning.map_err(|error| {
            refuse(call, &error);
            Status::invalid_argument(error.to_string())
        })?;
        if let Some(node) = node(&meaning) {
            check_speaker(metadata, node).inspect_err(|refused| refuse("secret", &refused.message()))?;
        }
        if let Some(peer) = peer {
            peer.made_sense();
        }
        Ok(meaning)
    }

    /// An event that a node tells of itself.
    async fn told(
        &self,
        sent_by: (&MetadataMap, &Extensions),
        call: &'static str,
        event: Result<Event, ConvertError>,
    ) -> Result<(), Status> {
        let event = self.decode(sent_by, call, event, Event::speaker)?;
        self.happened(sent_by.1, event).await
    }

    async fn happened(&self, from: &Extensions, event: Event) -> Result<(), Status> {
        let event = Box::new(event);
        let heard = self.ask(|noted| Command::Happened { event, noted }).await?.map_err(rejected)?;
        if let (Heed::Member, Some(peer)) = (heard, Peer::of(from)) {
            peer.has_part();
        }
        Ok(())
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Status> {
        let (answered, answer) = oneshot::channel();
        self.commands.send(command(answered)).await.map_err(|_| over())?;
        answer.await.map_err(|_| over())
    }
}

fn over() -> Status {
    Status::unavailable("the job is over, or its master is about to end")
}

fn crowded() -> Status {
    Status::resource_exhausted(
        "this connection carries the streams of other nodes; a launcher has a connection of its own",
    )
}

fn rejected(why: Rejected) -> Status {
    match why {
        Rejected::NotSubscribed => Status::failed_precondition(
            "the master has no open stream of this node; attend first, then join or resume",
        ),
        Rejected::Full => Status::resource_exhausted(format!(
            "{MOST_SUBSCRIBERS} nodes attend this master, which is as many as it takes"
        )),
    }
}

/// The address a call comes from.
fn sender(from: &Extensions) -> String {
    Peer::of(from).map_or_else(String::new, |peer| peer.ip.to_string())
}

type PushStream = Pin<Box<dyn Stream<Item = Result<pb::Push, Status>> + Send>>;

#[tonic::async_trait]
impl pb::master_server::Master for MasterService {
    type SubscribeStream = PushStream;

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
            self.decode((&metadata, &from), "attendance", speaker(request.node_id), |node| Some(node))?;
        let counted = match Peer::of(&from) {
            Some(peer) => Some(peer.subscribes().ok_or_else(crowded)?),
            None => None,
        };
        let (pushes, words) = mpsc::channel(PUSHES);
        let session = self.sessions.fetch_add(1, Ordering::Relaxed);
        // `open` lives as long as this call and then the stream, however that ends.
        let (open, closed) = oneshot::channel::<()>();
        let (commands, gone) = (self.commands.clone(), node.clone());
        let peer = Peer::of(&from).cloned();
        tokio::spawn(async move {
            let _closed = closed.await;
            drop(counted);
            let ended = peer.as_ref().and_then(Peer::has_ended);
            // When the owner is gone too, nobody needs to know.
            let _gone = commands.send(Command::Closed { node: gone.clone(), session, ended }).await;
            // A stream ends before its connection does: with a launcher that ends, or when the master gives it up.
            if let (Some(peer), None) = (peer, ended) {
                let ended = peer.ended().await;
                let _gone = commands.send(Command::Ended { node: gone, session, ended }).await;
            }
        });
        let heed = self.ask(|subscribed| Command::Subscribe { node, session, pushes, subscribed });
        if let (Heed::Member, Some(peer)) = (heed.await?.map_err(rejected)?, Peer::of(&from)) {
            peer.has_part();
        }
        let pushes = ReceiverStream::new(words).map(move |word| {
            let _until_dropped = &open;
            Ok(StreamMessage::from(word).into())
        });
        Ok(Response::new(Box::pin(pushes)))
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Result<Response<pb::JoinReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let join =
            self.decode((&metadata, &from), "join", Join::try_from(request), |join| Some(join.speaker()))?;
        self.happened(&from, Event::Joined(join.from_peer(|| sender(&from)))).await?;
        Ok(Response::new(pb::JoinReply {}))
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Result<Response<pb::ResumeReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let event = resume_request(request, || sender(&from));
        self.told((&metadata, &from), "resume", event).await?;
        Ok(Response::new(pb::ResumeReply {}))
    }

    async fn report_hosting(
        &self,
        request: Request<pb::HostingReport>,
    ) -> Result<Response<pb::HostingReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.told((&metadata, &from), "hosting report", Event::try_from(request)).await?;
        Ok(Response::new(pb::HostingReply {}))
    }

    async fn report_inventory(
        &self,
        request: Request<pb::InventoryReport>,
    ) -> Result<Response<pb::InventoryReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.told((&metadata, &from), "inventory", Event::try_from(request)).await?;
        Ok(Response::new(pb::InventoryReply {}))
    }

    async fn report_check(
        &self,
        request: Request<pb::CheckReport>,
    ) -> Result<Response<pb::CheckReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.told((&metadata, &from), "check report", Event::try_from(request)).await?;
        Ok(Response::new(pb::CheckReply {}))
    }

    async fn report_failure(
        &self,
        request: Request<pb::FailureReport>,
    ) -> Result<Response<pb::FailureReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.told((&metadata, &from), "failure report", Event::try_from(request)).await?;
        Ok(Response::new(pb::FailureReply {}))
    }

    async fn report_end(&self, request: Request<pb::EndReport>) -> Result<Response<pb::EndReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        self.told((&metadata, &from), "end report", Event::try_from(request)).await?;
        Ok(Response::new(pb::EndReply {}))
    }

    async fn acknowledge_end(
        &self,
        request: Request<pb::EndAcknowledgement>,
    ) -> Result<Response<pb::EndAcknowledgementReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let node =
            self.decode((&metadata, &from), "acknowledgement", speaker(request.node_id), |node| Some(node))?;
        self.happened(&from, Event::EndAcknowledged { node }).await?;
        Ok(Response::new(pb::EndAcknowledgementReply {}))
    }

    async fn beat(&self, request: Request<pb::BeatRequest>) -> Result<Response<pb::BeatReply>, Status> {
        let (metadata, from, request) = request.into_parts();
        let node = self.decode((&metadata, &from), "beat", speaker(request.node_id), |node| Some(node))?;
        let (seat, session) = (request.taken_round.map(Round), request.session);
        let heard = self.ask(|heard| Command::Beat { node, session, seat, heard }).await?;
        let millis = |next: Duration| u64::try_from(next.as_millis()).unwrap_or(u64::MAX);
        let next_millis = heard.next.map_or(0, millis);
        Ok(Response::new(pb::BeatReply { is_known: heard.is_known, next_millis }))
    }

    async fn show_world(
        &self,
        _request: Request<pb::ShowWorldRequest>,
    ) -> Result<Response<pb::WorldTable>, Status> {
        Ok(Response::new(self.ask(|shown| Command::ShowWorld { shown }).await?))
    }

    async fn show_taint_report(
        &self,
        _request: Request<pb::ShowTaintReportRequest>,
    ) -> Result<Response<pb::TaintReport>, Status> {
        let json = self.ask(|shown| Command::ShowTaintReport { shown }).await?;
        Ok(Response::new(pb::TaintReport { json: json.as_ref().to_owned() }))
    }
}
