//! Bytes that both ends can make by themselves, at memory speed: splitmix64 as a counter, so that any place of a
//! stream can be made without what is before it.

/// Made and compared in pieces of so many bytes.
pub(super) const BLOCK: usize = 64 << 10;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    key: u64,
}

impl Pattern {
    /// The stream that these numbers name; other numbers, another stream.
    pub(super) fn new(seed: u64, names: &[u64]) -> Self {
        let key = names.iter().fold(mix(seed.wrapping_add(GAMMA)), |key, name| {
            mix(key ^ mix(name.wrapping_add(GAMMA)).wrapping_add(GAMMA))
        });
        Self { key }
    }

    /// Its block number `index`, or the beginning of it.
    pub(super) fn fill(self, index: u64, block: &mut [u8]) {
        let words = (BLOCK / 8) as u64;
        let mut counter = self.key.wrapping_add(index.wrapping_mul(words).wrapping_mul(GAMMA));
        let mut pieces = block.chunks_exact_mut(8);
        for piece in &mut pieces {
            counter = counter.wrapping_add(GAMMA);
            piece.copy_from_slice(&mix(counter).to_le_bytes());
        }
        let rest = pieces.into_remainder();
        let last = mix(counter.wrapping_add(GAMMA)).to_le_bytes();
        let length = rest.len();
        rest.copy_from_slice(&last[..length]);
    }
}

/// The first byte that is not as it was to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Counted from the stream's first byte.
    pub(super) offset: u64,
    /// What it was to be.
    pub(super) expected: u8,
    /// What came.
    pub(super) got: u8,
}

/// Compares a stream with its pattern as it comes, in pieces of any length.
#[derive(Debug)]
pub(super) struct Checker {
    pattern: Pattern,
    offset: u64,
    block: Box<[u8]>,
}

impl Checker {
    /// From the first byte.
    pub(super) fn new(pattern: Pattern) -> Self {
        Self { pattern, offset: 0, block: vec![0; BLOCK].into_boxed_slice() }
    }

    /// The next bytes of the stream.
    ///
    /// # Errors
    /// The first wrong byte. Nothing can be checked any more after it.
    pub(super) fn check(&mut self, mut came: &[u8]) -> Result<(), Wrong> {
        while !came.is_empty() {
            let block = BLOCK as u64;
            let within = usize::try_from(self.offset % block).unwrap_or_default();
            if within == 0 {
                self.pattern.fill(self.offset / block, &mut self.block);
            }
            let length = came.len().min(BLOCK - within);
            let (now, later) = came.split_at(length);
            let expected = &self.block[within..within + length];
            if now != expected {
                let at = now.iter().zip(expected).position(|(a, b)| a != b).unwrap_or_default();
                let offset = self.offset + at as u64;
                return Err(Wrong { offset, expected: expected[at], got: now[at] });
            }
            self.offset += length as u64;
            came = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(pattern: Pattern, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
            pattern.fill(index as u64, block);
        }
        bytes
    }

    #[test]
    fn a_stream_is_right_in_whatever_pieces_it_comes() {
        let pattern = Pattern::new(7, &[1, 2]);
        let bytes = stream(pattern, 3 * BLOCK + 13);
        for piece in [1, 7, 64, BLOCK - 1, BLOCK, 2 * BLOCK + 5] {
            let mut checker = Checker::new(pattern);
            for came in bytes.chunks(piece) {
                assert_eq!(checker.check(came), Ok(()));
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found_where_it_is() {
        let pattern = Pattern::new(7, &[1, 2]);
        let mut bytes = stream(pattern, 2 * BLOCK);
        bytes[BLOCK + 9] ^= 4;
        let got = bytes[BLOCK + 9];
        let wrong = Checker::new(pattern).check(&bytes).unwrap_err();
        assert_eq!(wrong, Wrong { offset: BLOCK as u64 + 9, expected: got ^ 4, got });
    }

    #[test]
    fn other_names_are_other_streams() {
        let one = stream(Pattern::new(7, &[1, 2]), 64);
        for other in [
            Pattern::new(8, &[1, 2]),
            Pattern::new(7, &[2, 1]),
            Pattern::new(7, &[1, 3]),
            Pattern::new(7, &[1]),
        ] {
            assert_ne!(one, stream(other, 64));
        }
        // A block is not the one before it, moved on.
        let long = stream(Pattern::new(7, &[1, 2]), 2 * BLOCK);
        assert_ne!(long[..BLOCK], long[BLOCK..]);
    }
}
