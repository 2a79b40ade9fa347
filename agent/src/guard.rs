//! The guard: a small process between the launcher and the workers.
//!
//! ```text
//! dlrover-run ----socket---- guard ---- worker 0 ---- its children, grandchildren, daemons
//!                                  \--- worker 1 ---- ...
//! ```
//!
//! It is forked before the launcher has a second thread, leads its own session, holds no listener and does four
//! things: it starts workers, reports their exits, signals or kills everything below it, and, when the socket is
//! closed because the launcher is gone, kills everything and exits.
//!
//! Why a process: orphans become children of the nearest living ancestor that is a subreaper. The guard is one, so a
//! double-forked daemon of a dead worker becomes the guard's child, and `waitpid` failing with ECHILD proves that no
//! process of a generation is left. The launcher cannot do that after its own death. When the guard dies first, the
//! launcher (a subreaper too) inherits its orphans and kills them; workers are killed by PDEATHSIG at once. When both
//! are killed at the same instant, workers are killed by PDEATHSIG and their descendants are found by the sweep of
//! the next start ([`processes::sweep`]).
//!
//! * [`frame`]: the messages between the two.
//! * [`process`]: the guard's side.
//! * [`link`]: the launcher's side.
//! * [`spawn`]: fork and exec of one worker.

mod fork;
pub mod frame;
pub mod link;
pub mod process;
mod spawn;
mod template;

use std::{ffi::CStr, io, os::unix::net::UnixStream};

use nix::{
    sys::{
        prctl,
        signal::{SigHandler, SigSet, Signal, signal},
    },
    unistd::{ForkResult, Pid, fork, getpid},
};

use crate::progress::make_room;
use processes::{cgroup::Cgroup, reap, tree};

/// Its name in the list of processes.
pub const NAME: &CStr = processes::GUARD_NAME;

/// A guard that has just been started.
#[derive(Debug)]
pub struct Guard {
    pub pid: Pid,
    /// The launcher's end of the socket.
    pub socket: UnixStream,
    /// The workers' cgroup, if the host allows one.
    pub cgroup: Option<Cgroup>,
    /// This process had children before, or is process 1 and inherits orphans: not everything below it belongs to the
    /// run.
    pub has_foreign_children: bool,
}

/// Undoes what the parent process may have done to signals. With SIGCHLD ignored the kernel reports no child's exit
/// to launcher and guard; a blocked signal never arrives.
fn reset_child_signals() -> io::Result<()> {
    // SAFETY: the default action runs no handler.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// The guard is forked, which a process with several threads must not do.
fn require_one_thread() -> io::Result<()> {
    let own = tree::process(getpid().as_raw());
    match own.map(|process| process.threads) {
        Some(1) => Ok(()),
        Some(threads) => Err(io::Error::other(format!(
            "this process has {threads} threads; it may fork only with a single one"
        ))),
        None => {
            Err(io::Error::other("cannot read the number of threads from /proc/self/stat; is /proc mounted?"))
        }
    }
}

/// Starts the guard, and makes this process a subreaper. Workers are put into `cgroup`.
///
/// Must be called while the process has one thread: the child continues to run Rust code after `fork`, which is
/// sound only then.
///
/// # Errors
/// When the process has a second thread, or the system has no room for a socket pair or a process.
pub fn start(cgroup: Option<Cgroup>) -> io::Result<Guard> {
    require_one_thread()?;
    reset_child_signals()?;
    // A script may have started a process and then have replaced itself by this one (`exec`).
    let has_foreign_children = std::process::id() == 1 || reap::has_children();
    let (ours, worker_end) = UnixStream::pair()?;
    prctl::set_child_subreaper(true)?;
    let launcher = getpid();
    // SAFETY: this is the only thread, so the child owns a consistent copy of every lock and heap structure and may
    // run any code.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(worker_end);
            ours.set_nonblocking(true)?;
            make_room(&ours);
            Ok(Guard { pid: child, socket: ours, cgroup, has_foreign_children })
        }
        ForkResult::Child => {
            drop(ours);
            process::run(launcher, worker_end, cgroup)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn a_process_with_a_second_thread_is_not_forked() {
        let (stop, stopped) = mpsc::channel::<()>();
        let second = thread::spawn(move || stopped.recv());
        let error = start(None).unwrap_err();
        assert!(error.to_string().contains(" threads; it may fork only with a single one"), "{error}");
        drop(stop);
        let _stopped = second.join().unwrap();
    }
}
