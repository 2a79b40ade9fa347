//! Ends of children, one by one. The only place that asks for any child: a second one would steal statuses. (A probe's
//! handle asks for its own child, and can do without an answer.)

use nix::libc;
use rules::failure::ExitCause;

/// What `waitpid` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    /// A child ended and is reaped now.
    Ended { pid: i32, cause: ExitCause },
    /// Children are left, and none has ended.
    StillRunning,
    /// There is no child at all. In a subreaper: there is no process below this one.
    NobodyLeft,
}

/// Whether there is no child at all, ended ones included. Takes nobody's status.
#[must_use]
pub fn nobody_is_left() -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is a valid place for the result, which is not looked at.
    let answer = unsafe {
        libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
    };
    answer == -1 && nix::errno::Errno::last() == nix::errno::Errno::ECHILD
}

/// The next child that has ended, without waiting.
#[must_use]
pub fn next_ended() -> Reaped {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result. nix's wrapper is not used because it has no
        // name for real-time signals and would lose the end of a child that died of one.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match pid {
            0 => return Reaped::StillRunning,
            pid if pid > 0 => {
                if libc::WIFEXITED(status) {
                    return Reaped::Ended { pid, cause: ExitCause::Code(libc::WEXITSTATUS(status)) };
                }
                if libc::WIFSIGNALED(status) {
                    return Reaped::Ended { pid, cause: ExitCause::Signal(libc::WTERMSIG(status)) };
                }
            }
            _ if nix::errno::Errno::last() == nix::errno::Errno::EINTR => {}
            _ => return Reaped::NobodyLeft,
        }
    }
}
