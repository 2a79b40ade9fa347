//! A probe's process, from the parent's side: its start, its signals, its end.
//!
//! The agent reaps all its children in one place ([`processes::reap`]), so nothing here depends on a status, and
//! signals are not sent by a bare process id, which may have been reused. A pidfd identifies the process for good;
//! before Linux 5.3 the id counts only while its start time is the same.

use std::{
    io::{self, Seek as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
    unistd::{Pid, getpid, getppid, setpgid},
};

use crate::{NAME, ProbeProgram, listener::Listener, wire::Task};
use processes::{
    launcher_id::VARIABLE,
    memory_file::memory_file,
    reap,
    tree::{self, signal_one},
};

/// Why a probe cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The plan of the probe cannot be written.
    #[error("cannot write the plan of the probe")]
    Plan(#[source] io::Error),
    #[error("cannot start the probe {}", path.display())]
    Spawn {
        /// This program, as the kernel names it.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A running probe.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    /// Distinguishes it from another process with the same id.
    started: Option<u64>,
    pidfd: Option<OwnedFd>,
}

/// The output of a probe.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Starts a probe. It dies with the calling thread, not just with the process (PDEATHSIG), so that must be a thread
/// that lives as long: the runtime's.
///
/// # Errors
/// When there is no room for a process, or no such program.
pub(super) fn start(
    program: &ProbeProgram,
    task: &Task,
    listener: Option<&Listener>,
) -> Result<(Process, Pipes), StartError> {
    let plan = serde_json::to_vec(task).map_err(|error| StartError::Plan(error.into()))?;
    // A file in memory: it has room for any plan, and nothing has to write while the probe reads.
    let mut file = memory_file(c"dlrover-probe-plan").map_err(StartError::Plan)?;
    file.write_all(&plan).and_then(|()| file.rewind()).map_err(StartError::Plan)?;
    let mut command = Command::new(&program.path);
    command.arg0(NAME).stdin(file).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(program.variables.iter().map(|(name, value)| (name, value)));
    if let Some(launcher_id) = &program.launcher_id {
        command.env(VARIABLE, launcher_id);
    }
    // A supervising probe must outlive the agent shortly, to kill what it started.
    let death_signal = match task {
        Task::Command(_) | Task::Switchbox(_) | Task::Gpus(_) => Signal::SIGTERM,
        _ => Signal::SIGKILL,
    };
    let inherited = listener.map(|listener| listener.fd().as_raw_fd());
    let parent = getpid();
    // SAFETY: the closure makes only system calls: no allocation, no lock, no log.
    unsafe {
        command.pre_exec(move || enter(parent, death_signal, inherited));
    }
    let failed = |source| StartError::Spawn { path: program.path.clone(), source };
    let mut child = command.spawn().map_err(failed)?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    // Before it can be reaped.
    let process = Process {
        pid,
        started: tree::process(pid).map(|process| process.started),
        pidfd: pidfd_open(pid).ok(),
    };
    match (child.stdout.take(), child.stderr.take()) {
        (Some(stdout), Some(stderr)) => Ok((process, Pipes { stdout: stdout.into(), stderr: stderr.into() })),
        _ => Err(failed(io::Error::other("it has no pipes"))),
    }
}

/// Between fork and exec.
fn enter(parent: Pid, death_signal: Signal, inherited: Option<RawFd>) -> io::Result<()> {
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    prctl::set_pdeathsig(Some(death_signal))?;
    // The parent may have died before the line above, so that no signal would come.
    if getppid() != parent {
        return Err(Errno::ESRCH.into());
    }
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: the default action runs no handler. Numbers that cannot be set are refused, which is harmless.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // Everything else that the launcher has open, even without close-on-exec.
    // SAFETY: plain numbers; only flags of
    // this process's own descriptors change.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if let Some(fd) = inherited {
        // SAFETY: the descriptor belongs to the listener, which the caller of `start` holds.
        Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
    }
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
    /// Its descriptor, which is readable once the process has ended.
    pub(super) fn pidfd(&self) -> Option<io::Result<OwnedFd>> {
        self.pidfd.as_ref().map(|fd| fd.as_fd().try_clone_to_owned())
    }

    /// Sends it a signal, if it still exists.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd {
            let null = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: a null pointer means the default siginfo, as for kill(2).
            unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as i32, null, 0);
            }
        } else if self.is_there() {
            signal_one(self.pid, signal);
        }
    }

    fn is_there(&self) -> bool {
        self.started.is_some() && tree::process(self.pid).map(|process| process.started) == self.started
    }

    /// Reaps it without waiting. `None`: it has not ended, or was reaped elsewhere.
    pub(super) fn reap(&self) -> Option<ExitStatus> {
        reap::reap_child(self.pidfd.as_ref()?.as_fd())
    }

    /// Describes a process that survived SIGKILL: process id, state, where in the kernel it waits.
    pub(super) fn stuck(&self) -> String {
        let pid = self.pid;
        let state = tree::process(pid).map_or('?', |process| process.state);
        let channel = tree::wait_channel(pid);
        format!("the probe (process {pid}) survived SIGKILL: state {state}, waiting in {channel}")
    }
}
