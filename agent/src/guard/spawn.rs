//! Fork and exec of one worker: its own session, dead when the guard dies, and nothing inherited beyond
//! descriptors 0 to 2.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, process::CommandExt as _},
    },
    process::{Command, Stdio},
};

use nix::{
    errno::Errno,
    libc,
    sched::{CpuSet, sched_setaffinity},
    sys::{
        prctl,
        signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask},
    },
    unistd::{Pid, getpid, getppid, setsid},
};

use super::frame::WorkerSpec;
use crate::cgroup::Cgroup;

/// Starts the worker and gives its process id.
///
/// # Errors
/// What `fork`, `exec` or the steps between them said.
pub fn spawn(
    spec: &WorkerSpec,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    ignored: &[Signal],
    cgroup: Option<Cgroup>,
) -> io::Result<Pid> {
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
    // SAFETY: the closure runs in the child between fork and exec of a process with one thread, and makes
    // only system calls: no allocation, no lock, no log.
    unsafe {
        command.pre_exec(move || {
            if let Some(cgroup) = &cgroup {
                cgroup.enter();
            }
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
    // Dropping the handle neither waits nor kills: the guard waits for all its children at one place.
    let child = command.spawn()?;
    Ok(Pid::from_raw(libc::pid_t::try_from(child.id()).map_err(io::Error::other)?))
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
