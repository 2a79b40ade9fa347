//! The stacks of processes of this node, taken by a process of its own that is killed at its limit.

use std::{path::PathBuf, time::Duration};

use stacks::{RankDump, Thread};
use tokio::time::Instant;

use super::{
    handle::{Limits, Subscribers, supervise},
    process,
};
use crate::{
    GRACE, ProbeProgram,
    wire::{
        End, Task,
        stacks::{ProcessPart, StackTarget, StacksMessage, StacksPart, StacksTask},
    },
};

/// Whose stacks are taken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StacksPlan {
    pub targets: Vec<StackTarget>,
    /// Whether native stacks are read too. Every thread is stopped for a moment then; for Python's stacks none is.
    pub native: bool,
    /// Where the file of a flight recorder is copied to: the first of these directories that takes files.
    pub collect_in: Vec<PathBuf>,
    /// When it is cut short; what is known by then counts.
    pub limit: Duration,
    /// How its process is started.
    pub program: ProbeProgram,
}

/// Takes the stacks of the targets, on a tokio runtime: one dump for each, in their order, within the limit and the time
/// that the kill of a process takes ([`GRACE`] and [`LAST_TIMEOUT`](crate::LAST_TIMEOUT)). Never fails: what could not
/// be read is a note of the dump.
pub async fn take_stacks(plan: StacksPlan) -> Vec<RankDump> {
    let began = Instant::now();
    let StacksPlan { targets, native, collect_in, limit, program } = plan;
    let task = |targets, limit| StacksTask { targets, native, collect_in: collect_in.clone(), limit };
    if targets.is_empty() {
        return Vec::new();
    }
    let (collected, end) = run(&program, task(targets.clone(), limit)).await;
    // What reads foreign memory and files may crash. Then each target has a process of its own, so that the one that is
    // the cause costs no other its stacks.
    let has_crashed = matches!(end, ProbeEnd::Crashed(_)) && targets.len() > 1;
    let why = end.words(limit);
    let mut dumps = Vec::with_capacity(targets.len());
    for (collected, target) in collected.into_iter().zip(targets) {
        if !has_crashed || collected.is_whole(native) {
            dumps.push(collected.dump(&target, native, &why));
            continue;
        }
        let left = limit.saturating_sub(began.elapsed());
        let (again, end) = run(&program, task(vec![target.clone()], left)).await;
        // The first attempt may have come further, where the second had no time.
        let best = again.into_iter().next().filter(|again| again.process.is_some()).unwrap_or(collected);
        dumps.push(best.dump(&target, native, &end.words(limit)));
    }
    dumps
}

/// How a probe has ended.
enum ProbeEnd {
    Whole,
    /// The probe was killed at the limit.
    Late,
    /// It ended by itself, and not as it should, or has not begun.
    Crashed(String),
}

impl ProbeEnd {
    /// Why the stacks of a process, or a part of them, are missing.
    fn words(&self, limit: Duration) -> String {
        match self {
            Self::Whole => "not reported by the probe".to_owned(),
            Self::Late => format!("not read within {}", seconds(limit)),
            Self::Crashed(why) => why.clone(),
        }
    }
}

/// Runs one probe, and returns what it has sent of each target.
async fn run(program: &ProbeProgram, task: StacksTask) -> (Vec<Collected>, ProbeEnd) {
    let limit = task.limit;
    let mut collected: Vec<Collected> = task.targets.iter().map(|_| Collected::default()).collect();
    let started = match process::start(program, &Task::Stacks(task), None) {
        Ok(started) => started,
        Err(error) => return (collected, ProbeEnd::Crashed(rules::chain(&error))),
    };
    let limits = Limits { cancel: None, deadline: Some(limit), grace: GRACE };
    let run = supervise(started, limits, Subscribers::default()).await;
    let end = match &run.end {
        Some(End::Stacks) => ProbeEnd::Whole,
        _ if run.was_cut_short => ProbeEnd::Late,
        _ => ProbeEnd::Crashed(run.failure()),
    };
    for StacksMessage { target, part } in run.stacks {
        if let Some(collected) = collected.get_mut(target) {
            collected.add(part);
        }
    }
    (collected, end)
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

    /// Whether nothing is missing.
    const fn is_whole(&self, native: bool) -> bool {
        self.process.is_some() && self.has_python && (self.has_native || !native)
    }

    /// The dump, with a note for each part that the probe did not report; `why` it did not.
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
            pid: process.pid.or(Some(*pid)),
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
