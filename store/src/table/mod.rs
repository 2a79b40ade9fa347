//! What a request does: keys, queues, waits and replies.
//!
//! Pure: requests of clients go in, replies come out, nothing is read or sent. Where torch's documentation is silent,
//! its 2.15 server was the reference; deviations from clear bugs of that server are noted in place.

#[cfg(test)]
mod invariants;
mod long_request;
mod number;
mod quota;
mod space;
mod waits;

pub use long_request::{KEYS_PER_STEP, LongRequest, Step};
pub use quota::Refused;
pub use space::{Replies, Table};

/// A connection. Never reused in the life of a server, so that a late reference to a closed connection cannot hit
/// another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);
