//! The box that torchrun prints when workers fail (`ChildFailedError`), to the letter: tools parse it.

use std::{collections::BTreeMap, fmt::Write as _};

use agent::WorkerEvidence;
use chrono::{Local, TimeZone as _};
use rules::{
    LocalRank,
    failure::{ExitCause, WorkerFailure},
    signal_name::signal_name,
};
use serde_json::Value;

use crate::failure::root_of;

/// Widest line of dashes, in characters.
const MAX_WIDTH: usize = 60;

const NOT_AVAILABLE: &str = "<N/A>";

/// The report in the box.
#[derive(Debug)]
pub struct ChildFailed<'a> {
    /// The script, the module or the program, as given.
    pub title: &'a str,
    /// This host.
    pub host: &'a str,
    /// First noticed first, with the times their error files give.
    pub failures: &'a [WorkerFailure],
    /// The error files of the workers.
    pub evidence: &'a BTreeMap<LocalRank, WorkerEvidence>,
}

impl ChildFailed<'_> {
    /// The box, with a newline at the end of each line.
    #[must_use]
    pub fn text(&self) -> String {
        let root = root_of(self.failures, self.evidence);
        let blocks: Vec<String> =
            self.failures.iter().enumerate().map(|(index, failure)| self.block(index, failure)).collect();
        let title = format!("{} FAILED", self.title);
        let widest = blocks.iter().flat_map(|block| block.split('\n')).chain([title.as_str()]);
        let width = widest.map(|line| line.chars().count()).max().unwrap_or(0).min(MAX_WIDTH);
        let border = "=".repeat(width);
        let section = "-".repeat(width);
        let others: Vec<&str> = blocks
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != root)
            .map(|(_, block)| block.as_str())
            .collect();
        let others = if others.is_empty() { "  <NO_OTHER_FAILURES>".to_owned() } else { others.join("\n") };
        let root = blocks.get(root).map_or("", String::as_str);
        // The blank at the end of the first line is torchrun's.
        format!(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{border}\n{title}\n{section}\n\
             Failures:\n{others}\n{section}\nRoot Cause (first observed failure):\n{root}\n{border}\n"
        )
    }

    fn block(&self, index: usize, failure: &WorkerFailure) -> String {
        let error_file = self
            .evidence
            .get(&failure.local_rank)
            .and_then(|worker| worker.error_file.as_ref()?.as_ref().ok());
        let signal = match failure.cause {
            ExitCause::Code(_) => String::new(),
            ExitCause::Signal(signal) => {
                signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default()
            }
        };
        let account = match (error_file, failure.cause) {
            // torchrun indents what `@record` writes, and leaves a plain text as it is.
            (Some(file), _) if file.document.get("message").is_some_and(Value::is_string) => {
                file.account.clone()
            }
            (Some(file), _) => file.account.replace('\n', "\n  "),
            (None, ExitCause::Signal(signal)) => format!(
                "Signal {signal} ({}) received by PID {}",
                signal_name(signal).unwrap_or(NOT_AVAILABLE),
                failure.pid
            ),
            (None, ExitCause::Code(_)) => {
                "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html".into()
            }
        };
        let path = error_file.map_or(NOT_AVAILABLE.into(), |file| file.path.display().to_string());
        let mut block = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            block,
            "[{index}]:\n  time      : {time}\n  host      : {host}\n  rank      : {rank} (local_rank: \
             {local_rank})\n  exitcode  : {code} (pid: {pid}) {signal}\n  error_file: {path}\n  traceback : {account}",
            time = local_time(failure.unix_secs),
            host = self.host,
            rank = failure.rank,
            local_rank = failure.local_rank,
            code = failure.cause.python_code(),
            pid = failure.pid,
        );
        block
    }
}

/// `2026-11-21_00:00:44`, in the host's time zone.
fn local_time(unix_secs: i64) -> String {
    match Local.timestamp_opt(unix_secs, 0).earliest() {
        Some(time) => time.format("%Y-%m-%d_%H:%M:%S").to_string(),
        None => unix_secs.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rules::Rank;

    use super::*;

    fn failure(rank: u32, pid: i32, cause: ExitCause) -> WorkerFailure {
        WorkerFailure {
            rank: Rank(rank),
            local_rank: LocalRank(rank),
            pid,
            cause,
            unix_secs: 1_763_683_244,
            out_of_memory: false,
        }
    }

    fn text(failures: &[WorkerFailure]) -> String {
        let evidence = BTreeMap::new();
        let time = local_time(1_763_683_244);
        ChildFailed { title: "fail.py", host: "localhost", failures, evidence: &evidence }
            .text()
            .replace(&time, "2026-11-21_00:00:44")
    }

    #[test]
    fn the_box_is_torchruns_to_the_letter() {
        // What torchrun 2.15 prints; `.ci/run` compares with the real one (tests/torchrun).
        let expected = "\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
fail.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_00:00:44
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 18208)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 18208
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_00:00:44
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 18209) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
";
        let failures = [failure(1, 18209, ExitCause::Code(3)), failure(0, 18208, ExitCause::Signal(15))];
        assert_eq!(text(&failures), expected);
    }

    #[test]
    fn a_signal_without_a_name_and_no_other_failures() {
        let box_text = text(&[failure(0, 7, ExitCause::Signal(40))]);
        assert!(box_text.contains("\n  exitcode  : -40 (pid: 7) \n"), "{box_text}");
        assert!(box_text.contains("Signal 40 (<N/A>) received by PID 7"), "{box_text}");
        assert!(box_text.contains("Failures:\n  <NO_OTHER_FAILURES>\n"), "{box_text}");
    }
}
