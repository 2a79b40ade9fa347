//! The job master inside this launcher, for a rendezvous with others: on a thread of its own, so that neither delays
//! the other. It stops after all nodes have received the verdict.

use std::{future, io, net::TcpListener, sync::Arc, thread, time::Duration};

use agent::{Console, SharedStore};
use master::{JournalError, MasterConfig, MasterError};
use rules::chain;
use rules::verdict::JobVerdict;
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tracing::Level;

use crate::port_mux;

/// How long the other nodes may take to receive the verdict: the timeout of the master, and a little more.
const LEAVE_WITHIN: Duration = Duration::from_secs(12);

/// The same, when the job continues without this node and its master may come back.
const LEAVE_BEHIND_WITHIN: Duration = Duration::from_secs(2);

/// How long to wait before the wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Why a master could not serve.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The thread of the job master, its runtime or its port could not be set up.
    #[error("cannot start the job master")]
    Start(#[source] io::Error),
    /// Its state or its listeners could not be opened.
    #[error("cannot start the job master")]
    Prepare(#[source] MasterError),
    /// The job master failed while it served the job.
    #[error("the job master in this launcher stopped")]
    Serve(#[source] MasterError),
    /// The job master panicked; the message of the panic went to standard error.
    #[error(
        "the job master in this launcher panicked; this is a bug: report it with the panic message above"
    )]
    Died,
}

/// The master in this launcher.
#[derive(Debug)]
pub struct Embedded {
    end: Option<oneshot::Receiver<Result<JobVerdict, EmbeddedError>>>,
}

/// Starts it.
///
/// # Errors
/// When there is no thread for it.
pub fn start(
    listeners: Vec<TcpListener>,
    store: Option<Arc<SharedStore>>,
    config: MasterConfig,
) -> Result<Embedded, EmbeddedError> {
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("master".into())
        .spawn(move || {
            // The launcher may have left first.
            let _closed = ended.send(serve(listeners, store, config));
        })
        .map_err(EmbeddedError::Start)?;
    Ok(Embedded { end: Some(end) })
}

fn serve(
    listeners: Vec<TcpListener>,
    store: Option<Arc<SharedStore>>,
    config: MasterConfig,
) -> Result<JobVerdict, EmbeddedError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(EmbeddedError::Start)?;
    let verdict = runtime.block_on(async {
        let connections =
            port_mux::serve(listeners, store.as_ref(), &config.log).map_err(EmbeddedError::Start)?;
        master::serve(ReceiverStream::new(connections), config).await.map_err(EmbeddedError::of)
    });
    runtime.shutdown_background();
    verdict
}

impl EmbeddedError {
    /// A master that has served can fail by its server and by writing its state; all else is opened before.
    fn of(error: MasterError) -> Self {
        match error {
            MasterError::Server(_)
            | MasterError::Journal(
                JournalError::Write { .. } | JournalError::Encode(_) | JournalError::Gone,
            ) => Self::Serve(error),
            MasterError::Http(_) | MasterError::Tls(_) | MasterError::Journal(_) => Self::Prepare(error),
        }
    }
}

impl Embedded {
    /// Waits for its failure, which need not come.
    pub async fn failed(&mut self) -> EmbeddedError {
        if let Some(end) = &mut self.end {
            let ended = end.await.unwrap_or(Err(EmbeddedError::Died));
            self.end = None;
            if let Err(error) = ended {
                return error;
            }
        }
        future::pending().await
    }

    /// At the end of the run, waits within a limit until all nodes have received the verdict. `continues`: the
    /// job does not end with this launcher. A signal ends the wait.
    pub async fn leave_last(self, continues: bool, console: &Console) {
        let Some(mut end) = self.end else { return };
        let since = Instant::now();
        let limit = if continues { LEAVE_BEHIND_WITHIN } else { LEAVE_WITHIN };
        let hurry = async {
            let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
            let [Ok(mut interrupt), Ok(mut terminate)] = signals else { return future::pending().await };
            select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        tokio::pin!(hurry);
        // Of a job that continues there is no end to be told.
        let mut report_at = (!continues).then_some(since + REPORT_AFTER);
        loop {
            let wake = report_at.unwrap_or(since + limit);
            select! {
                ended = &mut end => {
                    if let Ok(Err(error)) = ended {
                        console.log(Level::ERROR, chain(&error));
                    }
                    return;
                }
                () = &mut hurry => return,
                () = sleep_until(wake) => match report_at.take() {
                    Some(_) => console.log(
                        Level::INFO,
                        format_args!(
                            "waiting up to {} s for the other nodes to learn how the job ended",
                            limit.as_secs()
                        ),
                    ),
                    None => return,
                },
            }
        }
    }
}
