//! Numbers that are determined by a seed.

use std::time::Duration;

/// SplitMix64: small, and the same on every machine.
#[derive(Debug, Clone)]
pub struct Prng(u64);

impl Prng {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give neighbouring sequences.
        let mut prng = Self(seed ^ 0xD1B5_4A32_D192_ED03);
        prng.draw();
        prng
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number of `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high.saturating_sub(low) + 1)
    }

    /// The same, small.
    pub fn small(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(low.into(), high.into())).unwrap_or(high)
    }

    /// An index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.draw() % (len as u64).max(1)).unwrap_or_default()
    }

    /// True so many times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.draw() % 1000 < u64::from(per_mille)
    }

    /// A wait of so many milliseconds, in microseconds: two waits are seldom the same.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low * 1000, high * 1000))
    }
}
