//! Why a ring failed.

use std::io;

use diagnosis::counted::counted;

use crate::child::pattern::Wrong;

/// A neighbour, as it is named in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its place in the ring.
    pub index: usize,
    /// Where it is: `HOST:PORT`; `:0` where that was not said.
    pub address: String,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its place would be taken for the number of a node.
        match self.address.starts_with(':') {
            true => write!(f, "peer {} of the ring", self.index),
            false => write!(f, "peer {}", self.address),
        }
    }
}

/// Why a ring failed.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The plan makes no sense.
    #[error("invalid ring: member {me} of {members}, {}", counted(*ports, "port"))]
    NoRing {
        /// How many members.
        members: usize,
        /// How many ports.
        ports: usize,
        /// Which one we were to be.
        me: usize,
    },
    /// No room for a thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Within the patience that was asked for.
    #[error("cannot connect to {peer}: {reason}")]
    CannotConnect {
        /// To whom.
        peer: Peer,
        /// What happened last.
        reason: String,
    },
    /// Somebody is there, but not who was looked for.
    #[error("what answers at {} is not dlrover-diag pair --listen of this version: {reason}", peer.address)]
    NotAProbe {
        /// Where.
        peer: Peer,
        /// What it did.
        reason: String,
    },
    /// Nobody came to a listener that waits for so long.
    #[error("no peer connected within {seconds} s")]
    NoPeer {
        /// The limit.
        seconds: u64,
    },
    /// The other end is there, and neither says nor takes anything.
    #[error("{peer} neither sent nor received anything for {seconds} s while {doing}")]
    Silent {
        /// Who.
        peer: Peer,
        /// What we were at.
        doing: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The other end closed its connection in good order, but too early.
    #[error("{peer} closed the connection early while {doing}")]
    ClosedEarly {
        /// Who.
        peer: Peer,
        /// What we were at.
        doing: &'static str,
    },
    /// The connection broke.
    #[error("the connection with {peer} broke while {doing}")]
    Broken {
        /// With whom.
        peer: Peer,
        /// What we were at.
        doing: &'static str,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// What came was not what was sent.
    #[error(
        "wrong bytes from {peer}: in a transfer of {size} bytes, at offset {}, 0x{:02x} instead of 0x{:02x}",
        wrong.offset, wrong.got, wrong.expected
    )]
    WrongBytes {
        /// From whom.
        peer: Peer,
        /// Of the transfer.
        size: u64,
        /// The first wrong byte.
        wrong: WrongByte,
    },
    /// What the other end got was not what we sent; it says so.
    #[error("{peer} received wrong bytes from us in a transfer of {size} bytes")]
    PeerGotWrongBytes {
        /// Who.
        peer: Peer,
        /// Of the transfer.
        size: u64,
    },
    /// The other end does not keep to the protocol.
    #[error("{peer} sent an invalid message while {doing}")]
    InvalidMessage {
        /// Who.
        peer: Peer,
        /// What we were at.
        doing: &'static str,
    },
    /// An all-reduce gave another sum.
    #[error("the all-reduce gave a wrong sum: number {at} is {got} instead of {expected}")]
    WrongSum {
        /// Which number.
        at: usize,
        /// What it was to be.
        expected: f32,
        /// What it is.
        got: f32,
    },
    /// Somebody else in the ring has a wrong sum.
    #[error("{peer} reports a wrong sum of the all-reduce")]
    PeerGotWrongSum {
        /// Who says it.
        peer: Peer,
    },
}

impl RingError {
    /// Whether it says no more than that a connection has ended, which may have its reason elsewhere.
    pub(super) fn is_disconnect(&self) -> bool {
        matches!(self, Self::ClosedEarly { .. } | Self::Broken { .. })
    }
}

/// The first byte that is not as it was to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongByte {
    /// Counted from the transfer's first byte.
    pub offset: u64,
    /// What it was to be.
    pub expected: u8,
    /// What came.
    pub got: u8,
}

impl From<Wrong> for WrongByte {
    fn from(Wrong { offset, expected, got }: Wrong) -> Self {
        Self { offset, expected, got }
    }
}
