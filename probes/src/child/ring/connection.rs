//! One connection of the ring.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use super::error::{Peer, RingError};

/// One connection, met and welcomed.
#[derive(Debug)]
pub(super) struct RingConnection {
    stream: TcpStream,
    /// Who is at the other end.
    pub(super) peer: Peer,
    /// Whether this end measures round trips, and the other echoes.
    pub(super) leads: bool,
    /// The leader's place in the ring: the name of the link, the same at both ends.
    pub(super) name: u64,
    /// The longest wait for a byte to come or to go; `None`: somebody else sees to it.
    limit: Option<Duration>,
}

impl RingConnection {
    /// From a stream whose hellos are over.
    pub(super) fn new(stream: TcpStream, peer: Peer, leads: bool, name: u64) -> Self {
        Self { stream, peer, leads, name, limit: None }
    }

    /// The same, but no wait for a byte to come or to go is longer than this, which is above 0.
    pub(super) fn with_limit(self, limit: Duration) -> Result<Self, RingError> {
        let set = self.stream.set_read_timeout(Some(limit));
        set.and_then(|()| self.stream.set_write_timeout(Some(limit)))
            .map_err(|error| self.broken(error, "setting its time limit"))?;
        Ok(Self { limit: Some(limit), ..self })
    }

    /// Sends all of it.
    pub(super) fn send(&self, bytes: &[u8], doing: &'static str) -> Result<(), RingError> {
        (&self.stream).write_all(bytes).map_err(|error| self.broken(error, doing))
    }

    /// Whatever comes next, at least one byte.
    pub(super) fn receive_some(&self, buffer: &mut [u8], doing: &'static str) -> Result<usize, RingError> {
        loop {
            match (&self.stream).read(buffer) {
                Ok(0) => return Err(RingError::ClosedEarly { peer: self.peer.clone(), doing }),
                Ok(length) => return Ok(length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error, doing)),
            }
        }
    }

    /// As many bytes as there is room for.
    pub(super) fn receive(&self, mut buffer: &mut [u8], doing: &'static str) -> Result<(), RingError> {
        while !buffer.is_empty() {
            let length = self.receive_some(buffer, doing)?;
            buffer = &mut buffer[length..];
        }
        Ok(())
    }

    /// The next byte.
    pub(super) fn receive_one(&self, doing: &'static str) -> Result<u8, RingError> {
        let mut byte = [0];
        self.receive(&mut byte, doing)?;
        Ok(byte[0])
    }

    /// Ends it under whoever waits for it on another thread.
    pub(super) fn shut(&self) {
        let _closed = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn invalid_message(&self, doing: &'static str) -> RingError {
        RingError::InvalidMessage { peer: self.peer.clone(), doing }
    }

    fn broken(&self, source: io::Error, doing: &'static str) -> RingError {
        let peer = self.peer.clone();
        match source.kind() {
            // What Linux says when a limit is over.
            io::ErrorKind::WouldBlock => {
                RingError::Silent { peer, doing, seconds: self.limit.unwrap_or_default().as_secs() }
            }
            // The other end is gone, with or without having read all that we sent.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                RingError::ClosedEarly { peer, doing }
            }
            _ => RingError::Broken { peer, doing, source },
        }
    }
}
