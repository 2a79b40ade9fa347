//! The gate between wire messages and the types of `rules`: the only place that validates what came in.
//!
//! [`requests`] is what agents say, [`inventory`] of their accelerators, [`pushes`] what the master says, [`checks`] both of a network check,
//! [`fence`] of going on without the master, [`ends`] how a job ended.

mod checks;
mod ends;
mod fence;
mod inventory;
mod pushes;
mod requests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rules::{NodeId, Round};

pub use self::{
    checks::check_report,
    inventory::inventory_report,
    pushes::{Payload, StreamMessage},
    requests::{Join, end_report, join_request, resume_request},
};

/// A message that is well-formed protobuf and still makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// Path of the field.
        field: &'static str,
    },
    /// A number outside its range.
    #[error("{field} is {value}, expected {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// A document that is none.
    #[error("{field} cannot be read: {reason}")]
    Document {
        /// Path of the field.
        field: &'static str,
        /// Where, and what was expected.
        reason: String,
    },
    /// A text or a list that is too long.
    #[error("{field} has {length} bytes or items, at most {most} are taken")]
    TooLong {
        /// Path of the field.
        field: &'static str,
        /// How long it was.
        length: usize,
        /// How long it may be.
        most: usize,
    },
}

/// Most workers on one node that the wire accepts. Far above any machine; keeps sums of ranks in range.
pub const MOST_WORKERS: u32 = 65_536;

/// Most nodes of one job that the wire accepts. Ranks up to there may be counted one by one.
pub const MOST_NODES: u32 = 65_536;

/// The highest round that a node may speak of. Rounds grow by one at each restart of a job, so none gets there, also
/// where somebody has made one up: a job believes only half of them (`hear_of_round`).
const LAST_ROUND: u32 = 1 << 31;

/// Longest name, address or id, in bytes. A host name has at most 253.
const MOST_NAME: usize = 256;

/// Longest sentence, in bytes. Longer ones are cut by the side that says them.
pub const MOST_WORDS: usize = 4096;

/// Most addresses of one node.
const MOST_ADDRESSES: usize = 64;

fn limited(text: String, most: usize, field: &'static str) -> Result<String, ConvertError> {
    let length = text.len();
    if length > most { Err(ConvertError::TooLong { field, length, most }) } else { Ok(text) }
}

fn name(text: String, field: &'static str) -> Result<String, ConvertError> {
    limited(text, MOST_NAME, field)
}

/// A sentence, cut where it would be refused.
#[must_use]
pub fn cut(words: String) -> String {
    cut_to(words, MOST_WORDS)
}

fn cut_to(mut words: String, most: usize) -> String {
    words.truncate(words.floor_char_boundary(most));
    words
}

fn node_id(id: String, field: &'static str) -> Result<NodeId, ConvertError> {
    if id.is_empty() { Err(ConvertError::Missing { field }) } else { Ok(NodeId(name(id, field)?)) }
}

/// The node that a message is from.
///
/// # Errors
/// When it is empty or too long.
pub fn speaker(id: String) -> Result<NodeId, ConvertError> {
    node_id(id, "node_id")
}

fn port(value: u32, field: &'static str) -> Result<u16, ConvertError> {
    u16::try_from(value).ok().filter(|port| *port > 0).ok_or(ConvertError::Range {
        field,
        value: u64::from(value),
        expected: "1 to 65535",
    })
}

fn workers(value: u32, field: &'static str) -> Result<u32, ConvertError> {
    let is_right = (1..=MOST_WORKERS).contains(&value);
    is_right.then_some(value).ok_or(ConvertError::Range {
        field,
        value: u64::from(value),
        expected: "1 to 65536",
    })
}

fn round(value: u32, field: &'static str) -> Result<Round, ConvertError> {
    (value <= LAST_ROUND).then_some(Round(value)).ok_or(ConvertError::Range {
        field,
        value: u64::from(value),
        expected: "at most 2147483648",
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
