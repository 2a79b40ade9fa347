//! What is reported of the worker that failed first, and the failures after it.

use rules::{LocalRank, Rank, Round, failure::WorkerFailure, worker_group::WorkerExit};
use tokio::sync::mpsc;

use super::Agent;
use crate::{
    evidence::{self, Peers},
    master_link::ToMaster,
};

impl Agent {
    /// Reports what is known of a failed worker, when its output is read. The run may end meanwhile; the message is sent
    /// all the same.
    pub(super) fn report_detail(&mut self, round: Round, worker: WorkerFailure) {
        let messages = self.master.messages.clone();
        let left_by = |rank| self.generation.as_ref().and_then(|generation| generation.output_of(rank));
        let left = left_by(worker.local_rank);
        let workers = (0..self.config.local_world_size).map(LocalRank);
        let peers = workers.filter(|rank| *rank != worker.local_rank);
        let peers = peers.filter_map(|rank| Some((rank, left_by(rank)?))).collect();
        let (sender, failures) = mpsc::unbounded_channel();
        self.failures = Some(sender);
        tokio::spawn(async move {
            let detail = Box::new(evidence::detail_of(worker, left, Peers { left: peers, failures }).await);
            let _ended = messages.send(ToMaster::Detail { round, detail });
        });
    }

    /// A worker that failed after the first one may be why that one did.
    pub(super) fn failed_too(&mut self, exit: &WorkerExit) {
        let Some(failures) = self.failures.as_ref().filter(|_| !exit.cause.is_success()) else { return };
        let place = self.group.assignment().and_then(|it| it.place(exit.local_rank));
        let failure = WorkerFailure {
            rank: place.map_or(Rank(exit.local_rank.0), |place| place.rank),
            local_rank: exit.local_rank,
            pid: exit.pid,
            cause: exit.cause,
            unix_secs: exit.unix_secs,
            out_of_memory: false,
        };
        if failures.send(failure).is_err() {
            self.failures = None;
        }
    }
}
