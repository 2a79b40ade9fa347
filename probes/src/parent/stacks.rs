//! The stacks of processes of this node, taken by a process of its own that is killed at its limit.

use std::time::Duration;

use stacks::{RankDump, Thread};

use super::{
    handle::{Limits, ProbeRun, Subscribers, supervise},
    process,
};
use crate::{
    GRACE, ProbeProgram,
    wire::{
        Task,
        stacks::{ProcessPart, StackTarget, StacksMessage, StacksPart, StacksTask},
    },
};

/// Whose stacks are taken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StacksPlan {
    pub targets: Vec<StackTarget>,
    /// Whether native stacks are read too. Every thread is stopped for a moment then; for Python's stacks none is.
    pub native: bool,
    /// When it is cut short; what is known by then counts.
    pub limit: Duration,
    /// How its process is started.
    pub program: ProbeProgram,
}

/// Takes the stacks of the targets, on a tokio runtime: one dump for each, in their order, within the limit and the time
/// that the kill of a process takes ([`GRACE`] and [`LAST_TIMEOUT`](crate::LAST_TIMEOUT)). Never fails: what could not
/// be read is a note of the dump.
pub async fn take_stacks(plan: StacksPlan) -> Vec<RankDump> {
    let StacksPlan { targets, native, limit, program } = plan;
    if targets.is_empty() {
        return Vec::new();
    }
    let task = Task::Stacks(StacksTask { targets: targets.clone(), native, limit });
    let run = match process::start(&program, &task, None) {
        Ok(started) => {
            let limits = Limits { cancel: None, deadline: Some(limit), grace: GRACE };
            supervise(started, limits, Subscribers::default()).await
        }
        Err(error) => {
            let why = rules::chain(&error);
            return targets.iter().map(|target| Collected::default().dump(target, false, &why)).collect();
        }
    };
    from_run(run, &targets, native, limit)
}

fn from_run(run: ProbeRun, targets: &[StackTarget], native: bool, limit: Duration) -> Vec<RankDump> {
    let why = match run.was_cut_short {
        true => format!("not read within {}", seconds(limit)),
        false => run.failure(),
    };
    let mut collected: Vec<Collected> = targets.iter().map(|_| Collected::default()).collect();
    for StacksMessage { target, part } in run.stacks {
        if let Some(collected) = collected.get_mut(target) {
            collected.add(part);
        }
    }
    let dumps = collected.into_iter().zip(targets);
    dumps.map(|(collected, target)| collected.dump(target, native, &why)).collect()
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}

/// The parts of one dump that have come.
#[derive(Debug, Default)]
struct Collected {
    process: Option<ProcessPart>,
    python: Vec<Thread>,
    native: Vec<Thread>,
    notes: Vec<String>,
    has_python: bool,
    has_native: bool,
}

impl Collected {
    fn add(&mut self, part: StacksPart) {
        let take = |threads: &mut Vec<Thread>, thread: Thread, is_more| match threads.last_mut() {
            Some(last) if is_more => last.frames.extend(thread.frames),
            _ => threads.push(thread),
        };
        match part {
            StacksPart::Process(process) => self.process = Some(process),
            StacksPart::Python { thread, is_more } => take(&mut self.python, thread, is_more),
            StacksPart::PythonDone => self.has_python = true,
            StacksPart::Native { thread, is_more } => take(&mut self.native, thread, is_more),
            StacksPart::NativeDone => self.has_native = true,
            StacksPart::Note(note) => self.notes.push(note),
        }
    }

    /// The dump, with `why` for what has not come.
    fn dump(self, target: &StackTarget, native: bool, why: &str) -> RankDump {
        let StackTarget { rank, world_size, pid, step, host, .. } = target;
        let mut notes = self.notes;
        match &self.process {
            None => notes.push(format!("state and stacks: {why}")),
            Some(_) if !self.has_python => notes.push(format!("Python stacks: {why}")),
            Some(_) if native && !self.has_native => notes.push(format!("native stacks: {why}")),
            Some(_) => {}
        }
        let process = self.process.unwrap_or_default();
        let dump = RankDump {
            host: host.clone(),
            pid: Some(*pid),
            gone: process.gone,
            state: process.state,
            step: *step,
            wchan: process.wchan,
            syscall: process.syscall,
            python: self.python,
            native: self.native,
            notes,
            ..RankDump::new(*rank, *world_size)
        };
        dump.bounded()
    }
}
