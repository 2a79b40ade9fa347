//! The result of an agent: the outcome, and the evidence for it.

use std::{collections::BTreeMap, path::PathBuf};

use rules::{
    Attempt, LocalRank,
    failure::{Outcome, UnkillableProcess},
};

use crate::error_file::{ErrorFile, ErrorFileError};

/// How a node's run ended, and what is known about it.
#[derive(Debug)]
pub struct Report {
    pub outcome: Outcome,
    /// The attempt that ran last.
    pub attempt: Attempt,
    /// The folder of this run's logs.
    pub run_dir: Option<PathBuf>,
    /// The evidence of each failed worker of the last attempt.
    pub workers: BTreeMap<LocalRank, WorkerEvidence>,
    /// Ranks of this node that never reached the store, when others did.
    pub never_arrived: Vec<LocalRank>,
    /// Processes that could not be killed.
    pub unkillable: Vec<UnkillableProcess>,
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
