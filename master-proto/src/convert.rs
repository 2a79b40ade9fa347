//! Converts between wire messages and the types of `rules`: the only place that validates what was received.
//!
//! [`requests`] and [`inventory`] are sent by agents, [`pushes`] by the master; [`checks`] is both of a network check,
//! [`progress`] the progress of ranks and their stacks in a hang, [`checkpoints`] what becomes of checkpoints in memory,
//! [`fence`] the terms of running without the master, [`ends`] how a job ended, [`detail`] what a failed worker said.

mod checkpoints;
mod checks;
mod detail;
mod ends;
mod fence;
mod inventory;
mod progress;
mod pushes;
mod requests;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rules::{NodeId, Round};

pub use self::{
    checkpoints::{CheckpointMessage, checkpoint_progress, checkpoint_report},
    checks::check_report,
    detail::detail_report,
    inventory::inventory_report,
    progress::{MAX_STACKS_PART, ProgressMessage, StacksPart, progress_report},
    pushes::{Payload, StreamMessage},
    requests::{Join, end_report, join_request, resume_request},
};

/// A message that is well-formed protobuf and not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// A required field is absent.
    #[error("{field} is missing")]
    Missing {
        /// Path of the field.
        field: &'static str,
    },
    /// A number is out of range.
    #[error("{field} is {value}; expected {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The valid range.
        expected: &'static str,
    },
    /// A document cannot be parsed.
    #[error("{field} cannot be read: {reason}")]
    Document {
        /// Path of the field.
        field: &'static str,
        /// The error of the parser.
        reason: String,
    },
    /// A text is too long.
    #[error("{field} has {length} bytes (maximum: {max})")]
    TooLong {
        /// Path of the field.
        field: &'static str,
        /// Its length, in bytes.
        length: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// A list is too long.
    #[error("{field} has {length} entries (maximum: {max})")]
    TooMany {
        /// Path of the field.
        field: &'static str,
        /// The number of its entries.
        length: usize,
        /// The limit.
        max: usize,
    },
}

/// Workers of one node. Far above any machine; keeps sums of ranks in range.
pub const MAX_WORKERS: u32 = 65_536;

/// Nodes of one job. Few enough to iterate over the ranks.
pub const MAX_NODES: u32 = 65_536;

/// The highest round that a node may name. Rounds grow by one at each restart of a job, so no job reaches it, even after
/// a node has made one up: a job accepts only half of them (`learn_round`).
const MAX_ROUND: u32 = 1 << 31;

/// Length of a name, address or id, in bytes. A host name has at most 253.
const MAX_NAME: usize = 256;

/// Length of a text, in bytes. Longer texts are truncated by the sender.
pub const MAX_TEXT: usize = 4096;

/// Addresses of one node.
const MAX_ADDRESSES: usize = 64;

fn limited(text: String, max: usize, field: &'static str) -> Result<String, ConvertError> {
    let length = text.len();
    if length > max { Err(ConvertError::TooLong { field, length, max }) } else { Ok(text) }
}

fn name(text: String, field: &'static str) -> Result<String, ConvertError> {
    limited(text, MAX_NAME, field)
}

/// Truncates a text to the length that is accepted.
#[must_use]
pub fn cut(text: String) -> String {
    cut_to(text, MAX_TEXT)
}

fn cut_to(mut text: String, max: usize) -> String {
    text.truncate(text.floor_char_boundary(max));
    text
}

fn node_id(id: String, field: &'static str) -> Result<NodeId, ConvertError> {
    if id.is_empty() { Err(ConvertError::Missing { field }) } else { Ok(NodeId(name(id, field)?)) }
}

/// Validates the id of the node that a message is from.
///
/// # Errors
/// When it is empty or too long.
pub fn sender(id: String) -> Result<NodeId, ConvertError> {
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
    let is_valid = (1..=MAX_WORKERS).contains(&value);
    is_valid.then_some(value).ok_or(ConvertError::Range {
        field,
        value: u64::from(value),
        expected: "1 to 65536",
    })
}

fn round(value: u32, field: &'static str) -> Result<Round, ConvertError> {
    (value <= MAX_ROUND).then_some(Round(value)).ok_or(ConvertError::Range {
        field,
        value: u64::from(value),
        expected: "at most 2147483648",
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
