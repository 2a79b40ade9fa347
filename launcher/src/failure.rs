//! The message for every way in which a run can end.

mod error_file;
mod exit_code;
mod explained;
mod root;

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use agent::{Report, WorkerEvidence, plain};
use rules::{
    LocalRank, Rank, chain,
    failure::{ExitCause, Failure, GroupFailure, Outcome, UnkillableProcess, WorkerFailure, root_cause},
    root_cause::RootCause,
    signal_name::signal_text,
};

pub use self::{
    error_file::{CopyError, copy_root_cause, own_error_file, record_own},
    exit_code::{
        EXCLUDED, FAILED, INCONCLUSIVE, MASS_FAILURE, NO_RENDEZVOUS, OUT_OF_MEMORY, SIGNAL_BASE, SUCCEEDED,
        USAGE, exit_code,
    },
};
pub(crate) use self::{
    explained::{OomCounter, explained, explained_later},
    root::{dated, root_cause_of, root_of},
};
use crate::{child_failed::ChildFailed, host_names::fqdn, remedy::remedy, resolve::Rendezvous};

/// Ranks that are named one by one.
const NAMED_RANKS: usize = 8;

/// Reports why the run could not start.
pub fn cannot_run(error: &dyn std::error::Error) -> ExitCode {
    print_line(format_args!("dlrover-run: error: {}", chain(error)));
    ExitCode::from(FAILED)
}

/// Prints a line, without control characters, on standard error where there is no console yet. `eprintln!` panics
/// when the pipe is closed or the disk is full.
pub fn print_line(words: impl fmt::Display) {
    let _closed = writeln!(io::stderr(), "{}", plain(&words.to_string()));
}

/// The settings that the report repeats.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// The script, the module or the program, as given.
    pub title: String,
    /// What the workers execute.
    pub program: String,
    /// Restarts after the first attempt.
    pub max_restarts: u32,
}

/// The message at the end of a run; `None` when it succeeded.
#[must_use]
pub fn message(report: &Report, settings: &RunSettings, rendezvous: &Rendezvous) -> Option<String> {
    let mut text = summary(report);
    text.push_str(&match &report.outcome {
        Outcome::Succeeded => String::new(),
        Outcome::Failed(Failure::Workers(group)) => workers_failed(report, group, settings),
        Outcome::Failed(failure @ Failure::Unkillable) => {
            format!("dlrover-run: error: {failure}, so they are not restarted\n")
        }
        Outcome::Failed(failure @ Failure::GuardDied { cause: ExitCause::Code(_) }) => format!(
            "dlrover-run: error: {failure}; all workers were killed. This is a bug: report it with the lines above\n"
        ),
        Outcome::Failed(failure @ Failure::GuardDied { cause: ExitCause::Signal(_) }) => format!(
            "dlrover-run: error: {failure}, so the workers could no longer be supervised; all of them were \
             killed. Only the kernel or a `kill -9` kills the guard: check the kernel log (dmesg) for the OOM killer.\n"
        ),
        Outcome::Failed(failure) => match remedy(failure, rendezvous) {
            Some(remedy) => format!("dlrover-run: error: {failure}\n  {remedy}\n"),
            None => format!("dlrover-run: error: {failure}\n"),
        },
        Outcome::Interrupted(signal) => {
            let left = if report.unkillable.is_empty() { "; no worker is left" } else { "" };
            format!("dlrover-run: stopped by {}{left}\n", signal_text(*signal))
        }
    });
    if let (Some(root_cause), Outcome::Failed(_)) = (&report.root_cause, &report.outcome) {
        text.push_str(&words_of(root_cause));
    }
    if !report.unkillable.is_empty() {
        text.push_str(&unkillable(&report.unkillable));
    }
    (!text.is_empty()).then_some(text)
}

/// The message at the end of a run; a hang that the log has reported already is not repeated.
#[must_use]
pub fn refer_to_hang(message: &str, hang: &str) -> String {
    message.replace(hang, "the job hung, as reported above")
}

/// The first line of the report.
fn summary(report: &Report) -> String {
    root_cause_of(report).map(|summary| format!("dlrover-run: root cause: {summary}\n")).unwrap_or_default()
}

/// What the failed worker of another node printed last.
fn words_of(root_cause: &RootCause) -> String {
    let RootCause { node, detail, .. } = root_cause;
    if detail.lines().is_empty() {
        return String::new();
    }
    let what = if detail.is_mixed() { "output" } else { "standard error" };
    let rank = detail.failure.rank;
    format!("  last lines of the {what} of rank {rank} on {node}:\n{}", quoted(detail.lines()))
}

/// Workers of this node failed, and there is no restart left.
fn workers_failed(report: &Report, group: &GroupFailure, settings: &RunSettings) -> String {
    let failures = dated(group, &report.workers);
    let host = fqdn();
    let RunSettings { title, program, max_restarts } = settings;
    let account = ChildFailed { title, host: &host, failures: &failures, evidence: &report.workers }.text();
    let Some(root) = failures.get(root_of(&failures, &report.workers)) else { return account };
    let WorkerFailure { rank, local_rank, pid, cause, .. } = root;
    // torchrun logs this line before its report, and tools search for it.
    let code = cause.python_code();
    let mut text = format!(
        "dlrover-run: failed (exitcode: {code}) local_rank: {local_rank} (pid: {pid}) of binary: {program}\n{account}"
    );
    // Another node's worker may have failed before.
    let first = failures.get(root_cause(&failures)).filter(|first| first.rank != *rank);
    let order = match (&report.root_cause, first) {
        (Some(_), _) => "failed first on this node".to_owned(),
        (None, None) => "failed first".to_owned(),
        (None, Some(first)) => {
            format!(
                "failed on its own (rank {} failed earlier, but only because it had lost a connection)",
                first.rank
            )
        }
    };
    text.push_str(&format!(
        "dlrover-run: rank {rank} (local rank {local_rank}, pid {pid}) {order}: {}\n",
        explained(root, OomCounter::of(group))
    ));
    if *max_restarts > 0 {
        let attempts = u64::from(*max_restarts) + 1;
        text.push_str(&format!(
            "  attempt: {} of {attempts} (--max-restarts={max_restarts})\n",
            group.attempt.0 + 1
        ));
    }
    if !group.ended_before.is_empty() {
        text.push_str(&ended_before(*rank, &group.ended_before));
    }
    let worker = report.workers.get(local_rank);
    for (other, evidence) in &report.workers {
        if let Some(Err(error)) = &evidence.error_file {
            text.push_str(&format!("  error file of local rank {other} ignored: {}\n", chain(error)));
        }
    }
    if !report.never_arrived.is_empty() {
        let ranks: Vec<String> = report.never_arrived.iter().map(LocalRank::to_string).collect();
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        text.push_str(&format!("  never reached the workers' store: local {noun} {}\n", ranks.join(", ")));
    }
    let lines = worker.map(|worker| last_lines(worker, root)).unwrap_or_default();
    if !lines.is_empty() {
        let what =
            if worker.is_some_and(|worker| worker.tail_is_mixed) { "output" } else { "standard error" };
        text.push_str(&format!("  last lines of its {what}:\n{}", quoted(&lines)));
    }
    let logs = worker.map(|worker| [&worker.stdout_log, &worker.stderr_log]);
    for log in logs.into_iter().flatten().flatten() {
        text.push_str(&format!("  log: {}\n", log.display()));
    }
    let has_logs =
        report.workers.values().any(|worker| worker.stdout_log.is_some() || worker.stderr_log.is_some());
    match &report.run_dir {
        Some(folder) if has_logs => text.push_str(&format!("  all logs: {}\n", folder.display())),
        // The files could not be read in time, so which there are is not known.
        Some(folder) if report.workers.is_empty() => {
            text.push_str(&format!("  log directory: {}\n", folder.display()))
        }
        Some(_) | None => {
            text.push_str("  no output was kept in files; --tee=3 --log-dir=DIR keeps all of it\n")
        }
    }
    text
}

/// Ranks of this node exited with code 0 before the first failure; their peers may have lost a connection. Scripts that
/// make a process group and never use it do that: found with one of accelerate's.
fn ended_before(failed: Rank, ended: &[Rank]) -> String {
    let names = ended.iter().take(NAMED_RANKS).map(Rank::to_string).collect::<Vec<_>>().join(", ");
    let more = if ended.len() > NAMED_RANKS { ", ..." } else { "" };
    let (what, peer) = match ended.len() {
        1 => (format!("rank {names}"), "it"),
        count => (format!("{count} ranks of this node ({names}{more})"), "one of them"),
    };
    format!(
        "  earlier, {what} exited with code 0. If rank {failed} lost its connection to {peer}, let all ranks meet at a \
         barrier before they exit\n"
    )
}

/// Processes of the run survived SIGKILL.
fn unkillable(unkillable: &[UnkillableProcess]) -> String {
    let mut text = String::from(match unkillable {
        [_] => "dlrover-run: this process of the run could not be killed:\n",
        _ => "dlrover-run: these processes of the run could not be killed:\n",
    });
    for process in unkillable {
        text.push_str(&format!("  {process}\n"));
    }
    text.push_str(
        "  A process in state D waits inside the kernel, usually for a driver or a network file system; it ends when \
         that answers, or when the machine is restarted.\n",
    );
    text
}

/// Lines of a worker, marked as foreign.
fn quoted(lines: &[String]) -> String {
    lines.iter().map(|line| format!("    | {line}\n")).collect()
}

/// The end of a worker's standard error, as other nodes have it; empty where it was not kept.
pub(crate) fn last_lines(worker: &WorkerEvidence, failure: &WorkerFailure) -> Vec<String> {
    let has_tail = worker.stderr_tail.as_ref().is_some_and(|tail| !tail.is_empty());
    if has_tail { worker.detail(failure.clone()).lines().to_vec() } else { Vec::new() }
}

#[cfg(test)]
mod tests;
