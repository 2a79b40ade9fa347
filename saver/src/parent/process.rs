//! The process of a saver: its start, its signals, its end.
//!
//! The agent reaps all its children in one place, so nothing here depends on a status; a pidfd says when it has ended.

use std::{
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    errno::Errno,
    sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    unistd::setsid,
};
use processes::{launcher_id::VARIABLE, reap, tree};

use super::{SaverProgram, StartError};
use crate::{NAME, start::Start};

/// A process that was started.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    pidfd: OwnedFd,
}

/// This process's ends of a saver's pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Starts a saver. No signal tells it that this process has died: it ends when its input ends, after the write that it is
/// at.
pub(super) fn start(
    program: &SaverProgram,
    start: Start,
    listener: BorrowedFd<'_>,
) -> Result<(Process, Pipes), StartError> {
    let failed = |source: io::Error| StartError::Spawn { path: program.path.clone(), source };
    let inherited = listener.as_raw_fd();
    let launcher = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let start = Start { launcher, listener: inherited, ..start };
    let argument = serde_json::to_string(&start).map_err(|error| failed(error.into()))?;
    let mut command = Command::new(&program.path);
    command.arg0(NAME).arg(argument);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(launcher_id) = &program.launcher_id {
        command.env(VARIABLE, launcher_id);
    }
    // SAFETY: the closure makes only system calls: no allocation, no lock, no log.
    unsafe {
        command.pre_exec(move || enter(inherited));
    }
    let mut child = command.spawn().map_err(failed)?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    let pidfd = match pidfd_open(pid) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            tree::signal_one(pid, Signal::SIGKILL);
            return Err(StartError::Watch(error));
        }
    };
    let process = Process { pid, pidfd };
    match pipes(&mut child) {
        Some(pipes) => Ok((process, pipes)),
        None => {
            process.signal(Signal::SIGKILL);
            Err(failed(io::Error::other("it has no pipes")))
        }
    }
}

fn pipes(child: &mut Child) -> Option<Pipes> {
    let (stdin, stdout, stderr) = (child.stdin.take()?, child.stdout.take()?, child.stderr.take()?);
    Some(Pipes { stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() })
}

/// Between fork and exec.
fn enter(inherited: RawFd) -> io::Result<()> {
    // A terminal's signals are for the launcher.
    setsid()?;
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action runs no handler. Numbers that cannot be set are refused, which is harmless.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // Everything else that the launcher has open, even without close-on-exec.
    // SAFETY: plain numbers; only flags of this process's own descriptors change.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // SAFETY: plain numbers; the caller of `start` holds the descriptor.
    Errno::result(unsafe { libc::fcntl(inherited, libc::F_SETFD, 0) })?;
    Ok(())
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: a new descriptor from the kernel.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Process {
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its descriptor, which is readable once the process has ended.
    pub(super) fn pidfd(&self) -> io::Result<OwnedFd> {
        self.pidfd.as_fd().try_clone_to_owned()
    }

    /// Sends it a signal, if it still exists.
    pub(super) fn signal(&self, signal: Signal) {
        let null = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null pointer means the default siginfo, as for kill(2).
        unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), signal as i32, null, 0);
        }
    }

    /// Reaps it without waiting. `None`: it has not ended, or was reaped elsewhere.
    pub(super) fn reap(&self) -> Option<ExitStatus> {
        reap::reap_child(self.pidfd.as_fd())
    }

    /// Describes a process that survived SIGKILL: process id, state, where in the kernel it waits.
    pub(super) fn stuck(&self) -> String {
        let pid = self.pid;
        let state = tree::process(pid).map_or('?', |process| process.state);
        let channel = tree::wait_channel(pid);
        format!("the saver (process {pid}) survived SIGKILL: state {state}, waiting in {channel}")
    }
}
