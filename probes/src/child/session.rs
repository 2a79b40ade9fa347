//! A program of somebody else's, started by a probe that takes it down with it.

use std::{io, os::unix::process::CommandExt as _, process::Command};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
    unistd::{getpid, getppid, setsid},
};

/// It gets a session of its own, by which its processes are told from others', no blocked signals, and dies with the
/// thread that starts it.
pub(super) fn in_a_session_of_its_own(command: &mut Command) {
    let me = getpid();
    let enter = move || -> io::Result<()> {
        setsid()?;
        prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
        // We may have died before the line above; then nobody would tell it.
        if getppid() != me {
            return Err(Errno::ESRCH.into());
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        Ok(())
    };
    // SAFETY: the closure makes only system calls: no allocation, no lock, no log.
    unsafe { command.pre_exec(enter) };
}
