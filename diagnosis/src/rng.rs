//! Seeded pseudo-random numbers: splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
//! 64 bits of state, one step an output, the same numbers on every machine. Not for secrets.

/// A stream of numbers that is determined by its seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rng(u64);

/// The golden ratio in 64 bits: the step of the counter.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser: near inputs, far outputs.
#[must_use]
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Rng {
    /// The stream of one purpose under one seed.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed ^ purpose.wrapping_mul(STEP));
        // Seeds are small numbers mostly: one step drives them apart.
        let state = rng.next();
        Self(state)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Below `end`; 0 for an `end` of 0. The bias is below `end` / 2^64.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let wide = u128::from(self.next()) * (end as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// From 0 to below 1, in steps of 2^-53.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of the normal distribution with mean 0 and deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.share()).cos()
    }

    /// Any order is as likely as any other (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
