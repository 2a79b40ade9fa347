//! The workers of one round and their ends.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::WorkerExit;
use crate::{
    failure::{ExitCause, WorkerFailure},
    ids::{LocalRank, Rank, Round},
    world::Assignment,
};

const SIGKILL: i32 = 9;

/// The workers of one round on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LocalWorkers {
    pub(super) assignment: Assignment,
    /// Workers that have not ended yet.
    pub(super) alive: BTreeSet<LocalRank>,
    /// Failures, the first noticed first.
    pub(super) failures: Vec<WorkerFailure>,
    /// Workers that exited with code 0 before the first of these.
    pub(super) ended_before: Vec<Rank>,
    /// How many processes of this cgroup the OOM killer had killed when these workers were started.
    pub(super) oom_kills: Option<u64>,
    /// Whether that number was known at the start and at each SIGKILL since.
    pub(super) has_oom_counter: bool,
}

impl LocalWorkers {
    pub(super) fn round(&self) -> Round {
        self.assignment.round
    }

    /// Records an exit, and returns it if it is a failure. A SIGKILL is the OOM killer's if its count has risen since the
    /// start.
    pub(super) fn record(&mut self, exit: &WorkerExit, oom_kills: Option<u64>) -> Option<WorkerFailure> {
        self.alive.remove(&exit.local_rank);
        let rank = self.assignment.place(exit.local_rank).map_or(Rank(exit.local_rank.0), |p| p.rank);
        if exit.cause.is_success() {
            if self.failures.is_empty() {
                self.ended_before.push(rank);
            }
            return None;
        }
        let counts = oom_kills.zip(self.oom_kills);
        let is_sigkill = exit.cause == ExitCause::Signal(SIGKILL);
        self.has_oom_counter &= !is_sigkill || counts.is_some();
        let failure = WorkerFailure {
            rank,
            local_rank: exit.local_rank,
            pid: exit.pid,
            cause: exit.cause,
            unix_secs: exit.unix_secs,
            out_of_memory: is_sigkill && counts.is_some_and(|(now, before)| now > before),
        };
        self.failures.push(failure.clone());
        Some(failure)
    }
}
