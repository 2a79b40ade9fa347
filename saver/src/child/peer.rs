//! The process at the other end of a connection: whether it belongs to this run, and when it is dead.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::getuid,
};
use processes::{launcher_id::LauncherId, sweep::id_of_process, tree};

/// `SO_PEERPIDFD` of Linux 6.5, which libc does not name.
const SO_PEERPIDFD: libc::c_int = 77;

/// More ancestors than any process has: a list of processes is not read at one instant, so a circle is possible.
const ANCESTORS: u32 = 4096;

/// One process for good: ids are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessKey {
    pub(super) pid: i32,
    /// Clock ticks since boot.
    started: u64,
}

/// The launcher that this process belongs to.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    pub(super) pid: i32,
    pub(super) id: Option<LauncherId>,
}

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("the kernel does not report the process of the connection: {0}")]
    Unknown(io::Error),
    #[error("process {pid} belongs to user {uid}; the saver serves user {own} only")]
    User { pid: i32, uid: u32, own: u32 },
    #[error(
        "process {pid} was not started by launcher {launcher}; the saver serves workers and their children only"
    )]
    Stranger { pid: i32, launcher: i32 },
    #[error("process {pid} has ended")]
    Dead { pid: i32 },
    #[error("cannot watch process {pid}: {error}")]
    Watch { pid: i32, error: io::Error },
}

/// The process of a connection, which has been found to belong to this run.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: ProcessKey,
    /// Readable once the process is dead.
    pub(super) pidfd: OwnedFd,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.key.pid)
    }
}

impl Peer {
    /// Checks the process that made the connection. Children that inherited the socket do not count.
    ///
    /// # Errors
    /// When it is another user's, not of this run, or dead.
    pub(super) fn of(socket: &impl AsFd, launcher: &Launcher) -> Result<Self, PeerError> {
        let socket = socket.as_fd();
        let credentials =
            getsockopt(&socket, PeerCredentials).map_err(|errno| PeerError::Unknown(errno.into()))?;
        let (pid, uid, own) = (credentials.pid(), credentials.uid(), getuid().as_raw());
        if uid != own {
            return Err(PeerError::User { pid, uid, own });
        }
        // In another pid namespace it has no id here.
        if pid <= 0 {
            return Err(PeerError::Stranger { pid, launcher: launcher.pid });
        }
        // The descriptor is taken before anything is read, so that what is read is not of a successor with the same id:
        // such a one would be found dead below. Before Linux 6.5 that window stays open between connect and here.
        let pidfd = peer_pidfd(socket).or_else(|_| pidfd_open(pid));
        let pidfd = pidfd.map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => PeerError::Dead { pid },
            _ => PeerError::Watch { pid, error },
        })?;
        let process = tree::process(pid).ok_or(PeerError::Dead { pid })?;
        if !belongs(pid, launcher) {
            return Err(PeerError::Stranger { pid, launcher: launcher.pid });
        }
        if is_dead(pidfd.as_fd()) {
            return Err(PeerError::Dead { pid });
        }
        Ok(Self { key: ProcessKey { pid, started: process.started }, pidfd })
    }
}

/// Whether it is below the launcher, or carries its id: a process that left the tree before the guard was its subreaper,
/// or below a subreaper of its own.
fn belongs(pid: i32, launcher: &Launcher) -> bool {
    let mut ancestor = pid;
    for _ in 0..ANCESTORS {
        if ancestor == launcher.pid {
            return true;
        }
        match tree::process(ancestor) {
            Some(process) if process.parent > 0 => ancestor = process.parent,
            _ => break,
        }
    }
    launcher.id.is_some() && id_of_process(pid) == launcher.id
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: both point to valid places of the lengths given.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    Errno::result(answer)?;
    // SAFETY: a new descriptor from the kernel.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: a new descriptor from the kernel.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn is_dead(pidfd: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn a_process_below_the_launcher_belongs_to_it() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let parent = tree::process(own_pid()).unwrap().parent;
        for pid in [own_pid(), parent] {
            let peer = Peer::of(&socket, &Launcher { pid, id: None }).unwrap();
            assert_eq!(peer.key.pid, own_pid());
            assert!(!is_dead(peer.pidfd.as_fd()));
        }
    }

    #[test]
    fn a_stranger_is_refused() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let launcher = Launcher { pid: i32::MAX, id: Some(LauncherId::of_this_process()) };
        let error = Peer::of(&socket, &launcher).unwrap_err();
        assert!(matches!(error, PeerError::Stranger { .. }), "{error}");
    }
}
