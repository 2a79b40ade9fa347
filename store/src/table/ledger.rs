use thiserror::Error;

use crate::limits::Limits;

/// What one stored thing costs beyond its bytes: map slots, allocations, counts.
const ENTRY_OVERHEAD: usize = 96;

/// Why the table will not do what a client asks. The client's connection must be closed: SET, APPEND and
/// QUEUE_PUSH have no reply, those of ADD and COMPARE_SET are the new value and nothing else, and to a WAIT or
/// BARRIER that is answered with anything but "go on" torch's client says only that it expected that.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("the table is full: {max} bytes")]
    TableFull { max: usize },
    #[error("the table is full: {max} keys")]
    TooManyKeys { max: usize },
    #[error("ADD or BARRIER on a key whose value is not a number")]
    NotANumber,
}

/// Counts what the table holds, in bytes and in keys, and says when it is enough.
#[derive(Debug)]
pub(super) struct Ledger {
    bytes: usize,
    keys: usize,
    max_bytes: usize,
    max_keys: usize,
}

impl Ledger {
    pub(super) fn new(limits: &Limits) -> Self {
        Ledger { bytes: 0, keys: 0, max_bytes: limits.max_table_bytes, max_keys: limits.max_keys }
    }

    /// Charges for a thing of `bytes` that is about to be kept.
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

    /// A thing that was charged for changes its size.
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
