//! What a worker saw: the probe's dump, and the launcher's report as a table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::launch::RESET_SIGNALS;

/// What `dump` of `trainers/probe.py` writes.
#[derive(Debug, Deserialize)]
pub struct Dump {
    pub env: BTreeMap<String, String>,
    pub argv: Vec<String>,
    /// The worker's command line as the kernel has it.
    pub command: Vec<String>,
    pub cwd: PathBuf,
    pub fds: BTreeMap<String, String>,
    pub pid: i32,
    pub ppid: i32,
    pub pgid: i32,
    pub sid: i32,
    pub umask: u32,
    #[serde(deserialize_with = "mask")]
    pub ignored_signals: u64,
    #[serde(deserialize_with = "mask")]
    pub blocked_signals: u64,
}

impl Dump {
    /// A variable, or `(unset)`.
    #[must_use]
    pub fn var(&self, name: &str) -> &str {
        self.env.get(name).map_or("(unset)", String::as_str)
    }
}

/// Signals 32 and 33 belong to the C library, and its `posix_spawn` leaves them ignored or not.
const OF_THE_C_LIBRARY: u64 = 0b11 << 31;

/// A signal mask as `/proc/<pid>/status` writes it.
fn mask<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let mask = u64::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)?;
    Ok(mask & !OF_THE_C_LIBRARY)
}

/// What a Python worker of a launcher under test ignores, as in a [`Dump`]: what this process ignores and the start of a
/// launcher does not reset, what Python itself ignores (SIGPIPE and SIGXFSZ), and `more`.
///
/// # Panics
/// On a system that is not Linux.
#[must_use]
pub fn ignored_signals(more: &[Signal]) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let ours = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("Linux says it");
    let ours = u64::from_str_radix(ours, 16).expect("it is a mask") & !OF_THE_C_LIBRARY;
    let bit = |signal: Signal| 1 << (signal as u32 - 1);
    let ours = RESET_SIGNALS.iter().fold(ours, |set, &one| set & !bit(one));
    more.iter().chain(&[Signal::SIGPIPE, Signal::SIGXFSZ]).fold(ours, |set, &one| set | bit(one))
}

/// The box in which torchrun reports a failed run.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    pub title: String,
    pub failures: Vec<Failure>,
    pub root_cause: Failure,
    /// The widths of the four rules.
    pub rules: [usize; 4],
}

/// One worker in the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The number in `[0]:`, the order of detection.
    pub index: u32,
    pub time: String,
    pub host: String,
    pub rank: String,
    /// What follows `exitcode  : `, with the pid replaced by `PID`.
    pub exitcode: String,
    pub pid: i32,
    pub error_file: String,
    /// May have several lines; the pid replaced by `PID`.
    pub traceback: String,
}

impl Report {
    /// Reads the box out of a launcher's stderr, strictly, as a tool that parses it would.
    ///
    /// # Errors
    /// The first thing that is not as torchrun writes it.
    pub fn read(stderr: &str) -> Result<Self, String> {
        let head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";
        let (_, report) = stderr.split_once(head).ok_or("no ChildFailedError headline")?;
        let mut lines = report.lines();
        let mut next = move |what: &str| lines.next().ok_or(format!("ended before {what}"));
        let rule = |line: &str, of: char| {
            let same = !line.is_empty() && line.chars().all(|c| c == of);
            same.then_some(line.len()).ok_or(format!("`{line}` is no rule of {of}"))
        };
        let exactly = |line: &str, want: &str| {
            (line == want).then_some(()).ok_or(format!("`{line}` where `{want}` belongs"))
        };
        let first = rule(next("the first rule")?, '=')?;
        let title = next("the title")?;
        let title = title.strip_suffix(" FAILED").ok_or(format!("title `{title}`"))?.to_owned();
        let second = rule(next("the second rule")?, '-')?;
        exactly(next("failures")?, "Failures:")?;
        let mut blocks = vec![Vec::new()];
        let third = loop {
            let line = next("the third rule")?;
            if let Ok(width) = rule(line, '-') {
                break width;
            }
            blocks[0].push(line.to_owned());
        };
        exactly(next("the root cause")?, "Root Cause (first observed failure):")?;
        blocks.push(Vec::new());
        let last = loop {
            let line = next("the last rule")?;
            if let Ok(width) = rule(line, '=') {
                break width;
            }
            blocks[1].push(line.to_owned());
        };
        let failures = match &blocks[0][..] {
            [only] if only == "  <NO_OTHER_FAILURES>" => Vec::new(),
            lines => read_failures(lines)?,
        };
        let [root_cause] = &read_failures(&blocks[1])?[..] else {
            return Err(format!("not one root cause: {:?}", blocks[1]));
        };
        Ok(Self { title, failures, root_cause: root_cause.clone(), rules: [first, second, third, last] })
    }

    /// All failures, the root cause too, by rank.
    #[must_use]
    pub fn by_rank(&self) -> Vec<&Failure> {
        let mut all: Vec<_> = self.failures.iter().chain([&self.root_cause]).collect();
        all.sort_by_key(|failure| failure.rank.clone());
        all
    }
}

fn read_failures(lines: &[String]) -> Result<Vec<Failure>, String> {
    let mut all = Vec::new();
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let index = line.strip_prefix('[').and_then(|rest| rest.strip_suffix("]:"));
        let index = index.and_then(|index| index.parse().ok()).ok_or(format!("`{line}` is no `[n]:`"))?;
        let mut field = |name: &str| {
            let line = lines.next().map_or("", String::as_str);
            line.strip_prefix(name).map(str::to_owned).ok_or(format!("`{line}` where `{name}` belongs"))
        };
        let time = field("  time      : ")?;
        let host = field("  host      : ")?;
        let rank = field("  rank      : ")?;
        let exitcode = field("  exitcode  : ")?;
        let error_file = field("  error_file: ")?;
        let mut traceback = field("  traceback : ")?;
        while let Some(more) = lines.next_if(|line| !line.starts_with('[')) {
            traceback.push('\n');
            traceback.push_str(more);
        }
        let pid = exitcode.split_once("(pid: ").and_then(|(_, rest)| rest.split_once(')'));
        let pid: i32 = pid.and_then(|(pid, _)| pid.parse().ok()).ok_or(format!("no pid in `{exitcode}`"))?;
        let without_pid = |text: &str| text.replace(&pid.to_string(), "PID");
        let (exitcode, traceback) = (without_pid(&exitcode), without_pid(&traceback));
        all.push(Failure { index, time, host, rank, exitcode, pid, error_file, traceback });
    }
    Ok(all)
}
