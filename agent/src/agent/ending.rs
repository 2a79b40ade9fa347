//! How a run ends on this node: what is left is killed, the evidence gathered, the guard let go.

use std::{sync::PoisonError, time::Duration};

use nix::sys::signal::Signal;
use rules::failure::{Outcome, Survivor};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Agent;
use crate::{evidence, master_link::MasterLink, report::Report};
use processes::{kill_leftovers::kill_leftovers, reap::reap_exited, run_blocking, tree};

/// How long the pipes of dead workers are read: what holds one now is a process that outlived its worker.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

/// How long the launcher itself tries to kill what a dead or stuck guard left.
const CLEAR_AWAY: Duration = Duration::from_secs(2);

/// How long the master may take to hear the last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a guard with nothing below it may take to leave.
const GUARD_EXIT: Duration = Duration::from_secs(1);

impl Agent {
    /// Gathers the evidence, lets the guard go, and reports.
    pub(super) async fn report(mut self, outcome: Outcome) -> Report {
        if let Some(prober) = &mut self.prober {
            prober.close().await;
        }
        let survivors = if self.is_abandoned { self.last_resort().await } else { Vec::new() };
        self.drain().await;
        let run_dir = self.run_dir();
        let workers = evidence::gather(&outcome, self.generation.take()).await;
        let attempt = self.group.attempt();
        let never_arrived = self.store_watch.judgement.missing();
        self.dismiss().await;
        Report { outcome, attempt, run_dir, workers, never_arrived, survivors }
    }

    fn run_dir(&self) -> Option<std::path::PathBuf> {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.run_dir().map(Into::into)
    }

    async fn drain(&mut self) {
        if let Some(generation) = &mut self.generation {
            let _drained = generation.drain(DRAIN).await;
        }
        // A slow console may still hold up what an attempt before had printed. Each keeps its own time.
        let all = async { while self.retired.join_next().await.is_some() {} };
        let _drained = timeout(2 * DRAIN, all).await;
    }

    /// The guard could not kill its tree. It may itself be stopped, so it goes too and we try.
    async fn last_resort(&mut self) -> Vec<Survivor> {
        let guard = self.guard.pid().as_raw();
        // Once it is reaped, its process id may be another's.
        if self.guard_ended.is_none() {
            tree::signal_one(guard, Signal::SIGKILL);
        }
        let killing = self.kill_leftovers();
        tokio::pin!(killing);
        let left = loop {
            tokio::select! {
                left = &mut killing => break left,
                Some(()) = self.children.recv() => { reap_exited(|_, _| ()); }
            }
        };
        tree::survivors(left)
    }

    pub(super) fn kill_leftovers(&self) -> impl Future<Output = Vec<tree::Process>> + Send + 'static {
        let (id, cgroup, strangers) = (self.launcher_id.clone(), self.cgroup.clone(), self.has_strangers);
        let kill = move || kill_leftovers(&id, strangers, cgroup.as_ref(), CLEAR_AWAY);
        // Where there is no room for a thread, it is done here: what is left matters more than the loop.
        async move { run_blocking(kill.clone()).await.unwrap_or_else(|_| kill()) }
    }

    /// The end of the socket tells the guard to leave. Waiting for it leaves nothing of us behind.
    async fn dismiss(self) {
        let Self { guard, mut children, guard_ended, cgroup, master, .. } = self;
        let MasterLink { words, task } = master;
        drop(words);
        let pid = guard.pid().as_raw();
        drop(guard);
        let gone = async {
            if guard_ended.is_some() {
                return;
            }
            loop {
                let mut is_gone = false;
                if reap_exited(|exited, _| is_gone |= exited == pid) || is_gone {
                    return;
                }
                children.recv().await;
            }
        };
        if timeout(GUARD_EXIT, gone).await.is_err() {
            warn!(pid, "the guard process is still busy; it ends by itself");
        }
        // The last words: that we know of the end. Who waits for them has a deadline too.
        if timeout(LAST_WORDS, task).await.is_err() {
            debug!("the job master did not take the last words");
        }
        // The guard has done so, unless it was killed.
        if let Some(cgroup) = cgroup {
            cgroup.remove();
        }
    }
}
