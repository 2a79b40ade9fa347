//! The agent's side of the wire: one task that speaks to the master in the order in which it was told to,
//! and turns what the master pushes into events. A failure of any call reaches the agent as
//! [`Event::MasterLost`].

use std::{net::SocketAddr, time::Duration};

use master_proto::{
    PROTOCOL_VERSION,
    convert::{Push, end_report},
    pb::{self, master_client::MasterClient},
};
use rules::{
    NodeId, Round,
    job::{JoinRequest, NodeEnd},
    worker_group::Event,
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::chain;

/// How long the master may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long the master may take to acknowledge a call. It only takes note; what follows is pushed.
const CALL: Duration = Duration::from_secs(10);

/// What the agent says to the master.
#[derive(Debug)]
pub enum Word {
    /// Ask for a seat.
    Join(JoinRequest),
    /// The store of a round is open.
    Hosting { round: Round, master_addr: String, master_port: u16 },
    /// This node's part is over.
    End(NodeEnd),
}

/// Why the master is lost.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("cannot connect to the job master at {address}")]
    Connect {
        address: SocketAddr,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("the job master at {address} did not answer within {} s", CALL.as_secs())]
    Silent { address: SocketAddr },
    #[error("the job master at {address} said: {}", status.message())]
    Refused { address: SocketAddr, status: Status },
    #[error("the connection to the job master at {address} broke off")]
    BrokeOff { address: SocketAddr },
    #[error("the job master at {address} said what makes no sense: {source}")]
    Nonsense { address: SocketAddr, source: master_proto::convert::ConvertError },
}

/// Starts the task. Words go in by the returned channel; events come out by `events`.
pub fn start<E>(address: SocketAddr, node: NodeId, events: mpsc::Sender<E>) -> mpsc::UnboundedSender<Word>
where
    E: From<Event> + Send + 'static,
{
    // Unbounded, because the agent says a handful of words a round and must never wait to say them.
    let (words, inbox) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut link = Link { address, node, events, words: inbox };
        if let Err(error) = link.run().await {
            let reason = chain(&error);
            // The agent may be gone by now.
            let _gone = link.events.send(Event::MasterLost { reason }.into()).await;
        }
    });
    words
}

struct Link<E> {
    address: SocketAddr,
    node: NodeId,
    events: mpsc::Sender<E>,
    words: mpsc::UnboundedReceiver<Word>,
}

impl<E: From<Event>> Link<E> {
    /// Ends well when the agent is gone.
    async fn run(&mut self) -> Result<(), LinkError> {
        let address = self.address;
        let (mut client, mut pushes) = self.attend().await?;
        loop {
            tokio::select! {
                word = self.words.recv() => match word {
                    Some(word) => self.say(&mut client, word).await?,
                    None => return Ok(()),
                },
                push = pushes.message() => {
                    let push = push.map_err(|status| LinkError::Refused { address, status })?;
                    let push = push.ok_or(LinkError::BrokeOff { address })?;
                    let push = Push::try_from(push)
                        .map_err(|source| LinkError::Nonsense { address, source })?;
                    if self.events.send(event(push).into()).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn attend(&self) -> Result<(MasterClient<Channel>, Streaming<pb::Push>), LinkError> {
        let address = self.address;
        let connect = |source| LinkError::Connect { address, source };
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(connect)?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(connect)?;
        let mut client = MasterClient::new(channel);
        let request = pb::AttendRequest { protocol_version: PROTOCOL_VERSION, node_id: self.node.0.clone() };
        let pushes = self.answered(client.attend(request)).await?;
        Ok((client, pushes))
    }

    async fn say(&self, client: &mut MasterClient<Channel>, word: Word) -> Result<(), LinkError> {
        match word {
            Word::Join(request) => {
                self.answered(client.join(pb::JoinRequest::from(request))).await?;
            }
            Word::Hosting { round, master_addr, master_port } => {
                let report = pb::HostingReport {
                    node_id: self.node.0.clone(),
                    round: round.0,
                    master_addr,
                    master_port: u32::from(master_port),
                };
                self.answered(client.report_hosting(report)).await?;
            }
            Word::End(end) => {
                self.answered(client.report_end(end_report(&self.node, end))).await?;
            }
        }
        Ok(())
    }

    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, LinkError> {
        let address = self.address;
        match timeout(CALL, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if status.code() == Code::Unavailable => Err(LinkError::BrokeOff { address }),
            Ok(Err(status)) => Err(LinkError::Refused { address, status }),
            Err(_) => Err(LinkError::Silent { address }),
        }
    }
}

fn event(push: Push) -> Event {
    match push {
        Push::Host { round } => Event::AskedToHost { round },
        Push::World(world) => Event::Seated { world },
        Push::Regroup { round } => Event::Regroup { round },
        Push::Refused { reason } => Event::MasterLost { reason },
        Push::JobEnd(verdict) => Event::JobEnded { verdict },
    }
}
