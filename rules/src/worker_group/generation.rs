//! The workers of one round, as far as their ends are known.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::WorkerExit;
use crate::{
    failure::WorkerFailure,
    ids::{LocalRank, Rank, Round},
    world::Assignment,
};

/// The workers of one round on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Generation {
    pub(super) assignment: Assignment,
    /// Workers that have not ended yet.
    pub(super) alive: BTreeSet<LocalRank>,
    /// Ends that were not well, in the order in which they were noticed.
    pub(super) failures: Vec<WorkerFailure>,
    /// Those that ended well before the first of these.
    pub(super) ended_before: Vec<Rank>,
}

impl Generation {
    pub(super) fn round(&self) -> Round {
        self.assignment.round
    }

    pub(super) fn took_note_of(&mut self, exit: &WorkerExit) -> Option<WorkerFailure> {
        self.alive.remove(&exit.local_rank);
        let rank = self.assignment.place(exit.local_rank).map_or(Rank(exit.local_rank.0), |p| p.rank);
        if exit.cause.is_success() {
            if self.failures.is_empty() {
                self.ended_before.push(rank);
            }
            return None;
        }
        let failure = WorkerFailure {
            rank,
            local_rank: exit.local_rank,
            pid: exit.pid,
            cause: exit.cause,
            unix_secs: exit.unix_secs,
            out_of_memory: exit.out_of_memory,
        };
        self.failures.push(failure.clone());
        Some(failure)
    }
}
