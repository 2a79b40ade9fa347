//! Which sockets of a switchbox are measured against each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// More pairs than any switchbox has. One run starts a process for each.
pub const MAX_PAIRS: usize = 64;

/// Two sockets of a switchbox that are measured against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SocketPair(pub u32, pub u32);

impl SocketPair {
    /// A socket with itself, to try a probe on one device.
    #[must_use]
    pub const fn is_itself(self) -> bool {
        self.0 == self.1
    }
}

impl fmt::Display for SocketPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0, self.1)
    }
}

/// `0:1 2:4`.
#[must_use]
pub fn pairs_text(pairs: &[SocketPair]) -> String {
    pairs.iter().map(SocketPair::to_string).collect::<Vec<_>>().join(" ")
}

/// Why pairs cannot be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairsError {
    /// No pair was given.
    #[error("there is no pair: give pairs of sockets such as 0:1 2:4")]
    None,
    /// More pairs than [`MAX_PAIRS`].
    #[error("{0} pairs are more than the {MAX_PAIRS} that one check takes")]
    TooMany(usize),
    /// A pair of a socket with itself: traffic within one accelerator does not reach the switchbox.
    #[error("{0} pairs a socket with itself, which requires --probe-loopback")]
    Itself(SocketPair),
    /// Two pairs of the same two sockets, in any order.
    #[error("{0} is listed twice")]
    Twice(SocketPair),
    /// A socket in two pairs: it has one link, whose bandwidth and fault they would share.
    #[error("socket {socket} is in {first} and in {second}: a socket belongs to one pair")]
    SocketTwice { socket: u32, first: SocketPair, second: SocketPair },
}

/// Checks that these pairs can be measured: at least one, at most [`MAX_PAIRS`], no socket in two of them, and none
/// with itself except with `loopback`.
///
/// # Errors
/// The first error, from the left.
pub fn check_pairs(pairs: &[SocketPair], loopback: bool) -> Result<(), PairsError> {
    if pairs.is_empty() {
        return Err(PairsError::None);
    }
    if pairs.len() > MAX_PAIRS {
        return Err(PairsError::TooMany(pairs.len()));
    }
    for (place, &pair) in pairs.iter().enumerate() {
        let SocketPair(one, other) = pair;
        if one == other && !loopback {
            return Err(PairsError::Itself(pair));
        }
        for &first in pairs.iter().take(place) {
            if first == pair || first == SocketPair(other, one) {
                return Err(PairsError::Twice(pair));
            }
            if let Some(socket) = [one, other].into_iter().find(|it| *it == first.0 || *it == first.1) {
                return Err(PairsError::SocketTwice { socket, first, second: pair });
            }
        }
    }
    Ok(())
}
