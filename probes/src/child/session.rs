//! Foreign programs that a probe starts, and that are killed with it.

use std::{io, os::unix::process::CommandExt as _, process::Command, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
    unistd::{getpid, getppid, setsid},
};
use processes::tree::{self, Process};

/// How long processes may take to be gone after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the program in a session of its own, by which its processes are recognized, without blocked signals; it
/// dies with the calling thread.
pub(super) fn in_a_session_of_its_own(command: &mut Command) {
    let me = getpid();
    let enter = move || -> io::Result<()> {
        setsid()?;
        prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
        // The parent may have died before the line above, so that no signal would come.
        if getppid() != me {
            return Err(Errno::ESRCH.into());
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        Ok(())
    };
    // SAFETY: the closure makes only system calls: no allocation, no lock, no log.
    unsafe { command.pre_exec(enter) };
}

/// Every process below this one.
pub(super) fn descendants() -> Vec<Process> {
    tree::below(getpid().as_raw())
}

/// Kills every process below this one until `is_gone`. Describes those that survive.
pub(super) fn kill_descendants(is_gone: impl FnMut() -> bool) -> Option<String> {
    let left = tree::kill_until_gone(KILL_TIMEOUT, descendants, is_gone);
    let described: Vec<String> =
        left.iter().map(|it| format!("{} ({}, {})", it.pid, it.name, it.state)).collect();
    (!described.is_empty()).then(|| described.join(", "))
}
