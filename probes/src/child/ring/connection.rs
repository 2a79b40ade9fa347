//! One connection of the ring.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use super::error::{Peer, RingError};

/// A connection after its hellos.
#[derive(Debug)]
pub(super) struct RingConnection {
    stream: TcpStream,
    /// The other end.
    pub(super) peer: Peer,
    /// Whether this end measures round trips and the other echoes.
    pub(super) leads: bool,
    /// The leader's place in the ring: identifies the link at both ends.
    pub(super) name: u64,
    /// The longest wait for a byte to be received or sent; `None`: no limit here.
    limit: Option<Duration>,
}

impl RingConnection {
    /// Wraps a stream after its hellos.
    pub(super) fn new(stream: TcpStream, peer: Peer, leads: bool, name: u64) -> Self {
        Self { stream, peer, leads, name, limit: None }
    }

    /// Limits each wait for a byte; `limit` must be above 0.
    pub(super) fn with_limit(self, limit: Duration) -> Result<Self, RingError> {
        let set = self.stream.set_read_timeout(Some(limit));
        set.and_then(|()| self.stream.set_write_timeout(Some(limit)))
            .map_err(|error| self.broken(error, "setting its timeout"))?;
        Ok(Self { limit: Some(limit), ..self })
    }

    pub(super) fn send(&self, bytes: &[u8], doing: &'static str) -> Result<(), RingError> {
        (&self.stream).write_all(bytes).map_err(|error| self.broken(error, doing))
    }

    /// Receives at least one byte.
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

    pub(super) fn receive(&self, mut buffer: &mut [u8], doing: &'static str) -> Result<(), RingError> {
        while !buffer.is_empty() {
            let length = self.receive_some(buffer, doing)?;
            buffer = &mut buffer[length..];
        }
        Ok(())
    }

    pub(super) fn receive_one(&self, doing: &'static str) -> Result<u8, RingError> {
        let mut byte = [0];
        self.receive(&mut byte, doing)?;
        Ok(byte[0])
    }

    /// Closes it, which wakes threads that wait for it.
    pub(super) fn shut(&self) {
        let _closed = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn invalid_message(&self, doing: &'static str) -> RingError {
        RingError::InvalidMessage { peer: self.peer.clone(), doing }
    }

    fn broken(&self, source: io::Error, doing: &'static str) -> RingError {
        let peer = self.peer.clone();
        match source.kind() {
            // Linux's error for an expired timeout.
            io::ErrorKind::WouldBlock => {
                RingError::Silent { peer, doing, seconds: self.limit.unwrap_or_default().as_secs() }
            }
            // The other end is gone, with or without having read everything.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                RingError::ClosedEarly { peer, doing }
            }
            _ => RingError::Broken { peer, doing, source },
        }
    }
}
