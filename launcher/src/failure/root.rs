//! The root cause of a run, among the failures of this node's workers or as the job master has it.

use std::{collections::BTreeMap, fmt};

use agent::{Report, WorkerEvidence};
use rules::{
    LocalRank,
    failure::{Failure, GroupFailure, Outcome, WorkerFailure},
    root_cause::{FailureDetail, Summary},
};

/// The root cause in one line: on every node the same, wherever it was.
pub(crate) fn root_cause_of(report: &Report) -> Option<String> {
    let own;
    let summary: &dyn fmt::Display = match (&report.root_cause, &report.outcome) {
        (Some(root_cause), Outcome::Failed(_)) => root_cause,
        (None, Outcome::Failed(Failure::Workers(group))) => {
            let failures = dated(group, &report.workers);
            let root = failures.get(root_of(&failures, &report.workers))?;
            let worker = report.workers.get(&root.local_rank);
            let detail = worker.map(|worker| worker.detail(root.clone()));
            own = detail.unwrap_or_else(|| FailureDetail::bare(root.clone()));
            &Summary { detail: &own, node_rank: report.node_rank, host: &report.host }
        }
        _ => return None,
    };
    Some(summary.to_string())
}

/// The place of the root cause among failures of this node: [`rules::root_cause::root_cause_of`].
pub(crate) fn root_of(failures: &[WorkerFailure], evidence: &BTreeMap<LocalRank, WorkerEvidence>) -> usize {
    let detail = |failure: &WorkerFailure| match evidence.get(&failure.local_rank) {
        Some(worker) => worker.detail(failure.clone()),
        None => FailureDetail::bare(failure.clone()),
    };
    rules::root_cause::root_cause_of(&failures.iter().map(detail).collect::<Vec<_>>())
}

/// The failures with the times their own error files give (torchrun: the same).
pub(crate) fn dated(
    group: &GroupFailure,
    evidence: &BTreeMap<LocalRank, WorkerEvidence>,
) -> Vec<WorkerFailure> {
    let own_time = |failure: &WorkerFailure| {
        evidence.get(&failure.local_rank)?.error_file.as_ref()?.as_ref().ok()?.unix_secs
    };
    let failures = group.failures.iter();
    failures
        .map(|failure| WorkerFailure {
            unix_secs: own_time(failure).unwrap_or(failure.unix_secs),
            ..failure.clone()
        })
        .collect()
}
