//! Why a ring failed.

use std::io;

use diagnosis::counted::counted;

use crate::child::pattern::Wrong;

/// A peer, as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its place in the ring.
    pub index: usize,
    /// `HOST:PORT`; `:0` where it is unknown.
    pub address: String,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its place alone could be confused with a node number.
        match self.address.starts_with(':') {
            true => write!(f, "peer {} of the ring", self.index),
            false => write!(f, "peer {}", self.address),
        }
    }
}

/// Why a ring failed.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The plan is invalid.
    #[error("invalid ring: place {me} of {members}, {}; this is a bug: report it with this message", counted(*ports, "port"))]
    NoRing {
        members: usize,
        ports: usize,
        /// This node's place.
        me: usize,
    },
    /// The system has no room for another thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// A thread that should run as long as the ring does has ended.
    #[error("a thread of this program has ended; this is a bug: report it with this message")]
    ThreadEnded,
    /// There was no connection to the peer within the timeout.
    #[error("cannot connect to {peer}: {reason}")]
    CannotConnect { peer: Peer, reason: String },
    /// The program at the address is not a probe of this version.
    #[error("no `dlrover-diag pair --listen` of this version answers at {}: {reason}", peer.address)]
    NotAProbe {
        peer: Peer,
        /// Its behaviour.
        reason: String,
    },
    /// No peer connected to the listener in time.
    #[error("no peer connected within {seconds} s")]
    NoPeer { seconds: u64 },
    /// The peer is connected, but neither sends nor receives.
    #[error("{peer} neither sent nor received anything for {seconds} s while {doing}")]
    Silent { peer: Peer, doing: &'static str, seconds: u64 },
    /// The peer closed its connection regularly, but too early.
    #[error("{peer} closed the connection early while this node was {doing}")]
    ClosedEarly { peer: Peer, doing: &'static str },
    /// The connection broke.
    #[error("the connection to {peer} broke while {doing}")]
    Broken {
        peer: Peer,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    /// Received bytes differ from those sent.
    #[error(
        "wrong bytes from {peer}: in a transfer of {size} bytes, at offset {}, 0x{:02x} instead of 0x{:02x}",
        wrong.offset, wrong.got, wrong.expected
    )]
    WrongBytes { peer: Peer, size: u64, wrong: WrongByte },
    /// The peer reports that it received wrong bytes.
    #[error("{peer} received wrong bytes from this node in a transfer of {size} bytes")]
    PeerGotWrongBytes { peer: Peer, size: u64 },
    /// The peer violates the protocol.
    #[error("{peer} sent an invalid message while {doing}")]
    InvalidMessage { peer: Peer, doing: &'static str },
    /// The sum of an all-reduce is wrong.
    #[error("the all-reduce gave a wrong sum: element {at} is {got} instead of {expected}")]
    WrongSum { at: usize, expected: f32, got: f32 },
    /// Another member has a wrong sum.
    #[error("{peer} reports a wrong sum of the all-reduce")]
    PeerGotWrongSum { peer: Peer },
}

impl RingError {
    /// Whether it is only the end of a connection, whose cause may be elsewhere.
    pub(super) fn is_disconnect(&self) -> bool {
        matches!(self, Self::ClosedEarly { .. } | Self::Broken { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongByte {
    /// Counted from the transfer's first byte.
    pub offset: u64,
    pub expected: u8,
    pub got: u8,
}

impl From<Wrong> for WrongByte {
    fn from(Wrong { offset, expected, got }: Wrong) -> Self {
        Self { offset, expected, got }
    }
}
