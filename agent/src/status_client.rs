//! Asks a job master what its job is doing, as an observer: it joins nothing and is no node.

use master_proto::{
    pb::{self, master_client::MasterClient},
    trust::NodeSecret,
};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::master_link::{ConnectError, Connector, MasterAt, has_no_grpc_status, web_server_at};

/// A status has some 300 bytes for each node, 100 for each test of the last check, and a bounded rest.
const MAX_STATUS_BYTES: usize = 64 << 20;

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer is no job master of this release, or rejects the request, as with a wrong job token.
    #[error("the job master at {at} rejected the request: {}", reason.message())]
    Refused { at: String, reason: Box<Status> },
    /// A page of `--http`, for example.
    #[error("{}", web_server_at(at))]
    WebServer { at: String },
    /// The stream ended: the job is over, or its master is gone.
    #[error("the job master at {at} closed the connection")]
    Closed { at: String },
}

/// A connection to a job master.
#[derive(Debug)]
pub struct StatusClient {
    at: String,
    client: MasterClient<Channel>,
    connector: Connector,
}

/// The statuses of a job, as they change.
#[derive(Debug)]
pub struct StatusWatch {
    at: String,
    /// The first one, until it is asked for.
    first: Option<String>,
    statuses: Streaming<pb::JobStatus>,
}

impl StatusClient {
    /// Connects; 20 s at most.
    ///
    /// # Errors
    /// There is no job master, or its TLS files cannot be used.
    pub async fn connect(at: MasterAt) -> Result<Self, StatusError> {
        // The secret belongs to no node, and is never looked at.
        let connector = Connector::new(at, NodeSecret::new("an observer"));
        let client = MasterClient::new(connector.open().await?).max_decoding_message_size(MAX_STATUS_BYTES);
        Ok(Self { at: connector.to_string(), client, connector })
    }

    /// Asks once. Returns the document `dlrover.job-status/v1`.
    ///
    /// # Errors
    /// The master refuses, or is gone.
    pub async fn status(&mut self) -> Result<String, StatusError> {
        let request = self.connector.signed(pb::ShowStatusRequest {});
        match self.client.show_status(request).await {
            Ok(reply) => Ok(reply.into_inner().json),
            Err(reason) => Err(self.refused(reason).await),
        }
    }

    /// Follows the status.
    ///
    /// # Errors
    /// The master refuses, or is gone.
    pub async fn watch(&mut self) -> Result<StatusWatch, StatusError> {
        let request = self.connector.signed(pb::WatchStatusRequest {});
        let asked = async {
            let mut statuses = self.client.watch_status(request).await?.into_inner();
            // A refusal may come as an answer without a status.
            let first = statuses.message().await?.map(|status| status.json);
            Ok((first, statuses))
        };
        match asked.await {
            Ok((first, statuses)) => Ok(StatusWatch { at: self.at.clone(), first, statuses }),
            Err(reason) => Err(self.refused(reason).await),
        }
    }

    async fn refused(&self, reason: Status) -> StatusError {
        // A master that refuses has a reason with another code, and need not be asked what it is.
        let is_foreign = has_no_grpc_status(&reason)
            || matches!(reason.code(), Code::Internal | Code::Unknown | Code::Unavailable);
        if is_foreign && self.connector.is_web_server().await {
            return StatusError::WebServer { at: self.at.clone() };
        }
        StatusError::Refused { at: self.at.clone(), reason: Box::new(reason) }
    }
}

impl StatusWatch {
    /// The next status; `None` when the job is over and the last one was returned.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn next(&mut self) -> Result<Option<String>, StatusError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        match self.statuses.message().await {
            Ok(status) => Ok(status.map(|status| status.json)),
            Err(_) => Err(StatusError::Closed { at: self.at.clone() }),
        }
    }
}
