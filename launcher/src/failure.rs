//! The message and the exit code for every way in which a run can end.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use agent::{Report, WorkerEvidence, plain};
use diagnosis::counted::counted;
use rules::chain;
use rules::{
    LocalRank, Rank,
    failure::{ExitCause, Failure, GroupFailure, Outcome, UnkillableProcess, WorkerFailure, root_cause},
    root_cause::{FailureDetail, RootCause, Summary},
    signal_name::signal_text,
    verdict::JobFailure,
};
use serde_json::Value;

use crate::{
    child_failed::ChildFailed, environment::Environment, host_names::fqdn, remedy::remedy,
    resolve::Rendezvous,
};

/// All workers succeeded.
pub const SUCCEEDED: u8 = 0;
/// The run failed, for any other reason (torchrun: the same).
pub const FAILED: u8 = 1;
/// The command line cannot be parsed (argparse: the same).
pub const USAGE: u8 = 2;
/// With `--propagate-exit-code`: a worker was killed by the kernel's out-of-memory killer. DLRover's operator
/// reads it so.
pub const OUT_OF_MEMORY: u8 = 247;
/// With `--propagate-exit-code`: added to the number of the signal that killed the root cause, as shells do.
pub const SIGNAL_BASE: u8 = 128;

/// A rendezvous at `DLROVER_MASTER_ADDR` failed: too few nodes joined within `join_timeout`, or the job master was
/// unreachable for that long. A retry may succeed (`sysexits.h`: EX_TEMPFAIL). On torchrun's own lines it is
/// [`FAILED`], torchrun's code.
pub const NO_RENDEZVOUS: u8 = 75;

/// A network check excluded this node. DLRover's own master reads 201 as a hardware error.
pub const EXCLUDED: u8 = 201;

/// A network check could not find which node is at fault, or nodes are cut off from each other and too few of them can
/// train together.
pub const INCONCLUSIVE: u8 = 202;

/// A network check found more nodes at fault than `--taint-guard` allows.
pub const MASS_FAILURE: u8 = 203;

/// Ranks that are named one by one.
const NAMED_RANKS: usize = 8;

/// Lines of standard error that the report repeats.
const TAIL_LINES: usize = 20;

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

/// The exit code of a run.
#[must_use]
pub fn exit_code(report: &Report, propagate: bool, rendezvous: &Rendezvous) -> u8 {
    let code = match &report.outcome {
        Outcome::Failed(Failure::MasterAway { .. } | Failure::Job(JobFailure::TimedOut { .. }))
            if matches!(rendezvous, Rendezvous::Master(_)) =>
        {
            return NO_RENDEZVOUS;
        }
        Outcome::Failed(Failure::Excluded(exclusion)) => {
            return if exclusion.is_inconclusive { INCONCLUSIVE } else { EXCLUDED };
        }
        Outcome::Failed(Failure::Job(JobFailure::Inconclusive { .. } | JobFailure::Cut { .. })) => {
            return INCONCLUSIVE;
        }
        Outcome::Failed(Failure::Job(JobFailure::MassFailure { .. })) => return MASS_FAILURE,
        Outcome::Succeeded => return SUCCEEDED,
        Outcome::Failed(Failure::Workers(group)) => {
            let failures = dated(group, &report.workers);
            failures.get(root_of(&failures, &report.workers)).map_or(FAILED, own_code)
        }
        Outcome::Interrupted(signal) => own_code_of_signal(*signal),
        Outcome::Failed(_) => FAILED,
    };
    if propagate { code } else { FAILED }
}

fn own_code(failure: &WorkerFailure) -> u8 {
    match failure.cause {
        _ if failure.out_of_memory => OUT_OF_MEMORY,
        ExitCause::Code(code) => u8::try_from(code).unwrap_or(FAILED),
        ExitCause::Signal(signal) => own_code_of_signal(signal),
    }
}

fn own_code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| SIGNAL_BASE.checked_add(signal)).unwrap_or(FAILED)
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
            "dlrover-run: error: {failure}, so the workers could not be supervised any more; all of them were \
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

/// The first line of the report.
fn summary(report: &Report) -> String {
    root_cause_of(report).map(|summary| format!("dlrover-run: root cause: {summary}\n")).unwrap_or_default()
}

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

/// What the failed worker of another node printed last.
fn words_of(root_cause: &RootCause) -> String {
    let RootCause { node, detail, .. } = root_cause;
    if detail.lines().is_empty() {
        return String::new();
    }
    let what = if detail.is_mixed() { "output" } else { "standard error" };
    let rank = detail.failure.rank;
    let lines: String = detail.lines().iter().map(|line| format!("    | {line}\n")).collect();
    format!("  last lines of the {what} of rank {rank} on {node}:\n{lines}")
}

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
            format!("failed on its own (rank {} ended before, after it had lost a connection)", first.rank)
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
    if let Some(worker) = worker
        && let Some(tail) = worker.stderr_tail.as_deref()
    {
        let lines = last_lines(tail);
        let what = if worker.tail_is_mixed { "output" } else { "standard error" };
        if !lines.is_empty() {
            text.push_str(&format!("  last lines of its {what}:\n{lines}"));
        }
    }
    let logs = worker.map(|worker| [&worker.stdout_log, &worker.stderr_log]);
    for log in logs.into_iter().flatten().flatten() {
        text.push_str(&format!("  log: {}\n", log.display()));
    }
    let has_logs =
        report.workers.values().any(|worker| worker.stdout_log.is_some() || worker.stderr_log.is_some());
    match &report.run_dir {
        Some(folder) if has_logs => text.push_str(&format!("  all logs: {}\n", folder.display())),
        Some(_) | None => {
            text.push_str("  no output was kept in files; --tee=3 --log-dir=DIR keeps all of it\n")
        }
    }
    text
}

/// A rank that exits while its peers still connect to it closes their connections. Scripts that make a process group
/// and never use it do that: found with one of accelerate's.
fn ended_before(failed: Rank, ended: &[Rank]) -> String {
    let what = counted(ended.len(), "rank");
    let names = ended.iter().take(NAMED_RANKS).map(Rank::to_string).collect::<Vec<_>>().join(", ");
    let more = if ended.len() > NAMED_RANKS { ", ..." } else { "" };
    format!(
        "  earlier, {what} of this node exited with code 0: {names}{more}. If rank {failed} lost its connection to one of \
         them, let all ranks meet at a barrier before they exit\n"
    )
}

/// What the OOM killer's counter says of a SIGKILL that is not known to be the OOM killer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OomCounter {
    /// It has not risen.
    Unchanged,
    /// It cannot be read on this host.
    Missing,
    /// The worker was another node's: its launcher knows.
    OfAnotherNode,
}

impl OomCounter {
    pub(crate) fn of(group: &GroupFailure) -> Self {
        if group.has_oom_counter { Self::Unchanged } else { Self::Missing }
    }
}

/// The meaning of an exit.
pub(crate) fn explained(failure: &WorkerFailure, counter: OomCounter) -> String {
    let signal = match failure.cause {
        ExitCause::Code(code) => return format!("exit code {code}"),
        ExitCause::Signal(signal) => signal,
    };
    let name = signal_text(signal);
    let meaning = match name.as_str() {
        _ if failure.out_of_memory => {
            "killed by the kernel's OOM killer; use less memory or raise the container's memory limit"
        }
        "SIGKILL" => match counter {
            OomCounter::Unchanged => {
                "killed by another process or by itself; not by the OOM killer, whose counter for this container did \
                 not rise"
            }
            OomCounter::Missing => {
                "killed by another process, by itself or by the OOM killer; this host has no OOM counter to read: check \
                 the kernel log (dmesg)"
            }
            OomCounter::OfAnotherNode => "see the output of that node's launcher",
        },
        "SIGPIPE" => "wrote to a pipe or socket whose reader has closed it",
        "SIGSEGV" => "segmentation fault in native code",
        "SIGBUS" => "memory behind a mapped file is missing; often /dev/shm is too small (--shm-size)",
        "SIGABRT" => "aborted; native code prints the reason on standard error",
        "SIGILL" => "illegal instruction; often code built for another CPU",
        "SIGFPE" => "arithmetic error in native code, such as a division by zero",
        "SIGTERM" | "SIGINT" | "SIGHUP" | "SIGQUIT" => {
            "sent by another process or by itself; not by this launcher"
        }
        _ => "see signal(7)",
    };
    format!("{name}, {meaning}")
}

/// The meaning of the exit of a worker that was not the first to fail. The launcher stops such workers itself.
pub(crate) fn explained_later(failure: &WorkerFailure, counter: OomCounter) -> String {
    match failure.cause {
        ExitCause::Signal(signal) if !failure.out_of_memory => match signal_text(signal).as_str() {
            name @ ("SIGTERM" | "SIGKILL") => {
                format!("{name}, which this launcher sends to the other workers after the first failure")
            }
            _ => explained(failure, counter),
        },
        ExitCause::Signal(_) | ExitCause::Code(_) => explained(failure, counter),
    }
}

fn unkillable(unkillable: &[UnkillableProcess]) -> String {
    let mut text = String::from("dlrover-run: these processes of the run could not be killed:\n");
    for process in unkillable {
        text.push_str(&format!("  {process}\n"));
    }
    text.push_str(
        "  A process in state D waits inside the kernel, mostly for a driver or a network file system; it ends when \
         that replies, or when the machine is restarted.\n",
    );
    text
}

/// The end of a worker's standard error as lines that are marked as quoted. Foreign bytes: control characters
/// but tabs are excluded, so that they cannot move the cursor of the terminal.
fn last_lines(tail: &[u8]) -> String {
    tail_lines(tail).iter().map(|line| format!("    | {line}\n")).collect()
}

/// The last lines that are not empty, without control characters.
pub(crate) fn tail_lines(tail: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(tail);
    let lines: Vec<&str> = text.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    let plain = |line: &&str| line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
    lines[first..].iter().map(plain).collect()
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

/// The error file of the launcher itself, which its parent reads to learn why it failed.
pub fn own_error_file(env: &[(OsString, OsString)]) -> Option<PathBuf> {
    Environment(env).get_filled("TORCHELASTIC_ERROR_FILE").map(PathBuf::from)
}

/// When the launcher itself was given an error file, the root cause's is copied there with its exit code, for
/// the scheduler above us (torchrun: the same). `message` is for a failure that is not a worker's.
///
/// # Errors
/// When the copy cannot be written.
pub fn copy_root_cause(report: &Report, message: &str, target: Option<&Path>) -> Result<(), CopyError> {
    let Some(target) = target else { return Ok(()) };
    let group = match &report.outcome {
        Outcome::Succeeded => return Ok(()),
        Outcome::Failed(Failure::Workers(group)) => group,
        Outcome::Failed(_) | Outcome::Interrupted(_) => return record_own(message, Some(target)),
    };
    let failures = dated(group, &report.workers);
    let Some(root) = failures.get(root_of(&failures, &report.workers)) else { return Ok(()) };
    let worker = report.workers.get(&root.local_rank);
    let Some(Ok(file)) = worker.and_then(|worker| worker.error_file.as_ref()) else { return Ok(()) };
    let mut document = file.document.clone();
    if let Some(Value::Object(error)) = document.get_mut("message") {
        error.insert("errorCode".into(), root.cause.python_code().into());
    }
    fs::write(target, document.to_string()).map_err(|source| CopyError { path: target.to_owned(), source })
}

/// When the launcher itself was given an error file, a failure of its own is written there, in the form of
/// `@record` (torchrun: the same, with its traceback).
///
/// # Errors
/// When the file cannot be written.
pub fn record_own(message: &str, target: Option<&Path>) -> Result<(), CopyError> {
    let Some(target) = target else { return Ok(()) };
    let message = message.trim_end();
    let now = chrono::Utc::now().timestamp().to_string();
    let document = serde_json::json!({
        "message": {"message": message, "extraInfo": {"py_callstack": message, "timestamp": now}}
    });
    fs::write(target, document.to_string()).map_err(|source| CopyError { path: target.to_owned(), source })
}

/// The launcher's own error file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the error file of the launcher itself, TORCHELASTIC_ERROR_FILE={}", path.display())]
pub struct CopyError {
    /// Where to.
    pub path: PathBuf,
    /// The system error.
    #[source]
    pub source: io::Error,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rules::{Attempt, NodeId, NodeRank, Round, last_lines::Output, node::NodeName};

    use super::*;
    use crate::endpoint::Endpoint;

    const ALONE: Rendezvous = Rendezvous::Loopback;

    fn failed(cause: ExitCause, out_of_memory: bool) -> Report {
        let failure = WorkerFailure {
            rank: Rank(1),
            local_rank: LocalRank(1),
            pid: 42,
            cause,
            unix_secs: 5,
            out_of_memory,
        };
        let group = GroupFailure {
            attempt: Attempt(1),
            failures: vec![failure],
            ended_before: vec![Rank(0), Rank(2)],
            has_oom_counter: true,
        };
        let evidence = WorkerEvidence {
            stderr_tail: Some(b"first\nTraceback\x1b[2J\n\nValueError: boom\n".to_vec()),
            stderr_log: Some("/logs/1/stderr.log".into()),
            ..WorkerEvidence::default()
        };
        Report {
            outcome: Outcome::Failed(Failure::Workers(group)),
            attempt: Attempt(1),
            run_dir: Some("/logs".into()),
            workers: BTreeMap::from([(LocalRank(1), evidence)]),
            never_arrived: vec![LocalRank(1)],
            unkillable: Vec::new(),
            root_cause: None,
            node_rank: None,
            host: "vm".into(),
        }
    }

    #[test]
    fn the_exit_code_is_one_unless_propagated() {
        for (cause, out_of_memory, own) in [
            (ExitCause::Code(7), false, 7),
            (ExitCause::Signal(11), false, 139),
            (ExitCause::Signal(9), true, OUT_OF_MEMORY),
        ] {
            let report = failed(cause, out_of_memory);
            assert_eq!(exit_code(&report, false, &ALONE), FAILED);
            assert_eq!(exit_code(&report, true, &ALONE), own);
        }
        let report = Report { outcome: Outcome::Interrupted(15), ..failed(ExitCause::Code(1), false) };
        assert_eq!((exit_code(&report, false, &ALONE), exit_code(&report, true, &ALONE)), (FAILED, 143));
        let report = Report { outcome: Outcome::Succeeded, ..report };
        assert_eq!(exit_code(&report, true, &ALONE), SUCCEEDED);
    }

    #[test]
    fn a_failed_rendezvous_has_its_own_code_with_dlrovers_master_only() {
        let endpoint = || Endpoint { host: "h".into(), port: 1 };
        let waited = Duration::from_secs(5);
        let away = Failure::MasterAway { reason: "refused".into(), waited };
        let losses = Vec::new();
        let too_few = JobFailure::TimedOut {
            joined: 1,
            needed: 2,
            waited,
            missing: Some([NodeRank(1)].into_iter().collect()),
            losses,
        };
        let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 1 };
        for failure in [away, Failure::Job(too_few)] {
            let outcome = Outcome::Failed(failure);
            let report = Report { outcome, workers: BTreeMap::new(), ..failed(ExitCause::Code(1), false) };
            for propagate in [false, true] {
                assert_eq!(exit_code(&report, propagate, &Rendezvous::Master(endpoint())), NO_RENDEZVOUS);
                for rendezvous in [Rendezvous::C10d(endpoint()), Rendezvous::Static(endpoint())] {
                    assert_eq!(exit_code(&report, propagate, &rendezvous), FAILED);
                }
            }
            let text = message(&report, &settings, &Rendezvous::C10d(endpoint())).unwrap();
            assert!(text.starts_with("dlrover-run: error: "), "{text}");
            assert!(text.contains("--rdzv-conf=join_timeout=SECONDS"), "{text}");
            assert_eq!(text.lines().count(), 2, "what happened, and what to do: {text}");
        }
    }

    #[test]
    fn a_failure_has_the_cause_the_attempt_the_last_lines_and_the_logs() {
        let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 1 };
        let text = message(&failed(ExitCause::Signal(9), true), &settings, &ALONE).unwrap();
        let mut parts = text.split("dlrover-run: ").skip(1);
        assert_eq!(
            parts.next(),
            Some(
                "root cause: rank 1 (local rank 1, host vm, pid 42): killed by the kernel's OOM killer: ValueError: boom\n"
            )
        );
        let before = parts.next().unwrap();
        assert!(
            before
                .starts_with("failed (exitcode: -9) local_rank: 1 (pid: 42) of binary: /bin/python3\ntorch."),
            "{before}"
        );
        let after = parts.next().unwrap();
        assert_eq!(
            after,
            "rank 1 (local rank 1, pid 42) failed first: SIGKILL, killed by the kernel's OOM killer; use less \
             memory or raise the container's memory limit\n  attempt: 2 of 2 (--max-restarts=1)\n  earlier, 2 \
             ranks of this node exited with code 0: 0, 2. If rank 1 lost its connection to one of them, let all ranks meet \
             at a barrier before they exit\n  never reached \
             the workers' store: local rank 1\n  last lines of its standard error:\n    | first\n    | Traceback[2J\n    \
             | ValueError: boom\n  log: /logs/1/stderr.log\n  all logs: /logs\n"
        );
    }

    #[test]
    fn a_sigkill_is_no_verdict_on_the_oom_killer_where_its_counter_cannot_be_read() {
        let Outcome::Failed(Failure::Workers(mut group)) = failed(ExitCause::Signal(9), false).outcome else {
            panic!("workers failed");
        };
        let text = |group: &GroupFailure| explained(&group.failures[0], OomCounter::of(group));
        let known = text(&group);
        assert!(
            known.contains("not by the OOM killer, whose counter for this container did not rise"),
            "{known}"
        );
        group.has_oom_counter = false;
        assert_eq!(
            text(&group),
            "SIGKILL, killed by another process, by itself or by the OOM killer; this host has no OOM counter to read: \
             check the kernel log (dmesg)"
        );
        let of_another = explained(&group.failures[0], OomCounter::OfAnotherNode);
        assert_eq!(of_another, "SIGKILL, see the output of that node's launcher");
    }

    #[test]
    fn a_guard_that_exits_is_a_bug_and_one_that_is_killed_is_not() {
        let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
        let text = |cause| {
            let outcome = Outcome::Failed(Failure::GuardDied { cause });
            message(&Report { outcome, ..failed(ExitCause::Code(1), false) }, &settings, &ALONE).unwrap()
        };
        assert_eq!(
            text(ExitCause::Code(1)),
            "dlrover-run: error: its guard process exited with code 1; all workers were killed. This is a bug: report it \
             with the lines above\n"
        );
        let killed = text(ExitCause::Signal(9));
        assert!(killed.contains("was killed by SIGKILL, so") && killed.contains("`kill -9`"), "{killed}");
        assert!(!killed.contains("bug"), "{killed}");
    }

    fn of_another_node() -> RootCause {
        let failure = WorkerFailure {
            rank: Rank(13),
            local_rank: LocalRank(5),
            pid: 4711,
            cause: ExitCause::Code(1),
            unix_secs: 4,
            out_of_memory: false,
        };
        let output = Output::new(b"Traceback (most recent call last):\n  x\nKeyError: 7\n", true);
        let (host, address, node_id) = ("b".into(), "10.0.0.2".into(), NodeId("b".into()));
        RootCause {
            round: Round(0),
            node: NodeName { rank: Some(NodeRank(1)), host, address, node_id },
            detail: FailureDetail::new(failure, None, &output, false),
        }
    }

    const OF_ANOTHER_NODE: &str = "dlrover-run: root cause: rank 13 (local rank 5, node rank 1, host b, pid 4711): exit code 1: KeyError: 7\n";

    const ITS_LINES: &str = "  last lines of the standard error of rank 13 on node rank 1 (b, 10.0.0.2):\n    | Traceback \
                             (most recent call last):\n    |   x\n    | KeyError: 7\n";

    #[test]
    fn a_node_whose_workers_were_well_says_what_the_failed_one_said() {
        let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
        let root_cause = of_another_node();
        let reason = root_cause.detail.failure.to_string();
        let job = JobFailure::Node { node: root_cause.node.clone(), reason };
        let outcome = Outcome::Failed(Failure::Job(job));
        let report = Report { outcome, root_cause: Some(root_cause), ..failed(ExitCause::Code(1), false) };
        assert_eq!(
            message(&report, &settings, &ALONE).unwrap(),
            format!(
                "{OF_ANOTHER_NODE}dlrover-run: error: node rank 1 (b, 10.0.0.2) failed: rank 13 (local rank 5, pid 4711) \
                 exited with code 1\n  See the output of that node's launcher.\n{ITS_LINES}"
            )
        );
        let stopped = Report { outcome: Outcome::Interrupted(15), ..report };
        let text = message(&stopped, &settings, &ALONE).unwrap();
        assert_eq!(text, "dlrover-run: stopped by SIGTERM; no worker is left\n");
    }

    #[test]
    fn a_node_whose_workers_failed_too_says_which_failed_before() {
        let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
        let report = Report { root_cause: Some(of_another_node()), ..failed(ExitCause::Code(1), false) };
        let text = message(&report, &settings, &ALONE).unwrap();
        assert!(text.starts_with(OF_ANOTHER_NODE) && text.ends_with(ITS_LINES), "{text}");
        assert_eq!(text.matches("root cause:").count(), 1, "{text}");
        assert!(text.contains("pid 42) failed first on this node: exit code 1\n"), "{text}");
        assert!(text.contains("ChildFailedError: \n") && text.contains("    | ValueError: boom\n"), "{text}");
    }

    #[test]
    fn the_copy_for_the_scheduler_carries_the_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("mine.json");
        let mut report = failed(ExitCause::Code(3), false);
        let source = folder.path().join("error.json");
        fs::write(&source, r#"{"message": {"message": "boom", "extraInfo": {}}}"#).unwrap();
        let evidence = report.workers.get_mut(&LocalRank(1)).unwrap();
        evidence.error_file = agent::read_error_file(&source).transpose();
        copy_root_cause(&report, "", Some(&target)).unwrap();
        let copy: Value = serde_json::from_str(&fs::read_to_string(&target).unwrap()).unwrap();
        assert_eq!(copy["message"]["errorCode"], 3);
        assert!(copy_root_cause(&report, "", Some(Path::new("/nowhere/x"))).is_err());
        report.outcome = Outcome::Interrupted(15);
        copy_root_cause(&report, "dlrover-run: ended\n", Some(&target)).unwrap();
        let own = agent::read_error_file(&target).unwrap().unwrap();
        assert_eq!(own.account, "dlrover-run: ended");
        assert!(own.unix_secs.is_some());
    }
}
