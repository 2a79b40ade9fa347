//! Fork and exec of one worker: in a session of its own, killed when the guard dies, and with inherited descriptors 0
//! to 2 only.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, process::CommandExt as _},
    },
    process::{Command, Stdio},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc,
    sched::{CpuSet, sched_setaffinity},
    sys::{
        prctl,
        signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask},
    },
    unistd::{self, Pid, getpid, getppid, pipe2, setsid},
};

use super::fork::{Forked, fork_into};
use processes::cgroup::Cgroup;

/// A program to start.
#[derive(Debug)]
pub struct Program<'a> {
    pub argv: &'a [Vec<u8>],
    pub env: &'a [(Vec<u8>, Vec<u8>)],
    /// CPUs it may run on; empty: those of this process.
    pub cpus: &'a [usize],
    /// Standard output and error; `None`: those of this process.
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// More descriptors, which it inherits under the same numbers.
    pub passed: &'a [BorrowedFd<'a>],
    /// The launcher, which may read its stacks.
    pub reader: Option<Pid>,
}

/// A worker between fork and exec.
#[derive(Debug)]
pub struct ForkedWorker {
    pub pid: Pid,
    /// Closed by exec, or delivers the errno of a failure before it.
    error_pipe: File,
}

impl ForkedWorker {
    /// Waits until the worker's program runs.
    ///
    /// # Errors
    /// The error of `exec` or a step before it. The process has ended or is about to.
    pub fn confirm(mut self) -> io::Result<()> {
        let mut errno = [0; size_of::<i32>()];
        match self.error_pipe.read_exact(&mut errno) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            // Closed: the program runs, or has even ended.
            Err(_) => Ok(()),
        }
    }
}

/// Forks the worker without waiting for its exec, so starting many takes little longer than one.
///
/// # Errors
/// The error of `fork` or the steps before it.
pub fn spawn(program: Program<'_>, ignored: &[Signal], cgroup: Option<&Cgroup>) -> io::Result<ForkedWorker> {
    let Program { argv, env, cpus, stdout, stderr, passed, reader } = program;
    let [program, arguments @ ..] = argv else {
        return Err(Errno::EINVAL.into());
    };
    let mut command = Command::new(OsStr::from_bytes(program));
    command.args(arguments.iter().map(|argument| OsStr::from_bytes(argument)));
    command.env_clear();
    command.envs(env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
    if let Some(stdout) = stdout {
        command.stdout(Stdio::from(stdout));
    }
    if let Some(stderr) = stderr {
        command.stderr(Stdio::from(stderr));
    }
    let cpus = cpu_set(cpus)?;
    let passed: Vec<_> = passed.iter().map(|fd| fd.as_raw_fd()).collect();
    let ignored = ignored.to_vec();
    let guard = getpid();
    let reader = living(reader, getppid());
    // SAFETY: the closure makes only system calls: no allocation, no lock, no log.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
            // The guard may have died before the line above, so that no signal would come.
            if getppid() != guard {
                return Err(Errno::ESRCH.into());
            }
            if let Some(reader) = reader {
                allow_reading(reader);
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(Pid::from_raw(0), cpus)?;
            }
            for ignored in &ignored {
                signal(*ignored, SigHandler::SigDfl)?;
            }
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            for passed in &passed {
                // The caller's own stay open until this process has ended or executes the program.
                Errno::result(libc::fcntl(*passed, libc::F_SETFD, 0))?;
            }
            Ok(())
        });
    }
    let (error_pipe, error_writer) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: the guard has one thread.
    match unsafe { fork_into(cgroup.and_then(Cgroup::fork_target)) }? {
        Forked::Child { entered } => {
            if let (Some(cgroup), false) = (cgroup, entered) {
                cgroup.enter();
            }
            let errno = command.exec().raw_os_error().unwrap_or(libc::EINVAL);
            let _guard_gone = unistd::write(&error_writer, &errno.to_ne_bytes());
            // SAFETY: `_exit` has no preconditions, and runs nothing of the guard's.
            unsafe { libc::_exit(1) }
        }
        Forked::Parent { child } => Ok(ForkedWorker { pid: child, error_pipe: File::from(error_pipe) }),
    }
}

/// The launcher, as long as it is the parent of the guard: its number may belong to another process later, and the parent
/// of a guard that has survived it is none that workers know.
fn living(launcher: Option<Pid>, parent: Pid) -> Option<Pid> {
    launcher.filter(|launcher| *launcher == parent)
}

/// Lets the launcher, and what it starts, read the stacks of this process and of the program that it executes. Where
/// `kernel.yama.ptrace_scope` is 1, only an ancestor may, and the probe that takes stacks is no ancestor of a worker. All
/// else that has to hold for it, such as the same user, holds still. A kernel without Yama refuses the call.
fn allow_reading(launcher: Pid) {
    // SAFETY: the call takes numbers only.
    let _without_yama =
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_long::from(launcher.as_raw()), 0, 0, 0) };
}

fn cpu_set(cpus: &[usize]) -> io::Result<Option<CpuSet>> {
    if cpus.is_empty() {
        return Ok(None);
    }
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    Ok(Some(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_launcher_itself_may_read_stacks() {
        let (launcher, other) = (Pid::from_raw(71), Pid::from_raw(1));
        assert_eq!(living(Some(launcher), launcher), Some(launcher));
        assert_eq!(living(Some(launcher), other), None, "it is dead");
        assert_eq!(living(None, other), None, "the template");
    }
}
