//! What is known of the failure that ended a round, for the reports of all nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    failure::{ExitCause, WorkerFailure, root_cause},
    ids::{NodeRank, Round},
    last_lines::{MAX_BYTES, MAX_LINES, Output, is_error, message, readable},
    node::NodeName,
    signal_name::signal_text,
};

/// The most bytes of a last line in a summary.
const MAX_LAST_LINE: usize = 200;

const SIGTERM: i32 = 15;

/// SIGILL, SIGBUS, SIGFPE, SIGSEGV: faults of the process itself.
const CRASHES: [i32; 4] = [4, 7, 8, 11];

/// Parts of errors, in small letters, of a process whose peer is gone or that was stopped: errors of sockets (Python,
/// glibc), of torch's store, of gloo and NCCL (`ncclRemoteError`), of torch's and Python's handlers of signals.
const CONSEQUENCES: [&str; 21] = [
    "connection reset",
    "connection closed",
    "connection refused",
    "connection aborted",
    "connection was closed",
    "connectionerror",
    "connectionreseterror",
    "connectionrefusederror",
    "connectionabortederror",
    "broken pipe",
    "brokenpipeerror",
    "by peer",
    "hung up",
    "socket closed",
    "remote process exited",
    "ncclremoteerror",
    "distnetworkerror",
    "collective operation timeout",
    "signalexception",
    "killed by signal",
    "keyboardinterrupt",
];

/// How much later than the first a failure may have been noticed to be its cause, in whole seconds.
const CAUSE_WITHIN_SECS: i64 = 2;

/// The place of the root cause among the failures of one node in the order in which they were noticed: the earliest, as
/// torchrun has it; but where that one says that it lost a connection, the next that has an error of its own. A process
/// closes its connections before it ends, so a peer may notice that, and end, first.
#[must_use]
pub fn root_cause_of(details: &[FailureDetail]) -> usize {
    let failures: Vec<WorkerFailure> = details.iter().map(|detail| detail.failure.clone()).collect();
    let first = root_cause(&failures);
    let Some(earliest) = details.get(first).filter(|detail| detail.is_consequence()) else { return first };
    let limit = earliest.failure.unix_secs.saturating_add(CAUSE_WITHIN_SECS);
    let is_cause = |detail: &FailureDetail| detail.failure.unix_secs <= limit && detail.is_own_error();
    details.iter().position(is_cause).unwrap_or(first)
}

/// What a node knows of the failure of one of its workers. Bounded, and plain text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureDetail {
    pub failure: WorkerFailure,
    /// Its error in one line; empty if unknown.
    message: String,
    /// The last lines of its standard error.
    lines: Vec<String>,
    /// They are also of its standard output.
    is_mixed: bool,
}

impl FailureDetail {
    /// Nothing is known but its end.
    #[must_use]
    pub fn bare(failure: WorkerFailure) -> Self {
        Self { failure, message: String::new(), lines: Vec::new(), is_mixed: false }
    }

    /// With the error that the worker has recorded, and the end of its output.
    #[must_use]
    pub fn new(failure: WorkerFailure, recorded: Option<&str>, output: &Output, is_mixed: bool) -> Self {
        let recorded = recorded.map(message).filter(|message| !message.is_empty());
        let message = recorded.or_else(|| output.error(is_mixed)).unwrap_or_default();
        Self { failure, message, lines: output.last(), is_mixed }
    }

    /// As another process gave it: bounded and made plain again.
    #[must_use]
    pub fn received(failure: WorkerFailure, text: &str, lines: &[String], is_mixed: bool) -> Self {
        let mut left = MAX_BYTES;
        let lines = lines.iter().take(MAX_LINES).map(|line| readable(line)).take_while(|line| {
            let fits = left.checked_sub(line.len() + 1);
            left = fits.unwrap_or(0);
            fits.is_some()
        });
        Self { failure, message: message(text), lines: lines.collect(), is_mixed }
    }

    /// Its error in one line; empty if unknown.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether its own words say that it failed because of another process: it lost a connection, or was stopped. What
    /// ended before it is the cause then.
    #[must_use]
    pub fn is_consequence(&self) -> bool {
        // The launcher stops the peers of a rank that failed. What such a one printed last is an error only if it was about
        // to end with one.
        let is_stopped = self.failure.cause == ExitCause::Signal(SIGTERM) && !is_error(&self.message);
        // Of a stream that others write to, too, the last line need not be an error, but these words are one.
        let last = self.lines.last().filter(|_| self.message.is_empty());
        let words = last.unwrap_or(&self.message).to_ascii_lowercase();
        is_stopped || CONSEQUENCES.iter().any(|part| words.contains(part))
    }

    /// Whether its own words say what went wrong, and that is nothing that another process did to it.
    #[must_use]
    pub fn is_own_error(&self) -> bool {
        let is_crash = matches!(self.failure.cause, ExitCause::Signal(signal) if CRASHES.contains(&signal));
        is_crash || !self.message.is_empty() && !self.is_consequence()
    }

    /// The last lines of its output, at most 20 and 4 KiB. The first may say how many are missing.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The last line of an output whose error is not known. Of a worker that was killed it explains nothing.
    fn last_line(&self) -> Option<&str> {
        let last = self.lines.last().map(|line| line.trim())?;
        let has_exited = matches!(self.failure.cause, ExitCause::Code(_)) && !self.failure.out_of_memory;
        (self.message.is_empty() && has_exited && last.len() <= MAX_LAST_LINE).then_some(last)
    }

    /// Whether the lines are of its standard output too.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }
}

/// The failure that ended a round, and where it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootCause {
    pub round: Round,
    pub node: NodeName,
    pub detail: FailureDetail,
}

impl fmt::Display for RootCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Summary { detail: &self.detail, node_rank: self.node.rank, host: &self.node.host }.fmt(f)
    }
}

/// A failure in one line: `rank 13 (local rank 5, node rank 1, host b, pid 4711): exited with code 1: RuntimeError: boom`.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'a> {
    pub detail: &'a FailureDetail,
    /// `None`: there is one node.
    pub node_rank: Option<NodeRank>,
    pub host: &'a str,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailureDetail { failure, message, .. } = self.detail;
        let WorkerFailure { rank, local_rank, pid, cause, out_of_memory, .. } = failure;
        write!(f, "rank {rank} (local rank {local_rank}, ")?;
        if let Some(node_rank) = self.node_rank {
            write!(f, "node rank {node_rank}, ")?;
        }
        write!(f, "host {}, pid {pid}): ", self.host)?;
        match cause {
            _ if *out_of_memory => f.write_str("killed by the kernel's OOM killer")?,
            ExitCause::Code(code) => write!(f, "exited with code {code}")?,
            ExitCause::Signal(signal) => write!(f, "killed by {}", signal_text(*signal))?,
        }
        match self.detail.last_line() {
            Some(line) => write!(f, "; last line: \"{line}\""),
            None if message.is_empty() => Ok(()),
            None => write!(f, ": {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{LocalRank, NodeId, Rank};

    fn failure(cause: ExitCause) -> WorkerFailure {
        WorkerFailure {
            rank: Rank(13),
            local_rank: LocalRank(5),
            pid: 4711,
            cause,
            unix_secs: 0,
            out_of_memory: false,
        }
    }

    #[test]
    fn a_root_cause_is_one_line_that_names_the_worker_and_its_error() {
        let output = Output::new(b"Traceback (most recent call last):\n  x\nValueError: boom\n", true);
        let detail = FailureDetail::new(failure(ExitCause::Code(1)), None, &output, false);
        let node = NodeName {
            rank: Some(NodeRank(1)),
            host: "b".into(),
            address: "10.0.0.2".into(),
            node_id: NodeId("b".into()),
        };
        assert_eq!(
            RootCause { round: Round(0), node, detail: detail.clone() }.to_string(),
            "rank 13 (local rank 5, node rank 1, host b, pid 4711): exited with code 1: ValueError: boom"
        );
        assert_eq!(
            Summary { detail: &detail, node_rank: None, host: "b" }.to_string(),
            "rank 13 (local rank 5, host b, pid 4711): exited with code 1: ValueError: boom"
        );
        let recorded = FailureDetail::new(failure(ExitCause::Code(1)), Some("own words\nx"), &output, false);
        assert_eq!(recorded.message(), "own words");
        let bare = FailureDetail::bare(failure(ExitCause::Signal(11)));
        assert_eq!(
            Summary { detail: &bare, node_rank: None, host: "b" }.to_string(),
            "rank 13 (local rank 5, host b, pid 4711): killed by SIGSEGV"
        );
        let oom = WorkerFailure { out_of_memory: true, ..failure(ExitCause::Signal(9)) };
        assert!(
            Summary { detail: &FailureDetail::bare(oom), node_rank: None, host: "b" }
                .to_string()
                .ends_with("pid 4711): killed by the kernel's OOM killer")
        );
    }

    fn said(rank: u32, cause: ExitCause, words: &str) -> FailureDetail {
        let failure = WorkerFailure { rank: Rank(rank), cause, ..failure(cause) };
        FailureDetail::received(failure, words, &[], false)
    }

    #[test]
    fn the_root_cause_is_the_earliest_unless_that_lost_a_connection() {
        const CODE: ExitCause = ExitCause::Code(1);
        const TERM: ExitCause = ExitCause::Signal(15);
        let lost = |rank| said(rank, CODE, "ConnectionResetError: [Errno 104] Connection reset by peer");
        let own = |rank| said(rank, CODE, "RuntimeError: no data in shard 13");
        assert_eq!(root_cause_of(&[own(0), lost(1)]), 0);
        assert_eq!(root_cause_of(&[lost(0), own(1)]), 1);
        assert_eq!(root_cause_of(&[lost(0), said(1, TERM, ""), own(2)]), 2, "the second one was stopped");
        let warned = said(1, TERM, "train.py:7: UserWarning: x");
        assert_eq!(root_cause_of(&[lost(0), warned, own(2)]), 2, "a warning is no error");
        assert_eq!(root_cause_of(&[lost(0), said(1, TERM, "ValueError: boom")]), 1, "stopped while it ended");
        assert_eq!(root_cause_of(&[lost(0), said(1, ExitCause::Signal(11), "")]), 1);
        assert_eq!(root_cause_of(&[said(0, CODE, ""), own(1)]), 0, "nothing speaks against the first one");
        assert_eq!(root_cause_of(&[lost(0), lost(1), said(2, TERM, "")]), 0);
        assert_eq!(root_cause_of(&[]), 0);
        let mixed = FailureDetail::new(
            failure(CODE),
            None,
            &Output::new(b"step 7\nrank 0: lost a neighbour: the other side hung up\n", true),
            true,
        );
        assert_eq!(root_cause_of(&[mixed, own(1)]), 1, "on a terminal");
        let mut late = own(1);
        late.failure.unix_secs = 3;
        assert_eq!(root_cause_of(&[lost(0), late]), 0, "too late to be the cause");
    }

    #[test]
    fn without_a_known_error_the_last_line_is_in_the_summary_if_it_is_short() {
        let summary = |cause, output: &str| {
            let output = Output::new(output.as_bytes(), true);
            let detail = FailureDetail::new(failure(cause), None, &output, true);
            Summary { detail: &detail, node_rank: None, host: "b" }.to_string()
        };
        let exited = "rank 13 (local rank 5, host b, pid 4711): exited with code 1";
        let code = ExitCause::Code(1);
        assert_eq!(summary(code, "1\n no GPU for me\n"), format!("{exited}; last line: \"no GPU for me\""));
        assert_eq!(summary(code, "1\nSyntaxError: x\n"), format!("{exited}: SyntaxError: x"));
        assert_eq!(summary(code, &"x".repeat(MAX_LAST_LINE + 1)), exited);
        assert_eq!(summary(code, ""), exited);
        assert!(summary(ExitCause::Signal(9), "step 1\n").ends_with(": killed by SIGKILL"));
    }

    #[test]
    fn what_is_received_is_bounded_and_plain_whatever_it_was() {
        let lines = vec!["\x1b[2J".repeat(9) + "a"; 30];
        let received = FailureDetail::received(failure(ExitCause::Code(1)), "b\x07\nc", &lines, true);
        assert_eq!((received.message(), received.lines().len()), ("b", MAX_LINES));
        assert!(received.lines().iter().all(|line| line == "a"), "{received:?}");
        let long = vec!["x".repeat(3000); 3];
        let received = FailureDetail::received(failure(ExitCause::Code(1)), "", &long, false);
        assert_eq!(received.lines().len(), 1);
    }
}
