//! The end of a run on this node: leftovers are killed, evidence is gathered, the guard exits.

use std::{sync::PoisonError, time::Duration};

use nix::sys::signal::Signal;
use rules::failure::{Outcome, UnkillableProcess};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Agent;
use crate::{evidence, master_link::MasterLink, report::Report};
use processes::{kill_leftovers::kill_leftovers, reap::reap_exited, run_blocking, tree};

/// How long the pipes of dead workers are read: a process that still holds one has outlived its worker.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

/// How long the launcher itself tries to kill what a dead or stuck guard left.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the master may take to receive the last messages.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// How long a guard without descendants may take to exit.
const GUARD_EXIT: Duration = Duration::from_secs(1);

impl Agent {
    /// Gathers the evidence, dismisses the guard, and returns the report.
    pub(super) async fn report(mut self, outcome: Outcome) -> Report {
        if let Some(prober) = &mut self.prober {
            prober.close().await;
        }
        self.checkpoints.close().await;
        let unkillable = if self.is_abandoned { self.last_resort().await } else { Vec::new() };
        self.drain().await;
        let run_dir = self.run_dir();
        let workers = evidence::gather(&outcome, self.generation.take()).await;
        let attempt = self.group.attempt();
        let never_arrived = self.group.missing_at_store();
        let root_cause = self.group.root_cause().cloned();
        let node_rank = self.group.assignment().filter(|it| it.nodes > 1).map(|it| it.node_rank);
        let host = self.attributes.host_name.clone();
        self.dismiss().await;
        Report { outcome, attempt, run_dir, workers, never_arrived, unkillable, root_cause, node_rank, host }
    }

    fn run_dir(&self) -> Option<std::path::PathBuf> {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.run_dir().map(Into::into)
    }

    async fn drain(&mut self) {
        if let Some(generation) = &mut self.generation {
            let _drained = generation.drain(DRAIN).await;
        }
        // A slow console may still hold up output of an earlier attempt. Each has its own deadline.
        let all = async { while self.retired.join_next().await.is_some() {} };
        let _drained = timeout(2 * DRAIN, all).await;
    }

    /// Called when the guard could not kill its tree. It may be stopped itself, so it is killed and the launcher
    /// tries.
    async fn last_resort(&mut self) -> Vec<UnkillableProcess> {
        let guard = self.guard.pid().as_raw();
        // Once it is reaped, its process id may be reused.
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
        tree::unkillable(left)
    }

    pub(super) fn kill_leftovers(&self) -> impl Future<Output = Vec<tree::Process>> + Send + 'static {
        let (id, cgroup, strangers) =
            (self.launcher_id.clone(), self.cgroup.clone(), self.has_foreign_children);
        let kill = move || kill_leftovers(&id, strangers, cgroup.as_ref(), KILL_TIMEOUT);
        // Without room for a thread it runs on the event loop: killing matters more.
        async move { run_blocking(kill.clone()).await.unwrap_or_else(|_| kill()) }
    }

    /// The closed socket tells the guard to exit. Waiting for it leaves no process behind.
    async fn dismiss(self) {
        let Self { guard, mut children, guard_ended, cgroup, master, .. } = self;
        let MasterLink { messages, task } = master;
        drop(messages);
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
            warn!(pid, "the guard process is still running; it exits by itself");
        }
        // The last messages acknowledge the end. The master waits for them with a deadline too.
        if timeout(LAST_MESSAGES, task).await.is_err() {
            debug!("the job master did not acknowledge the last messages");
        }
        // The guard has removed it, unless it was killed.
        if let Some(cgroup) = cgroup {
            cgroup.remove();
        }
    }
}
