//! Why a ring failed.

use std::io;

use crate::child::pattern::Wrong;

/// A neighbour, as it is named in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its place in the ring.
    pub index: usize,
    /// Where it is: `HOST:PORT`; `:0` where that was not said.
    pub address: String,
}

impl std::fmt::Display for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its place would be taken for the number of a node.
        match self.address.starts_with(':') {
            true => write!(f, "neighbour {} of the ring", self.index),
            false => write!(f, "neighbour {}", self.address),
        }
    }
}

/// Why a ring failed.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The plan makes no sense.
    #[error("member {me} of {members} with {ports} ports is no ring")]
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
    #[error("cannot connect to {who}: {words}")]
    CannotConnect {
        /// To whom.
        who: Neighbour,
        /// What happened last.
        words: String,
    },
    /// Somebody is there, but not who was looked for.
    #[error("what answers at {} is not dlrover-diag pair --listen of this version: {words}", who.address)]
    Stranger {
        /// Where.
        who: Neighbour,
        /// What it did.
        words: String,
    },
    /// Nobody came to a listener that waits for so long.
    #[error("no peer connected within {seconds} s")]
    NobodyCame {
        /// The limit.
        seconds: u64,
    },
    /// The other end is there, and neither says nor takes anything.
    #[error("{who} neither sent nor took anything for {seconds} s, while {doing}")]
    Silent {
        /// Who.
        who: Neighbour,
        /// What we were at.
        doing: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The other end closed its connection in good order, but too early.
    #[error("{who} closed the connection early, while {doing}")]
    ClosedEarly {
        /// Who.
        who: Neighbour,
        /// What we were at.
        doing: &'static str,
    },
    /// The connection broke.
    #[error("the connection with {who} broke while {doing}")]
    Broken {
        /// With whom.
        who: Neighbour,
        /// What we were at.
        doing: &'static str,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// What came was not what was sent.
    #[error(
        "wrong bytes from {who}: in a transfer of {size} bytes, at offset {}, 0x{:02x} came in place of 0x{:02x}",
        wrong.offset, wrong.got, wrong.expected
    )]
    WrongBytes {
        /// From whom.
        who: Neighbour,
        /// Of the transfer.
        size: u64,
        /// The first wrong byte.
        wrong: WrongByte,
    },
    /// What the other end got was not what we sent; it says so.
    #[error("{who} received wrong bytes from us in a transfer of {size} bytes")]
    TheirsWrong {
        /// Who.
        who: Neighbour,
        /// Of the transfer.
        size: u64,
    },
    /// The other end does not keep to the protocol.
    #[error("{who} answers with what no probe says, while {doing}")]
    Gibberish {
        /// Who.
        who: Neighbour,
        /// What we were at.
        doing: &'static str,
    },
    /// An all-reduce gave another sum.
    #[error("the all-reduce gave a wrong sum: number {at} is {got} in place of {expected}")]
    WrongSum {
        /// Which number.
        at: usize,
        /// What it was to be.
        expected: f32,
        /// What it is.
        got: f32,
    },
    /// Somebody else in the ring has a wrong sum.
    #[error("{who} says that the all-reduce failed")]
    TheirSumWrong {
        /// Who says it.
        who: Neighbour,
    },
}

impl RingError {
    /// Whether it says no more than that a connection has ended, which may have its reason elsewhere.
    pub(super) fn is_mere_end(&self) -> bool {
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
