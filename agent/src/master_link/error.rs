//! Why there is no stream to the master.

use std::time::Duration;

use master_proto::convert::ConvertError;
use tonic::{Code, Status};

use super::ConnectError;

/// Why a stream ended, or could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the job master at {at} did not answer within {} s", timeout.as_secs_f64())]
    Silent { at: String, timeout: Duration },
    #[error(
        "a process accepts connections at {at} but does not answer: if it is another program, choose another port"
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
    pub(super) fn is_final(&self, was_open_once: bool) -> bool {
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
