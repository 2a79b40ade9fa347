//! The result of an agent: the outcome, and the evidence for it.

use std::{collections::BTreeMap, path::PathBuf};

use rules::{
    Attempt, LocalRank, NodeRank,
    failure::{Outcome, UnkillableProcess, WorkerFailure},
    last_lines::Output,
    root_cause::{FailureDetail, RootCause},
};

use crate::{
    error_file::{ErrorFile, ErrorFileError},
    logs::TAIL_BYTES,
};

/// How a node's run ended, and what is known about it.
#[derive(Debug)]
pub struct Report {
    pub outcome: Outcome,
    /// The attempt that ran last.
    pub attempt: Attempt,
    /// The directory of this run's logs.
    pub run_dir: Option<PathBuf>,
    /// The evidence of each failed worker of the last attempt.
    pub workers: BTreeMap<LocalRank, WorkerEvidence>,
    /// Ranks of this node that never reached the store, when others did.
    pub never_arrived: Vec<LocalRank>,
    /// Processes that could not be killed.
    pub unkillable: Vec<UnkillableProcess>,
    /// What ended the job, if that was another node's worker.
    pub root_cause: Option<RootCause>,
    /// The last node rank; `None` in a job of one node.
    pub node_rank: Option<NodeRank>,
    /// This host, as the job master knows it.
    pub host: String,
}

/// The evidence of one worker.
#[derive(Debug, Default)]
pub struct WorkerEvidence {
    /// The end of its standard error, at most 64 KiB.
    pub stderr_tail: Option<Vec<u8>>,
    /// The tail contains its standard output too.
    pub tail_is_mixed: bool,
    pub stdout_log: Option<PathBuf>,
    pub stderr_log: Option<PathBuf>,
    /// Its own report of the failure.
    pub error_file: Option<Result<ErrorFile, ErrorFileError>>,
}

impl WorkerEvidence {
    /// What other nodes are told of it.
    #[must_use]
    pub fn detail(&self, failure: WorkerFailure) -> FailureDetail {
        let recorded = self.error_file.as_ref().and_then(|file| file.as_ref().ok());
        let tail = self.stderr_tail.as_deref().unwrap_or_default();
        let output = match recorded {
            // Its output is not read here; the call stack is as good.
            Some(file) if tail.is_empty() => Output::new(file.account.as_bytes(), true),
            _ => Output::new(tail, tail.len() < TAIL_BYTES),
        };
        FailureDetail::new(failure, recorded.and_then(ErrorFile::message), &output, self.tail_is_mixed)
    }
}
