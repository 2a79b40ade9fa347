//! The job master: a thin shell around [`rules::job`].
//!
//! [`job_loop`] owns the state and carries effects out; [`service`] turns calls into events and back.

pub mod job_loop;
pub mod service;

use std::io;

use master_proto::pb::master_server::MasterServer;
use rules::{job::JobLimits, worker_group::JobVerdict};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_stream::Stream;
use tonic::transport::Server;

/// Words that may wait for the job's owner before callers are held back.
const QUEUE: usize = 1024;

/// Why the master stopped without a verdict.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The gRPC server ended.
    #[error("the job master's server stopped")]
    Server(#[source] tonic::transport::Error),
}

/// Serves one job on connections that the caller accepts, until the job is over.
///
/// # Errors
/// When the server cannot go on.
pub async fn serve(
    connections: impl Stream<Item = io::Result<TcpStream>>,
    limits: JobLimits,
) -> Result<JobVerdict, MasterError> {
    let (commands, inbox) = mpsc::channel(QUEUE);
    let service = MasterServer::new(service::MasterService::new(commands));
    // Small windows and frames suffice for small messages, and nothing here is latency-hidden by batching.
    let server = Server::builder().tcp_nodelay(true).add_service(service).serve_with_incoming(connections);
    tokio::select! {
        verdict = job_loop::JobLoop::new(limits, inbox).run() => Ok(verdict),
        ended = server => match ended {
            Err(source) => Err(MasterError::Server(source)),
            // The caller stopped accepting; nobody can be served any more.
            Ok(()) => std::future::pending().await,
        },
    }
}
