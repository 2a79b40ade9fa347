//! Native stacks: registers and a copy of the stack of each thread, unwound after the thread runs on.
//!
//! Threads are stopped one after the other, each for as long as it takes to copy its stack. Files of the process are read
//! only then.

pub(super) mod library;
pub(super) mod maps;
pub(super) mod memory;
mod names;
mod ptrace;
mod registers;
mod unwind;

use std::thread;

use stacks::Thread;

use self::{
    library::Libraries,
    ptrace::{Captured, capture},
};

/// Reads the native stacks of all threads of a process, the main one first, and says what could not be read.
pub(super) fn stacks(pid: i32, libraries: &Libraries) -> (Vec<Thread>, Vec<String>) {
    let maps = maps::of(pid);
    // In a thread of its own, which ends here: the kernel then releases whatever could not be released before.
    let captured = thread::scope(|scope| {
        let work = || capture(pid, &maps);
        match thread::Builder::new().name(format!("stop-{pid}")).spawn_scoped(scope, work) {
            Ok(handle) => handle.join().unwrap_or_else(|panic| {
                let reason = super::reason(panic.as_ref());
                Captured::failed(&format!(
                    "reading failed: {reason}; this is a bug: report it with this message"
                ))
            }),
            Err(error) => Captured::failed(&format!("cannot start a thread: {error}")),
        }
    });
    let Captured { threads, notes } = captured;
    let mut unwinder = unwind::Unwinder::new(pid, &maps, libraries);
    let unwound = threads.into_iter().map(|thread| unwinder.unwind(thread)).collect();
    (unwound, notes)
}
