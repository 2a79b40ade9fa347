//! Fork and exec of one worker: its own session, dead when the guard dies, and nothing inherited beyond
//! descriptors 0 to 2.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
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

use super::{
    fork::{Forked, fork_into},
    frame::WorkerSpec,
};
use processes::cgroup::Cgroup;

/// A worker between fork and exec.
#[derive(Debug)]
pub struct Born {
    /// Its process id.
    pub pid: Pid,
    /// Closed by exec, or brings the errno of what failed before.
    told: File,
}

impl Born {
    /// Waits until the worker's program runs.
    ///
    /// # Errors
    /// What `exec` or a step before it said. The process has ended or is about to.
    pub fn confirm(mut self) -> io::Result<()> {
        let mut errno = [0; size_of::<i32>()];
        match self.told.read_exact(&mut errno) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            // Its end: the program runs, or has even ended.
            Err(_) => Ok(()),
        }
    }
}

/// Forks the worker; it goes on to exec beside its siblings, so starting many takes little longer than one.
///
/// # Errors
/// What `fork` and the steps before it said.
pub fn spawn(
    spec: &WorkerSpec,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    ignored: &[Signal],
    cgroup: Option<&Cgroup>,
) -> io::Result<Born> {
    let [program, arguments @ ..] = &spec.argv[..] else {
        return Err(Errno::EINVAL.into());
    };
    let mut command = Command::new(OsStr::from_bytes(program));
    command.args(arguments.iter().map(|argument| OsStr::from_bytes(argument)));
    command.env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
    if let Some(stdout) = stdout {
        command.stdout(Stdio::from(stdout));
    }
    if let Some(stderr) = stderr {
        command.stderr(Stdio::from(stderr));
    }
    let cpus = cpu_set(&spec.cpus)?;
    let ignored = ignored.to_vec();
    let guard = getpid();
    // SAFETY: the closure makes only system calls: no allocation, no lock, no log.
    unsafe {
        command.pre_exec(move || {
            setsid()?;
            prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
            // The guard may have died before the line above; then nobody would tell us.
            if getppid() != guard {
                return Err(Errno::ESRCH.into());
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(Pid::from_raw(0), cpus)?;
            }
            for ignored in &ignored {
                signal(*ignored, SigHandler::SigDfl)?;
            }
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            Ok(())
        });
    }
    let (told, telling) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: the guard has one thread.
    match unsafe { fork_into(cgroup.and_then(Cgroup::birthplace)) }? {
        Forked::Child { entered } => {
            if let (Some(cgroup), false) = (cgroup, entered) {
                cgroup.enter();
            }
            let errno = command.exec().raw_os_error().unwrap_or(libc::EINVAL);
            let _guard_gone = unistd::write(&telling, &errno.to_ne_bytes());
            // SAFETY: `_exit` has no preconditions, and runs nothing of the guard's.
            unsafe { libc::_exit(1) }
        }
        Forked::Parent { child } => Ok(Born { pid: child, told: File::from(told) }),
    }
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
