//! The plan of a ring.

use std::{os::fd::RawFd, time::Duration};

use serde::{Deserialize, Serialize};

/// The sizes of the transfers, in bytes, in this order. All are whole blocks of the pattern.
pub(crate) const SIZES: [u64; 3] = [64 << 10, 1 << 20, 16 << 20];

/// The purpose of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingMode {
    /// Known bytes both ways on every connection, all compared.
    Check,
    /// A ring all-reduce of 32-bit floating point numbers, with its sum checked.
    AllReduce {
        /// Size of what is summed; rounded down to whole numbers.
        bytes: u64,
        /// How often, after one that is not timed; at least once.
        repeats: u32,
    },
}

/// The plan of a ring. All members have the same except for [`me`](Self::me).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingPlan {
    /// Identifies the check, round, group and test. A peer with another token is rejected.
    pub token: u64,
    /// Seed of the bytes.
    pub seed: u64,
    /// This node's place.
    pub me: usize,
    /// Host name or address of each member, in the order of the ring; the one that workers will use.
    pub members: Vec<String>,
    /// [`crate::Listener::port`] of each member.
    pub ports: Vec<u16>,
    /// How long an unreachable peer is retried. There is no other time limit; the master has one.
    pub connect_timeout: Duration,
    pub mode: RingMode,
}

/// A plan, and the inherited descriptor of the listener.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RingTask {
    pub(crate) plan: RingPlan,
    pub(crate) listener: RawFd,
}

impl RingPlan {
    /// Bytes that this node receives.
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

/// Bytes that one member receives in one all-reduce.
pub(crate) fn bytes_received(bytes: u64, members: usize) -> u64 {
    // Each of the two halves transfers every chunk but one.
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
