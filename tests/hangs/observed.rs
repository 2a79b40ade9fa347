//! What is seen of one job: the launcher's line of a hang, its status, and the files.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use serde_json::Value;
use support::{
    launch::{Launch, Running},
    wait_for,
};

use crate::case::Case;

/// A job that has neither hung nor ended by then is not declared. Four ranks that import torch on a loaded machine
/// take a good part of it.
const LIMIT: Duration = Duration::from_secs(180);

/// A hang that was declared.
#[derive(Debug)]
pub(crate) struct Hang {
    /// The launcher's line.
    pub(crate) line: String,
    /// `hang` of the status.
    pub(crate) status: Value,
    /// Seconds from the last step of any rank to the verdict, with the stacks that it is made of.
    pub(crate) after: f64,
    /// Names of the files of stacks.
    pub(crate) files: BTreeSet<String>,
}

impl Hang {
    pub(crate) fn ranks(&self) -> BTreeSet<u32> {
        let ranks = self.status["ranks"].as_array().expect("a list of ranks");
        ranks
            .iter()
            .map(|rank| rank.as_u64().and_then(|rank| rank.try_into().ok()).expect("a rank"))
            .collect()
    }

    pub(crate) fn sentence(&self) -> &str {
        self.status["sentence"].as_str().expect("a sentence")
    }
}

/// How a job went.
#[derive(Debug)]
pub(crate) enum Observed {
    Declared(Box<Hang>),
    /// It succeeded, and no hang was declared.
    Ended,
    /// It failed by itself: torch ends a process now and then when a peer has closed its connection.
    Failed(String),
    /// It neither ended, nor was it declared as hanging.
    Unnoticed,
}

/// The lines of hangs in what a launcher has said; not those of a master that it serves.
pub(crate) fn hang_lines(stderr: &str) -> Vec<String> {
    let is_hang = |line: &&str| line.contains("hang: no rank has") && !line.contains(": master: ");
    stderr.lines().filter(is_hang).map(str::to_owned).collect()
}

/// Waits for the launcher's line of a hang.
pub(crate) fn await_hang(run: &Running) -> String {
    let mut told = String::new();
    let line = || {
        told = run.stderr();
        hang_lines(&told).into_iter().next()
    };
    wait_for("a hang that is declared", line)
}

/// The status of a job of this host.
pub(crate) fn status(run_id: &str) -> Value {
    let output = diag(&["status", "--run-id", run_id, "--json"]);
    serde_json::from_str(&output).expect("a status")
}

/// What `dlrover-diag` prints; it must succeed.
pub(crate) fn diag(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
    command.args(args).env_remove("DLROVER_MASTER_ADDR").env_remove("DLROVER_JOB_TOKEN");
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The names of the files in a directory, without the report for the operator, which follows when the nodes are told.
pub(crate) fn files(folder: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    names.filter(|name| !name.starts_with(REPORT)).collect()
}

/// The report for the operator.
pub(crate) const REPORT: &str = "hang.json";

/// The files that a hang of so many ranks has.
pub(crate) fn all_files(ranks: u32) -> BTreeSet<String> {
    let merged = ["py_stack", "cpp_stack", "py_stack.svg", "cpp_stack.svg"].map(str::to_owned);
    (0..ranks).map(|rank| format!("{rank:05}-{ranks:05}.stacktrace")).chain(merged).collect()
}

/// Seconds since the last step that a rank has noted in this directory.
fn seconds_since_last_step(folder: &Path) -> f64 {
    let notes = files(folder).into_iter().filter(|name| name.starts_with("told."));
    let times = notes.filter_map(|name| fs::metadata(folder.join(name)).ok()?.modified().ok());
    let last = times.max().unwrap_or(SystemTime::UNIX_EPOCH);
    last.elapsed().unwrap_or_default().as_secs_f64()
}

/// Runs a case until its hang is declared, or to its end; nothing is left of it.
pub(crate) fn observe(case: &Case, launch: Launch) -> Observed {
    let start = Instant::now();
    let mut run = launch.start();
    loop {
        let has_ended = run.has_ended();
        if let Some(line) = hang_lines(&run.stderr()).into_iter().next() {
            let status = if has_ended { Value::Null } else { status(run.await_file("run-id").trim()) };
            // What this test does after the verdict of the job master does not count.
            let since = status["hang"]["seconds_ago"].as_f64().unwrap_or_default();
            let after = seconds_since_last_step(run.dir()) - since;
            let files = files(&run.dir().join("stacks"));
            return Observed::Declared(Box::new(Hang { line, status: status["hang"].clone(), after, files }));
        }
        if has_ended {
            let stderr = run.stderr();
            return match run.finish().code {
                Some(0) => Observed::Ended,
                code => Observed::Failed(format!("{case:?} ended with {code:?}: {stderr}")),
            };
        }
        if start.elapsed() > LIMIT {
            return Observed::Unnoticed;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
