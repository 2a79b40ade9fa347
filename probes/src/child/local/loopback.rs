//! Bytes over the host's loopback, without which workers of one node do not find each other.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

use crate::child::pattern::{BLOCK, Checker, Pattern};

/// Bytes that are moved.
const SIZE: usize = 16 << 20;

/// Why loopback fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoopbackError {
    #[error("no connection through 127.0.0.1")]
    Connect(#[source] io::Error),
    #[error("the connection through 127.0.0.1 broke")]
    Move(#[source] io::Error),
    #[error("wrong bytes through 127.0.0.1: at offset {offset}, 0x{got:02x} instead of 0x{expected:02x}")]
    Wrong {
        /// Counted from the first byte.
        offset: u64,
        expected: u8,
        got: u8,
    },
}

/// The check of loopback: sends bytes to itself, receives them, and compares.
pub(super) fn check() -> Result<(), LoopbackError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(LoopbackError::Connect)?;
    let address = listener.local_addr().map_err(LoopbackError::Connect)?;
    let mut sender = TcpStream::connect(address).map_err(LoopbackError::Connect)?;
    let (mut receiver, _) = listener.accept().map_err(LoopbackError::Connect)?;
    // Another process's bytes would differ.
    let pattern = Pattern::new(u64::from(address.port()), &[u64::from(std::process::id())]);
    let sending = thread::spawn(move || {
        let blocks = pattern.blocks();
        (0..SIZE / BLOCK).try_for_each(|index| sender.write_all(blocks.get(index as u64)))
    });
    let mut checker = Checker::new(pattern);
    let mut buffer = vec![0; BLOCK];
    let mut left = SIZE;
    while left > 0 {
        let length = receiver.read(&mut buffer).map_err(LoopbackError::Move)?;
        if length == 0 {
            break;
        }
        checker.check(&buffer[..length]).map_err(|wrong| LoopbackError::Wrong {
            offset: wrong.offset,
            expected: wrong.expected,
            got: wrong.got,
        })?;
        left = left.saturating_sub(length);
    }
    let sent = sending.join().unwrap_or_else(|_| Err(io::Error::other("the sending thread has ended")));
    sent.map_err(LoopbackError::Move)?;
    if left > 0 {
        return Err(LoopbackError::Move(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_works_here() {
        super::check().unwrap();
    }
}
