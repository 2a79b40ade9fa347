//! What a request does: the keys, the queues, who waits, and who is answered.
//!
//! Pure: a request of a client goes in, replies to clients come out, nothing is read or sent. Where torch's
//! documentation is silent its 2.15 server was asked; where that server is plainly wrong ours is not, and the
//! place says so.

mod errand;
#[cfg(test)]
mod invariants;
mod ledger;
mod number;
mod space;
mod waits;

pub use errand::{Errand, KEYS_A_STEP, Step};
pub use ledger::Refused;
pub use space::{Replies, Table};

/// One connection. Never used twice in the life of a server, so that a late word about a closed connection
/// can not be taken for one about another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);
