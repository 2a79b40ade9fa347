//! What a file will hold, piece by piece, before any byte of it is written.
//!
//! No byte is ever patched: a checksum comes after the bytes that it is of, in every format here. So a file
//! is written from its first byte to its last, and the checksums of its chunks, which the manifest has, are
//! made on the way.

use std::ops::Range;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Bytes of the slot; `offset` from its first byte, the header's.
    Slot { offset: u64, len: u64 },
    /// The CRC-32 of earlier pieces, one after the other: 4 bytes, little endian. None of them is a `Crc`.
    Crc { of: Range<usize> },
}

impl Piece {
    /// Length in the file, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no piece is empty")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Slot { len, .. } => *len,
            Self::Crc { .. } => 4,
        }
    }
}

/// A file: its pieces, in the order of the file. [`Stream`](super::stream::Stream) goes through them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pieces: Vec<Piece>,
    len: u64,
    /// The next bytes begin a piece of their own, because a checksum ends or begins here.
    is_marked: bool,
}

impl Plan {
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Length of the file, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the last piece. Returns the number that the next piece will have.
    pub(super) fn mark(&mut self) -> usize {
        self.is_marked = true;
        self.pieces.len()
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Bytes(last)) if !self.is_marked => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.to_vec())),
        }
        self.is_marked = false;
    }

    pub(super) fn fill(&mut self, byte: u8, count: u64) {
        self.bytes(&vec![byte; usize::try_from(count).unwrap_or(0)]);
    }

    pub(super) fn slot(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.push(Piece::Slot { offset, len });
        }
    }

    pub(super) fn crc(&mut self, of: Range<usize>) {
        debug_assert!(of.end <= self.pieces.len());
        self.push(Piece::Crc { of });
    }

    fn push(&mut self, piece: Piece) {
        self.len += piece.len();
        self.pieces.push(piece);
        self.is_marked = false;
    }

    /// Puts another file after this one.
    pub(super) fn append(&mut self, other: Self) {
        let first = self.mark();
        for piece in other.pieces {
            match piece {
                Piece::Crc { of } => self.push(Piece::Crc { of: of.start + first..of.end + first }),
                other => self.push(other),
            }
        }
        self.is_marked = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_joined_up_to_a_mark() {
        let mut plan = Plan::default();
        plan.bytes(b"ab");
        plan.bytes(b"c");
        assert_eq!(plan.mark(), 1);
        plan.bytes(b"d");
        plan.slot(4096, 10);
        plan.slot(9000, 0);
        let end = plan.mark();
        plan.crc(1..end);
        plan.fill(0, 2);
        let bytes = |text: &str| Piece::Bytes(text.as_bytes().to_vec());
        let pieces = [
            bytes("abc"),
            bytes("d"),
            Piece::Slot { offset: 4096, len: 10 },
            Piece::Crc { of: 1..3 },
            bytes("\0\0"),
        ];
        assert_eq!(plan.pieces(), pieces);
        assert_eq!(plan.len(), 3 + 1 + 10 + 4 + 2);
    }

    #[test]
    fn a_file_after_another_keeps_its_checksums() {
        let mut inner = Plan::default();
        inner.bytes(b"x");
        inner.crc(0..1);
        let mut outer = Plan::default();
        outer.bytes(b"ab");
        outer.append(inner.clone());
        outer.append(inner);
        let x = || Piece::Bytes(b"x".to_vec());
        let pieces =
            [Piece::Bytes(b"ab".to_vec()), x(), Piece::Crc { of: 1..2 }, x(), Piece::Crc { of: 3..4 }];
        assert_eq!(outer.pieces(), pieces);
        assert_eq!(outer.len(), 12);
    }
}
