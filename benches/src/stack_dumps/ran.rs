//! A program that ran to its end.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

use super::Setup;
use crate::{Outcome, launcher::is_interrupted, processes::children_cpu_s};

/// What a program took and said.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
    /// Of all its processes, in ms.
    pub(super) cpu_ms: f64,
    pub(super) stdout: String,
}

impl Ran {
    /// Runs a program, which must succeed.
    pub(super) fn of(setup: &Setup, command: Command) -> Outcome<Self> {
        if is_interrupted() {
            return Err("interrupted".into());
        }
        let stdout = setup.bench.folder.path().join("stdout");
        // No other child of this process ends meanwhile, unless its job has failed.
        let before = children_cpu_s()?;
        let mut running =
            setup.bench.spawn(command, Stdio::from(File::create(&stdout)?), "stderr-of-program")?;
        let ended_ns = running.succeed()?;
        let cpu_ms = (children_cpu_s()? - before) * 1e3;
        Ok(Self { began_ns: running.exec_ns, ended_ns, cpu_ms, stdout: fs::read_to_string(stdout)? })
    }

    pub(super) fn wall_ms(&self) -> f64 {
        (self.ended_ns as f64 - self.began_ns as f64) / 1e6
    }
}
