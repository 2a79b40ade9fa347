//! The evidence of failed workers for the report.

use std::{collections::BTreeMap, time::Duration};

use rules::{
    LocalRank,
    failure::{Failure, Outcome},
};
use tokio::time::timeout;
use tracing::warn;

use crate::{error_file, logs::GenerationLogs, report::WorkerEvidence};
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
            warn!("the log folder did not answer in time; error files were not read");
            BTreeMap::new()
        }
    }
}

fn of_one(generation: &GenerationLogs, local_rank: LocalRank) -> WorkerEvidence {
    let (stdout_log, stderr_log) = generation.log_files(local_rank);
    let path = generation.error_file(local_rank);
    let error_file = if path.as_os_str().is_empty() { None } else { error_file::read(&path).transpose() };
    WorkerEvidence {
        stderr_tail: generation.stderr_tail(local_rank),
        tail_is_mixed: generation.tail_is_mixed(local_rank),
        stdout_log,
        stderr_log,
        error_file,
    }
}
