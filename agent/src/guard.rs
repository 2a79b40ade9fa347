//! The guard: a tiny process between the launcher and the workers.
//!
//! ```text
//! dlrover-run ----socket---- guard ---- worker 0 ---- its children, grandchildren, daemons
//!                                  \--- worker 1 ---- ...
//! ```
//!
//! It is forked before the launcher has any thread, leads its own session, holds no listener and does four
//! things: it starts workers, tells how they end, signals or kills everything below it, and, when the socket
//! says that the launcher is gone, kills everything and leaves.
//!
//! Why a process: orphans go to the nearest living ancestor that is a subreaper. The guard is one, so a
//! double-forked daemon of a dead worker becomes the guard's child, and `waitpid` saying ECHILD is the proof
//! that no process of a generation is left, whatever it did to hide. The launcher cannot play that part for
//! its own death. When the guard dies first, the launcher (a subreaper too) inherits its orphans and clears
//! them away; workers are killed by PDEATHSIG at once. When both are killed at the same instant, workers die
//! of PDEATHSIG and what they started is found by the sweep of the next start ([`crate::sweep`]).
//!
//! * [`frame`]: what the two say to each other.
//! * [`process`]: the guard's side.
//! * [`link`]: the launcher's side.
//! * [`spawn`]: fork and exec of one worker.

pub mod frame;
pub mod link;
pub mod process;
mod spawn;

use std::{io, os::unix::net::UnixStream};

use nix::{
    sys::{
        prctl,
        signal::{SigHandler, Signal, signal},
    },
    unistd::{ForkResult, Pid, fork},
};

use crate::cgroup::Cgroup;

/// A guard that has just been started.
#[derive(Debug)]
pub struct Guard {
    /// Its process id.
    pub pid: Pid,
    /// The launcher's end of the socket.
    pub socket: UnixStream,
    /// Where workers are put, if the host lets us.
    pub cgroup: Option<Cgroup>,
}

/// Starts the guard, and makes this process a subreaper. Workers are put into `cgroup`.
///
/// Must be called before any thread exists: the child goes on running Rust code after `fork`, which is only
/// sound in a process with one thread. It also keeps the guard small.
///
/// # Errors
/// When the system has no room for a socket pair or a process.
pub fn start(cgroup: Option<Cgroup>) -> io::Result<Guard> {
    let (ours, theirs) = UnixStream::pair()?;
    // A parent that ignores SIGCHLD hands that down, and then no child's end can be learnt.
    // SAFETY: the default action runs no handler.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    prctl::set_child_subreaper(true)?;
    // SAFETY: the caller has started no thread, so the child owns a consistent copy of every lock and heap
    // structure and may run any code.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(theirs);
            ours.set_nonblocking(true)?;
            Ok(Guard { pid: child, socket: ours, cgroup })
        }
        ForkResult::Child => {
            drop(ours);
            process::run(theirs, cgroup)
        }
    }
}
