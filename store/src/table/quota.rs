//! The size of the table in bytes and keys, and its limits.

use thiserror::Error;

use crate::limits::Limits;

/// The cost of an entry beyond its bytes: map slots, allocations, counts.
const ENTRY_OVERHEAD: usize = 96;

/// Why the table refuses a request. The client's connection must be closed: SET, APPEND and QUEUE_PUSH have no reply,
/// those of ADD and COMPARE_SET are the new value and nothing else, and an unexpected reply to WAIT or BARRIER gives
/// an unhelpful error in torch's client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("the table is full: {max} bytes")]
    TableFull { max: usize },
    #[error("the table is full: {max} keys")]
    TooManyKeys { max: usize },
    #[error("ADD or BARRIER on a key whose value is not a number")]
    NotANumber,
}

/// Counts the bytes and keys of the table, and enforces the limits.
#[derive(Debug)]
pub(super) struct Quota {
    bytes: usize,
    keys: usize,
    max_bytes: usize,
    max_keys: usize,
}

impl Quota {
    pub(super) fn new(limits: &Limits) -> Self {
        Quota { bytes: 0, keys: 0, max_bytes: limits.max_table_bytes, max_keys: limits.max_keys }
    }

    /// Charges for an entry of `bytes` that is about to be stored.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), Refused> {
        let after = self.bytes.saturating_add(bytes).saturating_add(ENTRY_OVERHEAD);
        if after > self.max_bytes {
            return Err(Refused::TableFull { max: self.max_bytes });
        }
        self.bytes = after;
        Ok(())
    }

    pub(super) fn refund(&mut self, bytes: usize) {
        self.bytes -= bytes + ENTRY_OVERHEAD;
    }

    /// Adjusts the charge of an entry that changes its size.
    pub(super) fn resize(&mut self, from: usize, to: usize) -> Result<(), Refused> {
        let after = (self.bytes - from).saturating_add(to);
        if after > self.max_bytes && to > from {
            return Err(Refused::TableFull { max: self.max_bytes });
        }
        self.bytes = after;
        Ok(())
    }

    pub(super) fn charge_key(&mut self, bytes: usize) -> Result<(), Refused> {
        if self.keys == self.max_keys {
            return Err(Refused::TooManyKeys { max: self.max_keys });
        }
        self.charge(bytes)?;
        self.keys += 1;
        Ok(())
    }

    pub(super) fn refund_key(&mut self, bytes: usize) {
        self.refund(bytes);
        self.keys -= 1;
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.keys
    }
}
