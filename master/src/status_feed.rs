//! The job's status as it changes, for both servers: gRPC and the web.

use std::{sync::Arc, time::Duration};

use rules::job_status::JobStatus;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use crate::job_loop::{Command, StatusChange};

/// How long the job's owner may take to answer. A stuck disk delays it.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// How long after a change a follower gets a status, and so the least time between two of them. Changes come in
/// groups: a failure is many within one round, and building a status for each would take CPU time from the round.
const PAUSE: Duration = Duration::from_millis(200);

/// A follower of a job without changes gets a status after this time, so that the ages on its screen go on.
const REPEAT: Duration = Duration::from_secs(5);

/// Where a status comes from. It does not keep the job's owner waiting for commands.
#[derive(Debug, Clone)]
pub(crate) struct StatusFeed {
    commands: mpsc::WeakSender<Command>,
    changes: watch::Receiver<StatusChange>,
}

impl StatusFeed {
    pub(crate) fn new(commands: mpsc::WeakSender<Command>, changes: watch::Receiver<StatusChange>) -> Self {
        Self { commands, changes }
    }

    /// What the job is doing; the last status when it is over. `None` where its owner does not answer in time.
    pub(crate) async fn status(&self) -> Option<Arc<JobStatus>> {
        let ask = async {
            let (reply, answer) = oneshot::channel();
            self.commands.upgrade()?.send(Command::ShowStatus { reply }).await.ok()?;
            answer.await.ok().map(Arc::from)
        };
        let asked = timeout(ANSWER, ask).await.ok().flatten();
        asked.or_else(|| self.changes.borrow().last.clone())
    }

    /// Sends what `encode` makes of each status, until the job is over, there is no status, or `to` is closed.
    pub(crate) async fn follow<T>(mut self, to: mpsc::Sender<T>, encode: impl Fn(&JobStatus) -> Option<T>) {
        loop {
            let is_last = self.changes.borrow_and_update().last.is_some();
            let Some(item) = self.status().await.and_then(|status| encode(&status)) else { return };
            if to.send(item).await.is_err() || is_last {
                return;
            }
            tokio::select! {
                () = to.closed() => return,
                _changed = timeout(REPEAT, self.changes.changed()) => {}
            }
            let mut ends = self.changes.clone();
            tokio::select! {
                () = to.closed() => return,
                () = sleep(PAUSE) => {}
                // The server waits for nothing but the last status.
                _over = ends.wait_for(|change| change.last.is_some()) => {}
            }
        }
    }
}
