//! The job master: a thin shell around [`rules::job_master`], which decides everything.
//!
//! [`job_loop`] owns the state, [`streams`] sends what was decided once [`journal`] has made it durable, [`service`]
//! turns calls into commands, [`admission`] and [`peer_limit`] bound the connections.
//!
//! An event is what happened, for a pure machine; a command is what a task is asked or told by others.

mod admission;
mod hang;
mod http;
mod job_loop;
mod journal;
mod loaded_job;
mod log;
pub mod peer_limit;
mod service;
mod status_feed;
mod streams;
mod taint_publisher;
mod tls;
mod topology;

use std::{fmt, future, io, path::PathBuf, pin::Pin, time::Duration};

use master_proto::{
    MAX_REQUEST_BYTES,
    pb::master_server::MasterServer,
    trust::{Token, Trust},
};
use rules::{job::Policy, liveness::Timeout, verdict::JobVerdict};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::Stream;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Server, ServerTlsConfig},
};

#[cfg(debug_assertions)]
pub use self::journal::crash::crash_at;
pub use self::{
    admission::max_connections,
    hang::{StacksConfig, job_folder},
    http::{HttpError, MpiOperatorLabels, Web, open_http},
    journal::JournalError,
    log::{Log, LogLine},
    taint_publisher::{TaintConfig, TaintFileError},
    tls::TlsError,
    topology::TopologyFileError,
};
pub use stacks::StackFolder;

use self::{
    job_loop::{JobLoop, StatusChange},
    log::LogTo,
    service::MasterService,
    status_feed::StatusFeed,
    taint_publisher::TaintPublisher,
};
#[doc(hidden)]
pub use self::{journal::bytes as journal_bytes, taint_publisher::taint_document};

/// Commands that may wait for the job's owner before callers are held back.
const QUEUE: usize = 1024;

/// Time limit of sending the last answers.
const FLUSH: Duration = Duration::from_secs(1);

/// Calls that one connection may have open: a stream, a heartbeat, a report, and cancelled ones not yet closed.
const CALLS: u32 = 32;

/// Bytes of metadata in one call. A token and gRPC's own take a few hundred.
const METADATA: u32 = 16 << 10;

/// Interval of HTTP/2 pings on a quiet connection, where heartbeats are on. Liveness does not depend on it; it closes
/// the connections of dead machines.
const PROBE: Duration = Duration::from_secs(20);

/// The configuration of a master.
pub struct MasterConfig {
    /// Of the job. A job that is found in `state_dir` keeps the policy that it was started with.
    pub policy: Policy,
    /// Time limits for nodes whose streams break, or that are silent.
    pub timeout: Timeout,
    /// Where the journal is; `None`: there is none.
    pub state_dir: Option<PathBuf>,
    /// Read for each round when `policy.has_topology`.
    pub topology_file: Option<PathBuf>,
    /// Where reports of network checks go.
    pub taints: TaintConfig,
    /// Where the stacks of a hang are written.
    pub stacks: StacksConfig,
    /// Token and TLS.
    pub trust: Trust,
    /// The web server; `None`: there is none.
    pub http: Option<Web>,
    /// Receives the entries of the master's log, without a prefix; an entry may have several lines.
    pub log: Log,
}

impl fmt::Debug for MasterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, timeout, state_dir, topology_file, taints, stacks, trust, http, log: _ } = self;
        f.debug_struct("MasterConfig")
            .field("policy", policy)
            .field("timeout", timeout)
            .field("state_dir", state_dir)
            .field("topology_file", topology_file)
            .field("taints", taints)
            .field("stacks", stacks)
            .field("trust", trust)
            .field("http", http)
            .finish_non_exhaustive()
    }
}

/// Why the master stopped without a verdict.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The gRPC server ended.
    #[error("the job master's server stopped")]
    Server(#[source] tonic::transport::Error),
    /// The web server (`--http`) cannot be started.
    #[error("cannot start the web server (--http)")]
    Http(#[source] io::Error),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The job's state.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Reads a topology file as a round does, so that a bad one is refused at the start.
///
/// # Errors
/// It cannot be read, or a line makes no sense.
pub fn check_topology(path: &std::path::Path) -> Result<(), TopologyFileError> {
    topology::read(path).map(drop)
}

/// Checks that a taint report can be written to `path`, so that a bad path is refused at the start.
///
/// # Errors
/// It cannot.
pub fn check_taint_report(path: &std::path::Path) -> Result<(), TaintFileError> {
    taint_publisher::check(path)
}

/// A master that has read its journal and its certificates, and does not serve yet.
#[derive(Debug)]
pub struct Prepared {
    found: loaded_job::StateDirContent,
    tls: Option<ServerTlsConfig>,
    timeout: Timeout,
    topology_file: Option<PathBuf>,
    taints: TaintConfig,
    stacks: StacksConfig,
    token: Option<Token>,
    http: Option<Web>,
    log: LogTo,
}

/// Serves one job on connections that the caller accepts, until the job is over and its nodes know it. Must be called
/// inside a runtime with IO and time.
///
/// # Errors
/// When certificates cannot be used, when the job's state cannot be read or kept, or the server fails.
pub async fn serve(
    connections: impl Stream<Item = io::Result<TcpStream>> + Send + 'static,
    config: MasterConfig,
) -> Result<JobVerdict, MasterError> {
    prepare(config)?.serve(connections).await
}

/// Reads certificates and state before the first connection. Waits for the disk where there is a `state_dir`.
///
/// # Errors
/// When certificates cannot be used, or the job's state cannot be read or kept.
pub fn prepare(config: MasterConfig) -> Result<Prepared, MasterError> {
    let MasterConfig { policy, timeout, state_dir, topology_file, taints, stacks, trust, http, log } = config;
    let Trust { token, tls } = trust;
    let tls = tls::of(&tls)?;
    let found = loaded_job::LoadedJob::load(state_dir.as_deref(), policy, timeout, &log)?;
    Ok(Prepared { found, tls, timeout, topology_file, taints, stacks, token, http, log: LogTo(log) })
}

impl Prepared {
    /// Serves the job, as [`serve`] does.
    ///
    /// # Errors
    /// When certificates cannot be used, when the job's state cannot be kept, or the server fails.
    pub async fn serve(
        self,
        connections: impl Stream<Item = io::Result<TcpStream>> + Send + 'static,
    ) -> Result<JobVerdict, MasterError> {
        Ok(self.until_over(connections).await?.finish().await)
    }

    /// Serves the job until it is over and its nodes know it. [`Over::finish`] must follow.
    ///
    /// # Errors
    /// When certificates cannot be used, when the job's state cannot be kept, or the server fails.
    pub async fn until_over(
        self,
        connections: impl Stream<Item = io::Result<TcpStream>> + Send + 'static,
    ) -> Result<Over, MasterError> {
        let Self { found, tls, timeout, topology_file, taints, stacks, token, http, log: LogTo(log) } = self;
        let loaded_job = match found {
            loaded_job::StateDirContent::Job(loaded_job) => *loaded_job,
            loaded_job::StateDirContent::Over { verdict, record } => {
                return Ok(Over { verdict, server: None, record: *record, taints: None, log: LogTo(log) });
            }
        };
        let mut server = Server::builder()
            .max_concurrent_streams(CALLS)
            .http2_max_header_list_size(METADATA)
            .http2_keepalive_interval(timeout.heartbeat_timeout.map(|_| PROBE))
            .http2_keepalive_timeout(Some(PROBE));
        if let Some(tls) = tls {
            server = server.tls_config(tls).map_err(TlsError::Unusable)?;
        }
        let (commands, inbox) = mpsc::channel(QUEUE);
        let (changes, changed) = watch::channel(StatusChange::default());
        let feed = StatusFeed::new(commands.downgrade(), changed);
        let service = MasterServer::new(MasterService::new(commands.clone(), feed.clone(), log.clone()))
            .max_decoding_message_size(MAX_REQUEST_BYTES);
        let (over, is_over) = watch::channel(());
        let web = match http {
            Some(web) => {
                let served = http::serve(web, feed, end_of(is_over.clone())).map_err(MasterError::Http)?;
                Some(AbortOnDrop(served))
            }
            None => None,
        };
        let service = InterceptedService::new(service, service::auth_interceptor(token, log.clone()));
        let connections =
            Box::pin(admission::admitted(connections, admission::max_connections(), log.clone()));
        let server = server.add_service(service).serve_with_incoming_shutdown(connections, end_of(is_over));
        let mut server: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(server);
        let mut job = JobLoop::new(
            loaded_job,
            topology_file,
            (taints, stacks),
            log.clone(),
            inbox,
            commands.downgrade(),
            changes,
        );
        drop(commands);
        let verdict = tokio::select! {
            verdict = job.run() => verdict?,
            ended = &mut server => match ended {
                Err(source) => return Err(MasterError::Server(source)),
                // The caller stopped accepting, and all connections are closed.
                Ok(()) => future::pending().await,
            },
        };
        let server = Some(Closing { over, server, web });
        let (record, taints) = job.end();
        Ok(Over { verdict, server, record, taints: Some(taints), log: LogTo(log) })
    }
}

/// A job that is over, as its nodes know. Its state stays until [`Self::finish`]: a master that is restarted before
/// that returns the verdict, and one that is restarted later finds nothing. So callers disable signals first.
#[must_use = "the job's state stays, and the last answers are not sent"]
pub struct Over {
    verdict: JobVerdict,
    server: Option<Closing>,
    record: loaded_job::Record,
    taints: Option<TaintPublisher>,
    log: LogTo,
}

/// The server, and what ends it.
struct Closing {
    over: watch::Sender<()>,
    web: Option<AbortOnDrop>,
    server: Pin<Box<dyn Future<Output = Result<(), tonic::transport::Error>> + Send>>,
}

impl Over {
    /// Returns how the job ended.
    #[must_use]
    pub fn verdict(&self) -> &JobVerdict {
        &self.verdict
    }

    /// Sends the last answers, and removes the job's state.
    pub async fn finish(self) -> JobVerdict {
        let Self { verdict, server, record, taints, log: LogTo(log) } = self;
        if let Some(Closing { over, server, web }) = server {
            drop(over);
            // The nodes know of the end; answers to their acknowledgements may be left to send, and to those that
            // follow the status how the job ended.
            let web = async {
                if let Some(mut web) = web {
                    let _ended = (&mut web.0).await;
                }
            };
            let _flushed = timeout(FLUSH, async { tokio::join!(server, web) }).await;
        }
        if let Some(taints) = taints {
            taints.close().await;
        }
        record.clear(&log).await;
        verdict
    }
}

/// Waits until the sender is dropped.
async fn end_of(mut it: watch::Receiver<()>) {
    while it.changed().await.is_ok() {}
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Over").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}
