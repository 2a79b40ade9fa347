//! The launcher's side of the guard's socket. Never blocks.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use nix::unistd::Pid;
use tokio::{io::Interest, net::UnixStream};

use super::{
    Guard,
    frame::{FromGuard, Inbox, ToGuard, encode, send},
};

/// A frame to be sent.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

/// The launcher's end.
#[derive(Debug)]
pub struct GuardLink {
    pid: Pid,
    socket: UnixStream,
    inbox: Inbox,
    outbox: VecDeque<Outgoing>,
}

impl GuardLink {
    /// Connects to `guard`. Must be called inside the runtime.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn new(guard: Guard) -> io::Result<Self> {
        let socket = UnixStream::from_std(guard.socket)?;
        Ok(Self { pid: guard.pid, socket, inbox: Inbox::default(), outbox: VecDeque::new() })
    }

    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a message now, or as soon as the guard reads. Descriptors are closed here once they are sent.
    ///
    /// # Errors
    /// When the message is too large. A dead guard is not an error: its exit is reported by the reaper.
    pub fn send(&mut self, message: &ToGuard, fds: Vec<OwnedFd>) -> io::Result<()> {
        self.outbox.push_back(Outgoing { bytes: encode(message)?, sent: 0, fds });
        self.flush_outbox();
        Ok(())
    }

    fn flush_outbox(&mut self) {
        while let Some(first) = self.outbox.front_mut() {
            let socket = &self.socket;
            let sent = socket
                .try_io(Interest::WRITABLE, || send(socket.as_fd(), &first.bytes[first.sent..], &first.fds));
            match sent {
                Ok(sent) => {
                    first.sent += sent;
                    first.fds.clear();
                    if first.sent == first.bytes.len() {
                        self.outbox.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.outbox.clear();
                    return;
                }
            }
        }
    }

    /// The guard's next message; pending for ever once the guard is dead. Cancel-safe.
    pub async fn next(&mut self) -> FromGuard {
        loop {
            if let Ok(Some(message)) = self.inbox.next_message() {
                return message;
            }
            let interest = if self.outbox.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let Ok(ready) = self.socket.ready(interest).await else {
                return std::future::pending().await;
            };
            if ready.is_readable() {
                let (socket, inbox) = (&self.socket, &mut self.inbox);
                match socket.try_io(Interest::READABLE, || inbox.fill(socket.as_fd())) {
                    Ok(0) => return std::future::pending().await,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return std::future::pending().await,
                }
            }
            if ready.is_writable() {
                self.flush_outbox();
            }
        }
    }
}
