//! Bytes that both ends can generate at memory speed: one block of noise (splitmix64), and every block of the stream
//! is that block rotated by another number of bytes. A byte that is wrong, missing, doubled or out of place is
//! detected.

/// Generated and compared in blocks of this size.
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
    /// The stream that these numbers name.
    pub(super) fn new(seed: u64, names: &[u64]) -> Self {
        let key = names.iter().fold(mix(seed.wrapping_add(GAMMA)), |key, name| {
            mix(key ^ mix(name.wrapping_add(GAMMA)).wrapping_add(GAMMA))
        });
        Self { key }
    }

    /// Fills `bytes` with the beginning of the stream.
    pub(super) fn fill(self, bytes: &mut [u8]) {
        let mut counter = self.key;
        for piece in bytes.chunks_mut(8) {
            counter = counter.wrapping_add(GAMMA);
            piece.copy_from_slice(&mix(counter).to_le_bytes()[..piece.len()]);
        }
    }

    pub(super) fn blocks(self) -> Blocks {
        let mut noise = vec![0; 2 * BLOCK].into_boxed_slice();
        let (first, second) = noise.split_at_mut(BLOCK);
        self.fill(first);
        second.copy_from_slice(first);
        Blocks { key: self.key, noise }
    }
}

/// A stream in blocks of [`BLOCK`] bytes.
#[derive(Debug)]
pub(super) struct Blocks {
    key: u64,
    /// The noise twice, so that no rotation has to be copied.
    noise: Box<[u8]>,
}

impl Blocks {
    /// The block with this number.
    pub(super) fn get(&self, index: u64) -> &[u8] {
        let turn = mix(self.key ^ index.wrapping_mul(GAMMA)) % BLOCK as u64;
        let turn = usize::try_from(turn).unwrap_or_default();
        &self.noise[turn..turn + BLOCK]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Counted from the stream's first byte.
    pub(super) offset: u64,
    pub(super) expected: u8,
    pub(super) got: u8,
}

/// Compares a stream with its pattern as it arrives, in pieces of any length.
#[derive(Debug)]
pub(super) struct Checker {
    blocks: Blocks,
    offset: u64,
}

impl Checker {
    /// Starts at the first byte.
    pub(super) fn new(pattern: Pattern) -> Self {
        Self { blocks: pattern.blocks(), offset: 0 }
    }

    /// Compares the next bytes of the stream.
    ///
    /// # Errors
    /// The first wrong byte, after which nothing can be checked.
    pub(super) fn check(&mut self, mut received: &[u8]) -> Result<(), Wrong> {
        while !received.is_empty() {
            let block = BLOCK as u64;
            let within = usize::try_from(self.offset % block).unwrap_or_default();
            let length = received.len().min(BLOCK - within);
            let (now, later) = received.split_at(length);
            let expected = &self.blocks.get(self.offset / block)[within..within + length];
            if now != expected {
                let at = now.iter().zip(expected).position(|(a, b)| a != b).unwrap_or_default();
                let offset = self.offset + at as u64;
                return Err(Wrong { offset, expected: expected[at], got: now[at] });
            }
            self.offset += length as u64;
            received = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(pattern: Pattern, length: usize) -> Vec<u8> {
        let blocks = pattern.blocks();
        let mut bytes: Vec<u8> =
            (0..=length / BLOCK).flat_map(|index| blocks.get(index as u64).to_vec()).collect();
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn a_stream_is_checked_in_pieces_of_any_length() {
        let pattern = Pattern::new(7, &[1, 2]);
        let bytes = stream(pattern, 3 * BLOCK + 13);
        for piece in [1, 7, 64, BLOCK - 1, BLOCK, 2 * BLOCK + 5] {
            let mut checker = Checker::new(pattern);
            for received in bytes.chunks(piece) {
                assert_eq!(checker.check(received), Ok(()));
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
        // A block is not the one before it, shifted.
        let long = stream(Pattern::new(7, &[1, 2]), 2 * BLOCK);
        assert_ne!(long[..BLOCK], long[BLOCK..]);
    }
}
