//! Fork directly into a cgroup.
//!
//! A process that moves into a cgroup later waits for an RCU grace period (8 ms were measured, and 20 under load),
//! and all forks of the host wait with it; one that is forked into it does not.

use std::{
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use nix::{
    errno::Errno,
    libc,
    unistd::{ForkResult, Pid, fork},
};

/// `clone3(2)`; libc's own constant is an `int`, too small for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The result of [`fork_into`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forked {
    /// In the parent.
    Parent { child: Pid },
    /// In the child.
    Child {
        /// Whether it is in the cgroup already.
        entered: bool,
    },
}

/// Forks this process, into `cgroup` if possible.
///
/// # Errors
/// As `fork`.
///
/// # Safety
/// This process has one thread.
pub(super) unsafe fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    if let Some(cgroup) = cgroup {
        // SAFETY: all zero means that no field is used.
        let mut arguments: libc::clone_args = unsafe { mem::zeroed() };
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
        arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
        // SAFETY: without CLONE_VM and without a stack of its own the child continues here on a copy of everything,
        // as after fork. What libc's fork does beyond the call is for processes with several threads.
        match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, mem::size_of_val(&arguments)) } {
            0 => return Ok(Forked::Child { entered: true }),
            // Not permitted (a seccomp filter), or the cgroup is gone: fork outside of it.
            -1 => {}
            child => {
                let child = libc::pid_t::try_from(child).map_err(io::Error::other)?;
                return Ok(Forked::Parent { child: Pid::from_raw(child) });
            }
        }
    }
    // SAFETY: the caller guarantees one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Forked::Parent { child }),
        ForkResult::Child => Ok(Forked::Child { entered: false }),
    }
}

/// Forks this process into one that no `waitpid` without `__WALL` or `__WCLONE` sees, and whose end sends no SIGCHLD: so
/// `waitpid` still proves that no other child is left. An exec would make it a usual child.
///
/// # Errors
/// As `fork`.
///
/// # Safety
/// This process has one thread.
pub(super) unsafe fn fork_unseen() -> io::Result<Option<Pid>> {
    // All arguments are zero, so that their order, which differs between processors, does not matter: no flags, no signal,
    // no stack of its own.
    // SAFETY: as in `fork_into`.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    let child = libc::pid_t::try_from(Errno::result(child)?).map_err(io::Error::other)?;
    Ok((child != 0).then(|| Pid::from_raw(child)))
}
