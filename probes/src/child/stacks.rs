//! In the probe's process: takes the stacks of processes of this node.
//!
//! Every target has a thread of its own, so that one that cannot be read without waiting holds up no other. Python's
//! stacks of all targets come first: they are what names a rank, and they do not stop a process.

mod access;
mod flight_recorder;
mod gate;
mod native;
mod process;
mod python;
mod syscalls;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use stacks::Thread;

use self::{
    flight_recorder::Asking,
    gate::Gate,
    native::library::Libraries,
    process::{Looked, look, resolve},
};
use super::Reporter;
use crate::wire::{
    ProbeMessage,
    stacks::{StackTarget, StacksMessage, StacksPart, StacksTask},
};

/// Frames in one message. With the longest names that a dump has, it stays below the size of a line.
const FRAMES_PER_MESSAGE: usize = 100;

/// A name in a message, in bytes. As JSON it may be six times as long.
const LONGEST_NAME: usize = 800;

/// What remains of the limit for the last messages.
const RESERVE: Duration = Duration::from_millis(300);

/// The stack of a thread of ours. py-spy and the demangler recurse, within limits of theirs.
const STACK_SIZE: usize = 4 << 20;

/// Takes the stacks of all targets. Returns when all are read; the caller kills this process at the limit.
pub(super) fn take(task: &StacksTask, reporter: &Reporter) {
    let began = Instant::now();
    let gate = Gate::new(task.targets.len());
    let libraries = Libraries::default();
    thread::scope(|scope| {
        for (index, target) in task.targets.iter().enumerate() {
            let rank = Rank { index, target, reporter };
            let (gate, libraries) = (&gate, &libraries);
            let work = move || rank.read(task, began, gate, libraries);
            let name = format!("rank-{}", target.rank);
            if let Err(error) =
                thread::Builder::new().name(name).stack_size(STACK_SIZE).spawn_scoped(scope, work)
            {
                gate.pass();
                rank.note(format!("cannot start a thread for its stacks: {error}"));
            }
        }
    });
}

/// One target, and where its parts go.
#[derive(Clone, Copy)]
struct Rank<'a> {
    index: usize,
    target: &'a StackTarget,
    reporter: &'a Reporter,
}

impl Rank<'_> {
    fn read(self, task: &StacksTask, began: Instant, gate: &Gate, libraries: &Libraries) {
        // Known first: to find the program that a wrapper has started may wait.
        let mut looked = look(self.target);
        self.send(StacksPart::Process(looked.part().clone()));
        let (target, whose) = resolve(self.target);
        if whose.is_some() {
            looked = look(&target);
            self.send(StacksPart::Process(looked.part().clone()));
        }
        looked.notes().iter().for_each(|note| self.note(note.clone()));
        if let Looked::Readable { pid, by, .. } = looked {
            self.stacks(task, began, (pid, by), &target, gate, libraries);
        } else {
            gate.pass();
            self.send(StacksPart::PythonDone);
            self.send(StacksPart::NativeDone);
        }
        whose.into_iter().for_each(|note| self.note(note));
    }

    fn stacks(
        self,
        task: &StacksTask,
        began: Instant,
        (pid, by): (i32, i32),
        target: &StackTarget,
        gate: &Gate,
        libraries: &Libraries,
    ) {
        let left = || task.limit.saturating_sub(began.elapsed()).saturating_sub(RESERVE);
        self.guarded("Python stacks", || {
            let (threads, note) = python::stacks(pid, by);
            self.threads(threads, |thread, is_more| StacksPart::Python { thread, is_more });
            note.into_iter().for_each(|note| self.note(note));
        });
        self.send(StacksPart::PythonDone);
        gate.pass();
        // Its files may be where nothing can be read: they cost nothing that is on this host.
        let recorder = Asking::start(target, task.collect_in.clone(), left());
        if task.native {
            gate.wait(task.limit / 2);
            self.guarded("native stacks", || {
                let (threads, notes) = native::stacks(by, libraries);
                self.threads(threads, |thread, is_more| StacksPart::Native { thread, is_more });
                notes.into_iter().for_each(|note| self.note(note));
            });
        }
        self.send(StacksPart::NativeDone);
        if let Some(outcome) = recorder.and_then(|recorder| recorder.outcome(left())) {
            self.note(outcome);
        }
        // Its process may have been replaced while it was read.
        if process::is_another(target) {
            self.note(format!("process {pid} ended while its stacks were being read"));
        }
    }

    fn send(self, part: StacksPart) {
        self.reporter.send(&ProbeMessage::Stacks(StacksMessage { target: self.index, part }));
    }

    fn note(self, mut note: String) {
        cut(&mut note);
        self.send(StacksPart::Note(note));
    }

    /// Sends threads in pieces.
    fn threads(self, threads: Vec<Thread>, part: impl Fn(Thread, bool) -> StacksPart) {
        for thread in threads {
            let Thread { mut name, mut frames } = thread;
            cut(&mut name);
            for frame in &mut frames {
                cut(&mut frame.function);
                cut(&mut frame.file);
            }
            let mut pieces = frames.chunks(FRAMES_PER_MESSAGE);
            let first = pieces.next().unwrap_or_default();
            self.send(part(Thread { name: name.clone(), frames: first.to_vec() }, false));
            for piece in pieces {
                self.send(part(Thread { name: name.clone(), frames: piece.to_vec() }, true));
            }
        }
    }

    /// Reads a part of the stacks. Where a library panics on foreign memory or files, a note is in place of that
    /// part.
    fn guarded(self, what: &str, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.note(format!(
                "{what}: reading failed: {}; this is a bug: report it with this message",
                reason(panic.as_ref())
            ));
        }
    }
}

/// Shortens a name to what fits into a message. A dump has still shorter ones, and marks them.
fn cut(text: &mut String) {
    if text.len() > LONGEST_NAME {
        let end = (0..=LONGEST_NAME).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}
