//! gRPC calls -> events for the job's owner. No decisions and no locks here.

use std::{
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
};

use master_proto::{
    PROTOCOL_VERSION,
    convert::{ConvertError, Push},
    pb,
};
use rules::{
    NodeId,
    job::{Event, JoinRequest},
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use crate::job_loop::{Command, PUSHES};

/// The master's calls.
#[derive(Debug)]
pub struct MasterService {
    commands: mpsc::Sender<Command>,
    /// Numbers the streams, so that the end of an old one is told from the end of its successor.
    attendances: AtomicU64,
}

impl MasterService {
    /// Calls go to whoever reads `commands`.
    #[must_use]
    pub fn new(commands: mpsc::Sender<Command>) -> Self {
        Self { commands, attendances: AtomicU64::new(0) }
    }

    async fn happened(&self, event: Event) -> Result<(), Status> {
        let (noted, answer) = oneshot::channel();
        self.send(Command::Happened { event, noted }).await?;
        answer.await.map_err(|_| over())
    }

    async fn send(&self, command: Command) -> Result<(), Status> {
        self.commands.send(command).await.map_err(|_| over())
    }
}

fn over() -> Status {
    Status::unavailable("the job is over")
}

fn invalid(error: ConvertError) -> Status {
    Status::invalid_argument(error.to_string())
}

type PushStream = Pin<Box<dyn Stream<Item = Result<pb::Push, Status>> + Send>>;

#[tonic::async_trait]
impl pb::master_server::Master for MasterService {
    type AttendStream = PushStream;

    async fn attend(&self, request: Request<pb::AttendRequest>) -> Result<Response<PushStream>, Status> {
        let request = request.into_inner();
        if request.protocol_version != PROTOCOL_VERSION {
            return Err(Status::failed_precondition(format!(
                "this master speaks protocol version {PROTOCOL_VERSION}, the agent speaks {}; install the same \
                 release on every node",
                request.protocol_version
            )));
        }
        let node = NodeId::try_from(request).map_err(invalid)?;
        let (pushes, stream) = mpsc::channel(PUSHES);
        let attendance = self.attendances.fetch_add(1, Ordering::Relaxed);
        let (attended, answer) = oneshot::channel();
        self.send(Command::Attend { node: node.clone(), attendance, pushes, attended }).await?;
        answer.await.map_err(|_| over())?;
        // `open` lives as long as tonic keeps the stream, however that ends.
        let (open, closed) = oneshot::channel::<()>();
        let commands = self.commands.clone();
        tokio::spawn(async move {
            let _closed = closed.await;
            // When the owner is gone too, nobody needs to know.
            let _gone = commands.send(Command::StreamClosed { node, attendance }).await;
        });
        let pushes = ReceiverStream::new(stream).map(move |push: Push| {
            let _until_dropped = &open;
            Ok(push.into())
        });
        Ok(Response::new(Box::pin(pushes)))
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Result<Response<pb::JoinReply>, Status> {
        let request = JoinRequest::try_from(request.into_inner()).map_err(invalid)?;
        self.happened(Event::Joined(request)).await?;
        Ok(Response::new(pb::JoinReply {}))
    }

    async fn report_hosting(
        &self,
        request: Request<pb::HostingReport>,
    ) -> Result<Response<pb::HostingReply>, Status> {
        self.happened(Event::try_from(request.into_inner()).map_err(invalid)?).await?;
        Ok(Response::new(pb::HostingReply {}))
    }

    async fn report_end(&self, request: Request<pb::EndReport>) -> Result<Response<pb::EndReply>, Status> {
        self.happened(Event::try_from(request.into_inner()).map_err(invalid)?).await?;
        Ok(Response::new(pb::EndReply {}))
    }
}
