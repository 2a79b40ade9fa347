//! Checkpoints in memory, with real launchers, savers and workers. The workers use the Python client: without torch
//! (`trainers/flash.py`), and with it in [`torch`].

mod alone;
mod client;
mod nodes;
mod torch;

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use support::{census::Process, launch::Launch, launch::Running, tests_dir, trainer};

/// A launch of the trainer with these steps.
fn flash(launch: Launch, folder: &Path, steps: &[&str]) -> Launch {
    let client = tests_dir().parent().expect("the repository").join("packaging/wheel/python");
    launch
        .script(trainer("flash.py"))
        .env("PYTHONPATH", client)
        .env("FLASH_DIR", folder)
        .env("FLASH", steps.join("\n"))
}

/// A checkpoint directory.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("flash-").tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn manifest(&self, step: u64) -> PathBuf {
        self.path().join(format!(".dlrover/{step}.json"))
    }

    /// The step of the tracker; all that its manifest names must be there.
    fn step(&self) -> Option<u64> {
        let tracker = fs::read_to_string(self.path().join("dlrover_latest.txt")).ok()?;
        let step = tracker.parse().unwrap_or_else(|_| panic!("the tracker says {tracker:?}"));
        let manifest =
            fs::read_to_string(self.manifest(step)).expect("the tracker names a step with a manifest");
        let manifest: Value = serde_json::from_str(&manifest).expect("a manifest is JSON");
        let shards = manifest["shards"].as_array().expect("a list of shards");
        assert_eq!(Some(shards.len() as u64), manifest["n_shards"].as_u64(), "{manifest:#}");
        for shard in shards {
            let file = self.path().join(shard["file"].as_str().expect("a name"));
            let bytes =
                fs::metadata(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())).len();
            assert_eq!(Some(bytes), shard["bytes"].as_u64(), "{}", file.display());
        }
        Some(step)
    }

    /// No file of a write that was broken off.
    fn assert_swept(&self) {
        let mut left = Vec::new();
        names(self.path(), &mut left);
        left.retain(|name| name.contains("dlrover-tmp"));
        assert!(left.is_empty(), "{left:?}");
    }
}

fn names(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        names(&entry.path(), found);
    }
}

/// Where a worker has loaded from, and which step.
fn loaded(text: &str) -> (String, Option<u64>) {
    let loaded: Value = serde_json::from_str(text).expect("the trainer writes JSON");
    (loaded["source"].as_str().expect("a source").to_owned(), loaded["step"].as_u64())
}

fn from(source: &str, step: u64) -> (String, Option<u64>) {
    (source.to_owned(), Some(step))
}

fn nothing() -> (String, Option<u64>) {
    ("none".to_owned(), None)
}

/// As by `kill -9`, of what has written its process id.
fn kill_pid(text: &str) {
    let pid = text.parse().expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");
}

/// The savers of a run.
fn savers(run: &Running) -> Vec<i32> {
    let processes = run.processes().into_iter();
    let is_saver = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"dlrover-saver\0") && Process::of(pid).is_some_and(|process| process.is_alive())
    };
    processes.map(|process| process.pid).filter(|pid| is_saver(*pid)).collect()
}
