//! The bytes that are still to be sent to one client.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
};

use crate::codec::{ReplySink, Value};

/// A value of at least this length is shared with the table; a shorter one is cheaper to copy.
const SHARED_FROM: usize = 16 << 10;

/// A buffer that grew beyond this is freed once it is empty.
const KEPT_CAPACITY: usize = 4 << 10;

/// The chunks of one write.
const CHUNKS_PER_WRITE: usize = 16;

/// What is still to be sent to a client.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Ahead of `tail`.
    chunks: VecDeque<Chunk>,
    tail: Vec<u8>,
    /// Bytes at the front that were sent.
    sent: usize,
    pending: usize,
    owned: usize,
}

#[derive(Debug)]
enum Chunk {
    Owned(Vec<u8>),
    Shared(Value),
}

impl Outbox {
    /// Bytes still to be sent.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Memory of this queue alone, without values shared with the table.
    pub(super) fn owned_bytes(&self) -> usize {
        self.owned
    }

    /// Calls `write` until all is sent or it returns `None` (would block).
    pub(super) fn send(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<Option<usize>>,
    ) -> io::Result<()> {
        while self.pending > 0 {
            let written = if self.chunks.is_empty() {
                write(&[IoSlice::new(&self.tail[self.sent..])])?
            } else {
                let mut slices = [IoSlice::new(&[]); CHUNKS_PER_WRITE];
                let chunks = self.chunks.iter().map(Chunk::bytes).chain([&self.tail[..]]);
                let mut used = 0;
                for (slice, bytes) in slices.iter_mut().zip(chunks) {
                    *slice = IoSlice::new(if used == 0 { &bytes[self.sent..] } else { bytes });
                    used += 1;
                }
                write(&slices[..used])?
            };
            match written {
                None => break,
                Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                Some(written) => self.forget(written),
            }
        }
        Ok(())
    }

    fn forget(&mut self, written: usize) {
        self.pending -= written;
        self.sent += written;
        while let Some(chunk) = self.chunks.front() {
            let len = chunk.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            if let Some(Chunk::Owned(bytes)) = self.chunks.pop_front() {
                self.owned -= bytes.len();
            }
        }
        if self.sent == self.tail.len() {
            self.owned -= self.tail.len();
            self.sent = 0;
            self.tail.clear();
            if self.tail.capacity() > KEPT_CAPACITY {
                self.tail = Vec::new();
            }
        }
    }
}

impl ReplySink for Outbox {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.pending += bytes.len();
        self.owned += bytes.len();
        self.tail.extend_from_slice(bytes);
    }

    fn put_value(&mut self, value: &Value) {
        let bytes = value.as_bytes();
        if bytes.len() < SHARED_FROM {
            return self.put_bytes(bytes);
        }
        if !self.tail.is_empty() {
            self.chunks.push_back(Chunk::Owned(std::mem::take(&mut self.tail)));
        }
        self.pending += bytes.len();
        self.chunks.push_back(Chunk::Shared(value.clone()));
    }
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Owned(bytes) => bytes,
            Chunk::Shared(value) => value.as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn all_bytes_are_sent_in_order_with_short_writes(
            rounds in vec((vec((any::<bool>(), 0usize..40_000), 0..6), vec(1usize..30_000, 0..6)), 1..6),
        ) {
            let mut outbox = Outbox::default();
            let (mut expected, mut sent) = (Vec::new(), Vec::new());
            let mut next = 0u8;
            for (puts, writes) in rounds {
                for (as_value, len) in puts {
                    next = next.wrapping_add(1);
                    let bytes = vec![next; len];
                    expected.extend_from_slice(&bytes);
                    if as_value { outbox.put_value(&Value::from(bytes)) } else { outbox.put_bytes(&bytes) }
                }
                let mut writes = writes.into_iter();
                outbox.send(|slices| Ok(writes.next().map(|most| take(slices, most, &mut sent)))).unwrap();
                prop_assert_eq!(outbox.pending(), expected.len() - sent.len());
            }
            outbox.send(|slices| Ok(Some(take(slices, usize::MAX, &mut sent)))).unwrap();
            prop_assert!(sent == expected);
            prop_assert_eq!((outbox.pending(), outbox.owned_bytes(), outbox.chunks.len()), (0, 0, 0));
        }
    }

    fn take(slices: &[IoSlice<'_>], most: usize, sent: &mut Vec<u8>) -> usize {
        let before = sent.len();
        for slice in slices {
            let room = most - (sent.len() - before);
            sent.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        sent.len() - before
    }

    #[test]
    fn a_large_value_is_shared_with_the_table() {
        let value = Value::from(vec![1; 1 << 20]);
        let mut outbox = Outbox::default();
        outbox.put_bytes(b"head");
        outbox.put_value(&value);
        assert_eq!((outbox.pending(), outbox.owned_bytes()), ((1 << 20) + 4, 4));
    }
}
