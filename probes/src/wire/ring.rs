//! Who forms a ring, and what for.

use std::{os::fd::RawFd, time::Duration};

use serde::{Deserialize, Serialize};

/// The transfers, in bytes, in this order. All are whole blocks of the pattern.
pub(crate) const SIZES: [u64; 3] = [64 << 10, 1 << 20, 16 << 20];

/// What the ring is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingMode {
    /// Known bytes both ways on every connection, every one checked.
    Check,
    /// A ring all-reduce of 32-bit floating point numbers, the sum checked.
    AllReduce {
        /// Size of what is summed; rounded down to whole numbers.
        bytes: u64,
        /// How often, beside one that is not timed; at least once.
        repeats: u32,
    },
}

/// Who forms a ring, and what for. All members have the same but for [`me`](Self::me).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingPlan {
    /// Names the check, round, group and test. Whoever comes with another is turned away.
    pub token: u64,
    /// Of the bytes that are moved.
    pub seed: u64,
    /// Which member this node is.
    pub me: usize,
    /// Host name or address of each member, in the order of the ring; the one that workers will use.
    pub members: Vec<String>,
    /// [`Listener::port`] of each member.
    pub ports: Vec<u16>,
    /// So long is a neighbour that cannot be reached tried again. There is no other time limit; the master has one.
    pub connect_timeout: Duration,
    /// What it is for.
    pub mode: RingMode,
}

/// A plan, and the inherited descriptor of the listener.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RingTask {
    pub(crate) plan: RingPlan,
    pub(crate) listener: RawFd,
}

impl RingPlan {
    /// Bytes that this node is to receive.
    pub(crate) fn total_bytes(&self) -> u64 {
        match self.mode {
            RingMode::Check => 2 * SIZES.iter().sum::<u64>(),
            RingMode::AllReduce { bytes, repeats } => {
                bytes_received(bytes, self.members.len()) * (u64::from(repeats.max(1)) + 1)
            }
        }
    }

    pub(crate) fn next(&self) -> usize {
        (self.me + 1) % self.members.len()
    }

    pub(crate) fn previous(&self) -> usize {
        (self.me + self.members.len() - 1) % self.members.len()
    }

    pub(crate) fn address(&self, member: usize) -> String {
        let host = &self.members[member];
        let port = self.ports[member];
        if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }
}

/// What one member receives in one all-reduce.
pub(crate) fn bytes_received(bytes: u64, members: usize) -> u64 {
    // Each of the two halves brings every chunk but one.
    let members = (members as u64).max(1);
    bytes.saturating_mul(2 * (members - 1)) / members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_receives_every_chunk_but_one_twice() {
        assert_eq!(bytes_received(1200, 2), 1200);
        assert_eq!(bytes_received(1200, 3), 1600);
        assert_eq!(bytes_received(1200, 1), 0);
    }
}
