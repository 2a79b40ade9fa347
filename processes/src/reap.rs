//! Exits of children. The only place that waits for any child: a second one would steal statuses. (The handle of a
//! probe waits for its own child, and can do without a status.)

use std::{
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::process::ExitStatusExt as _,
    },
    process::ExitStatus,
};

use nix::{errno::Errno, libc};
use rules::failure::ExitCause;

/// How a process ended that was waited for.
#[must_use]
pub fn exit_cause(status: ExitStatus) -> ExitCause {
    // It has a code, or a signal.
    status.code().map_or_else(|| ExitCause::Signal(status.signal().unwrap_or_default()), ExitCause::Code)
}

/// Reaps the child of a pidfd without waiting. `None`: it has not ended, or was reaped elsewhere.
#[must_use]
pub fn reap_child(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    let id = libc::id_t::try_from(pidfd.as_raw_fd()).ok()?;
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is a valid place for the result.
    let answer = unsafe { libc::waitid(libc::P_PIDFD, id, info.as_mut_ptr(), libc::WEXITED | libc::WNOHANG) };
    // SAFETY: all zero is a valid value too.
    let info = unsafe { info.assume_init() };
    if answer != 0 || info.si_signo == 0 {
        return None;
    }
    // SAFETY: the kernel reported a child, so this field is the active one.
    let status = unsafe { info.si_status() };
    Some(match info.si_code {
        libc::CLD_EXITED => ExitStatus::from_raw(status << 8),
        _ => ExitStatus::from_raw(status),
    })
}

/// Whether this process has a child, exited ones included. Reaps none.
#[must_use]
pub fn has_children() -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is a valid place for the result, which is not read.
    let answer = unsafe {
        libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
    };
    answer != -1 || Errno::last() != Errno::ECHILD
}

/// Reaps every child that has exited and calls `on_exit` with its process id, without waiting. Returns whether no child
/// is left: in a subreaper, no process is below this one then.
pub fn reap_exited(mut on_exit: impl FnMut(i32, ExitCause)) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result. nix's wrapper has no name for real-time signals and would
        // lose the end of a child that was killed by one.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return false,
            pid if pid > 0 && libc::WIFEXITED(status) => {
                on_exit(pid, ExitCause::Code(libc::WEXITSTATUS(status)));
            }
            pid if pid > 0 && libc::WIFSIGNALED(status) => {
                on_exit(pid, ExitCause::Signal(libc::WTERMSIG(status)));
            }
            pid if pid > 0 || Errno::last() == Errno::EINTR => {}
            _ => return true,
        }
    }
}
