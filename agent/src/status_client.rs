//! Asks a job master what its job is doing, as an observer: it joins nothing and is no node.

use master_proto::{
    pb::{self, master_client::MasterClient},
    trust::NodeSecret,
};
use tonic::{Status, Streaming, transport::Channel};

use crate::master_link::{ConnectError, Connector, MasterAt};

/// A status has some 300 bytes for each node, 100 for each test of the last check, and a bounded rest.
const MAX_STATUS_BYTES: usize = 64 << 20;

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It is no job master of this release, or refuses: the token, for example.
    #[error("the job master at {at} refused: {}", reason.message())]
    Refused { at: String, reason: Box<Status> },
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
        let reply = self.client.show_status(request).await.map_err(|reason| self.refused(reason))?;
        Ok(reply.into_inner().json)
    }

    /// Follows the status.
    ///
    /// # Errors
    /// The master refuses, or is gone.
    pub async fn watch(&mut self) -> Result<StatusWatch, StatusError> {
        let request = self.connector.signed(pb::WatchStatusRequest {});
        let reply = self.client.watch_status(request).await.map_err(|reason| self.refused(reason))?;
        Ok(StatusWatch { at: self.at.clone(), statuses: reply.into_inner() })
    }

    fn refused(&self, reason: Status) -> StatusError {
        StatusError::Refused { at: self.at.clone(), reason: Box::new(reason) }
    }
}

impl StatusWatch {
    /// The next status; `None` when the job is over and the last one was returned.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn next(&mut self) -> Result<Option<String>, StatusError> {
        match self.statuses.message().await {
            Ok(status) => Ok(status.map(|status| status.json)),
            Err(_) => Err(StatusError::Closed { at: self.at.clone() }),
        }
    }
}
