//! Checksums of a file: the CRC-32 of each chunk of it, for the manifest.

use crc32fast::Hasher;

/// A chunk is as long as this, in bytes, or longer where there would be too many.
pub const SMALLEST_CHUNK: u64 = 64 << 20;
pub const MOST_CHUNKS: u64 = 64;

/// Returns the length of the chunks of a file of so many bytes: 64 MiB, doubled until there are at most 64
/// of them. The last chunk is as long as what is left.
#[must_use]
pub fn chunk_bytes(file_bytes: u64) -> u64 {
    let mut chunk = SMALLEST_CHUNK;
    // Without an overflow: 64 chunks of 2^58 bytes are any file.
    while file_bytes.div_ceil(chunk) > MOST_CHUNKS {
        chunk *= 2;
    }
    chunk
}

/// Checksums of all chunks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Length of each chunk but the last, in bytes.
    pub chunk_bytes: u64,
    /// The CRC-32 of each chunk.
    pub crc32: Vec<u32>,
}

/// Why a file cannot be what a manifest says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthError {
    #[error("the file has the size {found} B; expected {expected} B: it was truncated or overwritten")]
    Length { found: u64, expected: u64 },
    #[error(
        "the number of checksums for {bytes} bytes in chunks of {chunk_bytes} is {found}; expected {expected}"
    )]
    Checksums { bytes: u64, chunk_bytes: u64, expected: u64, found: u64 },
    #[error("the length of a chunk is 0")]
    Chunk,
}

impl Sums {
    /// Checks what can be checked without a byte of the file.
    ///
    /// # Errors
    /// When the file has another length, or there are too many or too few checksums for it.
    pub fn verify_length(&self, found: u64) -> Result<(), LengthError> {
        let Self { bytes, chunk_bytes, .. } = *self;
        if chunk_bytes == 0 {
            return Err(LengthError::Chunk);
        }
        let (expected, sums) = (bytes.div_ceil(chunk_bytes), self.crc32.len() as u64);
        if expected != sums {
            return Err(LengthError::Checksums { bytes, chunk_bytes, expected, found: sums });
        }
        if found != bytes {
            return Err(LengthError::Length { found, expected: bytes });
        }
        Ok(())
    }
}

/// Makes the checksums of a file, for its writer and for its verifier.
#[derive(Clone, Debug)]
pub struct Summing {
    sums: Sums,
    current: Hasher,
    /// Bytes of the current chunk so far.
    filled: u64,
}

impl Summing {
    /// For a file in chunks of so many bytes; 0 counts as 1.
    #[must_use]
    pub fn new(chunk_bytes: u64) -> Self {
        let sums = Sums { bytes: 0, chunk_bytes: chunk_bytes.max(1), crc32: Vec::new() };
        Self { sums, current: Hasher::new(), filled: 0 }
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sums.bytes
    }

    /// Bytes that the current chunk still takes; never 0.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.sums.chunk_bytes - self.filled
    }

    /// The next bytes of the file.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.current.update(now);
            self.grow(now.len() as u64);
            bytes = later;
        }
    }

    /// The next bytes, hashed already. They must fit into the room of the chunk.
    pub(super) fn add(&mut self, hashed: &Hasher, len: u64) {
        self.current.combine(hashed);
        self.grow(len);
    }

    fn grow(&mut self, len: u64) {
        self.filled += len;
        self.sums.bytes += len;
        if self.filled == self.sums.chunk_bytes {
            let whole = std::mem::take(&mut self.current);
            self.sums.crc32.push(whole.finalize());
            self.filled = 0;
        }
    }

    /// The end of the file.
    #[must_use]
    pub fn finish(mut self) -> Sums {
        if self.filled > 0 {
            self.sums.crc32.push(self.current.finalize());
        }
        self.sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_most_64_chunks() {
        let mib = 1 << 20;
        assert_eq!(chunk_bytes(0), 64 * mib);
        assert_eq!(chunk_bytes(64 * 64 * mib), 64 * mib);
        assert_eq!(chunk_bytes(64 * 64 * mib + 1), 128 * mib);
        for bytes in [1, u64::MAX / 2, u64::MAX] {
            assert!(bytes.div_ceil(chunk_bytes(bytes)) <= MOST_CHUNKS);
        }
    }

    #[test]
    fn each_chunk_has_its_checksum() {
        let bytes: Vec<u8> = (0..100).collect();
        let mut summing = Summing::new(32);
        for part in bytes.chunks(7) {
            summing.update(part);
        }
        let expected: Vec<u32> = bytes.chunks(32).map(crc32fast::hash).collect();
        assert_eq!(summing.finish(), Sums { bytes: 100, chunk_bytes: 32, crc32: expected });
        assert!(Summing::new(32).finish().crc32.is_empty());
    }

    #[test]
    fn lengths_are_verified() {
        let sums = |bytes, chunk_bytes, count| Sums { bytes, chunk_bytes, crc32: vec![0; count] };
        assert_eq!(sums(100, 32, 4).verify_length(100), Ok(()));
        assert_eq!(sums(0, 32, 0).verify_length(0), Ok(()));
        let fault = |sums: Sums, found| sums.verify_length(found).unwrap_err().to_string();
        assert_eq!(
            fault(sums(100, 32, 4), 99),
            "the file has the size 99 B; expected 100 B: it was truncated or overwritten"
        );
        assert_eq!(
            fault(sums(100, 32, 3), 100),
            "the number of checksums for 100 bytes in chunks of 32 is 3; expected 4"
        );
        assert_eq!(fault(sums(100, 0, 4), 100), "the length of a chunk is 0");
    }
}
