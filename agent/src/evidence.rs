//! The evidence of failed workers, for the report and for the other nodes.

use std::{collections::BTreeMap, time::Duration};

use rules::{
    LocalRank,
    failure::{Failure, Outcome, WorkerFailure},
    root_cause::FailureDetail,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tracing::warn;

use crate::{
    error_file,
    logs::{GenerationLogs, WorkerOutput},
    report::WorkerEvidence,
};
use processes::run_blocking;

/// How long error files may take to be read: they may be on a network file system.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the error files of failed workers. If the file system hangs, the run ends without them.
pub async fn gather(
    outcome: &Outcome,
    generation: Option<GenerationLogs>,
) -> BTreeMap<LocalRank, WorkerEvidence> {
    let (Outcome::Failed(Failure::Workers(failed)), Some(generation)) = (outcome, generation) else {
        return BTreeMap::new();
    };
    let ranks: Vec<LocalRank> = failed.failures.iter().map(|failure| failure.local_rank).collect();
    let read =
        run_blocking(move || ranks.into_iter().map(|rank| (rank, of_one(&generation, rank))).collect());
    match timeout(TIMEOUT, read).await {
        Ok(Ok(evidence)) => evidence,
        Ok(Err(error)) => {
            warn!(%error, "error files could not be read");
            BTreeMap::new()
        }
        Err(_) => {
            warn!("reading error files from the log directory timed out");
            BTreeMap::new()
        }
    }
}

fn of_one(generation: &GenerationLogs, local_rank: LocalRank) -> WorkerEvidence {
    generation.output_of(local_rank).map(|left| read(&left)).unwrap_or_default()
}

fn read(left: &WorkerOutput) -> WorkerEvidence {
    let path = &left.error_file;
    let error_file = if path.as_os_str().is_empty() { None } else { error_file::read(path).transpose() };
    WorkerEvidence {
        stderr_tail: left.stderr_tail(),
        tail_is_mixed: left.tail_is_mixed,
        stdout_log: left.stdout_log.clone(),
        stderr_log: left.stderr_log.clone(),
        error_file,
    }
}

/// How long the output of a worker that has failed is read before the master is told what it said: a process that it
/// has started may hold its pipes open.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(300);

/// How long all of that may take. The master withholds the end of the job for a little longer:
/// [`rules::job::DETAIL_TIMEOUT`].
const DETAIL: Duration = Duration::from_millis(600);

/// How long failures of other workers are waited for, where the first one lost a connection: what its peer did is the
/// cause. Python needs some 50 ms from an exception to the end of the process.
const CAUSE_TIMEOUT: Duration = Duration::from_millis(250);

/// The other workers of the node.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) left: BTreeMap<LocalRank, WorkerOutput>,
    /// Those that fail after the first one.
    pub(crate) failures: mpsc::UnboundedReceiver<WorkerFailure>,
}

/// What is known of the worker that has failed first, for the other nodes: without what cannot be read in time. Where it
/// says that it lost a connection, and another worker of the node has an error of its own, that one is the cause.
pub(crate) async fn detail_of(
    failure: WorkerFailure,
    left: Option<WorkerOutput>,
    mut peers: Peers,
) -> FailureDetail {
    let first = read_detail(failure, left, DETAIL).await;
    if !first.is_consequence() {
        return first;
    }
    let until = Instant::now() + CAUSE_TIMEOUT;
    while let Ok(Some(failure)) = timeout_at(until, peers.failures.recv()).await {
        let left = peers.left.remove(&failure.local_rank);
        let detail = read_detail(failure, left, until - Instant::now()).await;
        if detail.is_own_error() {
            return detail;
        }
    }
    first
}

async fn read_detail(failure: WorkerFailure, left: Option<WorkerOutput>, limit: Duration) -> FailureDetail {
    let Some(left) = left else { return FailureDetail::bare(failure) };
    let worker = failure.clone();
    let reading = run_blocking(move || {
        left.wait_for_output(OUTPUT_TIMEOUT);
        read(&left).detail(worker)
    });
    match timeout(limit, reading).await {
        Ok(Ok(detail)) => detail,
        Ok(Err(error)) => {
            let rank = failure.local_rank;
            warn!(%error, "the output and error file of local rank {rank} could not be read");
            FailureDetail::bare(failure)
        }
        Err(_) => FailureDetail::bare(failure),
    }
}
