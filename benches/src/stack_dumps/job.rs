//! A job of one node, whose workers are all where they are to be.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};

use super::Setup;
use crate::{
    Outcome,
    launcher::{Running, TIMEOUT},
    processes::variable,
};

/// A running job. Dropped, it is stopped.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) running: Running,
    pub(super) run_id: String,
    /// The process of each rank.
    pub(super) pids: BTreeMap<usize, i32>,
    gate: Option<File>,
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) workers: usize,
    /// Options of the launcher.
    pub(super) options: &'a [&'a str],
    /// Arguments of the worker.
    pub(super) arguments: &'a [&'a str],
    /// The directory for the stacks of a hang.
    pub(super) stacks: &'a Path,
    /// The name of the file for the launcher's standard error.
    pub(super) stderr: &'a str,
    /// What holds workers back that wait for it.
    pub(super) gate: Option<&'a Path>,
}

/// The pipe that holds workers back, which is an argument of theirs. Jobs at the same time have pipes of two names.
pub(super) fn gate(setup: &Setup, name: &str) -> Outcome<PathBuf> {
    let path = setup.bench.folder.path().join(name);
    if !path.exists() {
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
    }
    Ok(path)
}

impl Job {
    /// Starts a job, and waits for the first stamp of each worker.
    pub(super) fn start(setup: &mut Setup, plan: Plan<'_>) -> Outcome<Self> {
        // Open for reading too, or opening it would wait for a reader.
        let open = |path| OpenOptions::new().read(true).write(true).open(path);
        let gate = plan.gate.map(open).transpose()?;
        let mut command = Command::new(setup.bench.ours());
        command.arg("--standalone").arg(format!("--nproc-per-node={}", plan.workers)).args(plan.options);
        command.arg(&setup.worker).args(plan.arguments);
        command.env("PYTHON_EXEC", &setup.python).env("XPU_TIMER_TIMELINE_PATH", plan.stacks);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let running = setup.bench.spawn(command, Stdio::null(), plan.stderr)?;
        let stamps = setup.bench.stamps.take(plan.workers, true, TIMEOUT);
        let stamps = stamps.map_err(|error| format!("{error}\n{}", running.stderr()))?;
        let mut pids = BTreeMap::new();
        let mut run_id = String::new();
        for stamp in stamps {
            let rank = variable(stamp.pid, "RANK").and_then(|rank| rank.parse().ok());
            pids.insert(rank.ok_or("a worker has no RANK, or has ended")?, stamp.pid);
            run_id = variable(stamp.pid, "TORCHELASTIC_RUN_ID").ok_or("a worker has no run id")?;
        }
        if pids.len() != plan.workers {
            return Err(format!("{} workers have started as {} ranks", plan.workers, pids.len()).into());
        }
        Ok(Self { running, run_id, pids, gate })
    }

    /// Lets workers go on that wait at the gate.
    pub(super) fn open_gate(&mut self) {
        self.gate = None;
    }

    /// Ends the job; no process of the bench may be left then.
    pub(super) fn stop(self, setup: &mut Setup) -> Outcome<()> {
        Self::stop_all([self], setup)
    }

    /// The same of jobs at the same time.
    pub(super) fn stop_all(jobs: impl IntoIterator<Item = Self>, setup: &mut Setup) -> Outcome<()> {
        for mut job in jobs {
            job.running.stop()?;
        }
        setup.bench.expect_none_left()?;
        setup.bench.stamps.clear()
    }
}
