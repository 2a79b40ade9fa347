//! The socket that workers connect to. The launcher has made it and keeps it open: connections that are made while no
//! saver runs wait there for the next one.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    time::Duration,
};

use checkpoint::message::{ErrorCode, Refusal, Reply};
use nix::errno::Errno;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};

use super::{
    input::Input,
    peer::{Launcher, Peer},
};

/// Between two attempts while the process has no room for a descriptor.
const NO_ROOM: Duration = Duration::from_millis(100);

/// How long the request of a refused client is waited for.
const REQUEST: Duration = Duration::from_secs(2);

/// Refused clients that are waited for at the same time.
const REFUSED: usize = 16;

/// The listener that was handed over.
///
/// # Errors
/// When the descriptor is no unix socket.
pub(super) fn inherited(fd: RawFd) -> io::Result<UnixListener> {
    if fd <= libc::STDERR_FILENO {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: plain numbers.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, the parent hands it over, and this is called once, before anything else is opened.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let listener = std::os::unix::net::UnixListener::from(fd);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Accepts connections, as long as the loop runs. Processes of other users and of other runs are refused: the name of the
/// socket is no secret, and it has no permissions.
pub(super) async fn accept(listener: UnixListener, launcher: Launcher, inputs: mpsc::Sender<Input>) {
    loop {
        let input = match listener.accept().await {
            Ok((socket, _)) => match Peer::of(&socket, &launcher) {
                Ok(peer) => Input::Accepted(socket, peer),
                Err(error) => {
                    let text = format!("{error}; the connection is closed");
                    refuse(socket, ErrorCode::Invalid, &text);
                    Input::NotAccepted(format!("rejected a connection to the saver: {text}"))
                }
            },
            Err(error) => {
                // The connection stays in the queue; without the wait the error would come at once again.
                sleep(NO_ROOM).await;
                Input::NotAccepted(format!("cannot accept a connection to the saver: {error}; retrying"))
            }
        };
        if inputs.send(input).await.is_err() {
            return;
        }
    }
}

/// Tells a client why its connection is closed. A new connection has room for the line. A client that finds the connection
/// closed before it has sent its request does not look for a reply, so the end waits for the request. Must be called on
/// the runtime.
pub(super) fn refuse(socket: UnixStream, code: ErrorCode, text: &str) {
    static WAITING: Semaphore = Semaphore::const_new(REFUSED);
    let line = Reply::Error(Refusal::new(code, text)).to_line();
    let _gone = socket.try_write(line.as_bytes());
    if let Ok(permit) = WAITING.try_acquire() {
        tokio::spawn(async move {
            let _sent_or_late = timeout(REQUEST, socket.readable()).await;
            drop(permit);
        });
    }
}
