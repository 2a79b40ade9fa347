//! A file from its first byte to its last, and its checksums on the way.
//!
//! ```text
//! let mut stream = Stream::new(&plan);
//! while let Some(part) = stream.next(8 << 20) {
//!     match part {
//!         Part::Bytes(bytes) => write them,
//!         Part::Slot { offset, len } => { read them from the slot; write them; stream.copied(&them)?; }
//!     }
//! }
//! let sums = stream.finish();
//! ```

use crc32fast::Hasher;

use super::{
    chunks::{Summing, Sums, chunk_bytes},
    plan::{Piece, Plan},
};

/// Fewer bytes are hashed twice sooner than two checksums are combined.
const WORTH_COMBINING: usize = 16 << 10;

/// What is to be written next.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// These bytes. They count as written.
    Bytes(&'a [u8]),
    /// Bytes of the slot, which [`Stream::copied`] takes; until then, the same part comes again.
    Slot { offset: u64, len: u64 },
}

/// More bytes were copied from the slot than the part had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} bytes were copied from the slot; expected at most {expected}")]
pub struct CopiedTooMany {
    pub found: u64,
    pub expected: u64,
}

/// Where the writer of a file is.
#[derive(Debug)]
pub struct Stream<'a> {
    plan: &'a Plan,
    /// The current piece, and how many bytes of it are written.
    piece: usize,
    done: u64,
    /// Bytes of the slot that the last part asked for and that were not copied yet.
    asked: u64,
    current: Hasher,
    /// Of each piece that is written.
    hashes: Vec<Hasher>,
    summing: Summing,
    crc: [u8; 4],
}

impl<'a> Stream<'a> {
    #[must_use]
    pub fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            piece: 0,
            done: 0,
            asked: 0,
            current: Hasher::new(),
            hashes: Vec::with_capacity(plan.pieces().len()),
            summing: Summing::new(chunk_bytes(plan.len())),
            crc: [0; 4],
        }
    }

    /// Returns the next part, of at most so many bytes (0 counts as 1), or nothing at the end of the file.
    pub fn next(&mut self, at_most: u64) -> Option<Part<'_>> {
        let piece = self.plan.pieces().get(self.piece)?;
        let len = (piece.len() - self.done).min(at_most.max(1)).min(self.summing.room());
        // No piece is longer than the memory, and the part is no longer than its piece.
        let range = || self.done as usize..(self.done + len) as usize;
        match piece {
            Piece::Slot { offset, .. } => {
                self.asked = len;
                Some(Part::Slot { offset: offset + self.done, len })
            }
            Piece::Bytes(bytes) => {
                let part = &bytes[range()];
                self.wrote(part);
                Some(Part::Bytes(part))
            }
            Piece::Crc { of } => {
                let range = range();
                if self.done == 0 {
                    let mut whole = Hasher::new();
                    self.hashes[of.clone()].iter().for_each(|hash| whole.combine(hash));
                    self.crc = whole.finalize().to_le_bytes();
                }
                let part = self.crc;
                self.wrote(&part[range.clone()]);
                Some(Part::Bytes(&self.crc[range]))
            }
        }
    }

    /// Takes the bytes that were copied from the slot: those of the last part, or the first of them.
    ///
    /// # Errors
    /// When there are more than the last part had.
    pub fn copied(&mut self, bytes: &[u8]) -> Result<(), CopiedTooMany> {
        let found = bytes.len() as u64;
        if found > self.asked {
            return Err(CopiedTooMany { found, expected: self.asked });
        }
        self.asked -= found;
        self.wrote(bytes);
        Ok(())
    }

    /// Bytes that are written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.summing.bytes()
    }

    /// The checksums, or nothing when the file is not whole.
    #[must_use]
    pub fn finish(self) -> Option<Sums> {
        (self.piece == self.plan.pieces().len()).then(|| self.summing.finish())
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let len = bytes.len() as u64;
        if bytes.len() < WORTH_COMBINING {
            self.current.update(bytes);
            self.summing.update(bytes);
        } else {
            // Many bytes are gone through once, for both checksums.
            let mut hash = Hasher::new();
            hash.update(bytes);
            self.current.combine(&hash);
            self.summing.add(&hash, len);
        }
        self.done += len;
        if self.plan.pieces().get(self.piece).is_some_and(|piece| piece.len() == self.done) {
            self.hashes.push(std::mem::take(&mut self.current));
            self.piece += 1;
            self.done = 0;
        }
    }
}

#[cfg(test)]
mod tests;
