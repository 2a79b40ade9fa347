//! A pseudo terminal for a worker's standard error, so that it behaves as on the launcher's own terminal (`isatty`,
//! progress bars, colours) while the relay forwards its bytes unchanged.

use std::{
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
};

use nix::{
    fcntl::OFlag,
    pty::{grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr},
};

/// The relay's end and the worker's end. `O_NOCTTY`: it does not become a controlling terminal.
pub(crate) fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let flags = OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let path = ptsname_r(&ours)?;
    let worker_end = OpenOptions::new().read(true).write(true).custom_flags(flags.bits()).open(path)?;
    // Raw: bytes pass unchanged. The real terminal turns "\n" into "\r\n".
    let mut settings = tcgetattr(&worker_end)?;
    cfmakeraw(&mut settings);
    tcsetattr(&worker_end, SetArg::TCSANOW, &settings)?;
    Ok((OwnedFd::from(ours), OwnedFd::from(worker_end)))
}

/// Copies the window size of the terminal `from` to `to`.
pub(crate) fn copy_size(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open for the borrow, and TIOCGWINSZ writes one winsize, which `size` is.
    let got = unsafe { libc::ioctl(from.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open for the borrow, and TIOCSWINSZ reads one winsize, which `size` is.
    let set = unsafe { libc::ioctl(to.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{IsTerminal as _, Read as _, Write as _},
    };

    use super::*;

    #[test]
    fn bytes_pass_a_pty_unchanged() {
        let (ours, worker_end) = open().unwrap();
        assert!(worker_end.is_terminal());
        let bytes: Vec<u8> = (0..=255).collect();
        let mut worker = File::from(worker_end);
        worker.write_all(&bytes).unwrap();
        drop(worker);
        let mut read = Vec::new();
        let end = File::from(ours).read_to_end(&mut read).unwrap_err();
        assert_eq!(end.raw_os_error(), Some(libc::EIO), "the end of a pty");
        assert_eq!(read, bytes);
    }

    #[test]
    fn the_window_size_is_copied() {
        let (screen, _screen_end) = open().unwrap();
        let size = libc::winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and TIOCSWINSZ reads one winsize.
        assert_eq!(unsafe { libc::ioctl(screen.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
        let (ours, worker_end) = open().unwrap();
        copy_size(&screen, &ours).unwrap();
        let mut seen = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and TIOCGWINSZ writes one winsize.
        assert_eq!(unsafe { libc::ioctl(worker_end.as_raw_fd(), libc::TIOCGWINSZ, &raw mut seen) }, 0);
        assert_eq!((seen.ws_row, seen.ws_col), (33, 111));
    }
}
