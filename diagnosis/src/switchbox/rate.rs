//! A bandwidth, and what is accepted as a minimum. It is compared exactly: "lower than" 10000 MB/s must not
//! depend on rounding.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes a second; 1 MB/s is 1000000 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Rate(pub u64);

/// No link is faster, in MB/s: a larger minimum is a mistake.
const MAX_MB_PER_S: f64 = 1e9;

impl Rate {
    /// The values that [`Self::minimum`] accepts, as text.
    pub const MINIMUM: &str = "a bandwidth in MB/s above 0 and at most 1000000000";

    /// The required bandwidth of a pair, from MB/s; `None` for what no pair could miss, or reach.
    #[must_use]
    pub fn minimum(megabytes: f64) -> Option<Self> {
        Self::from_mb_per_s(megabytes).filter(|min| *min > Self::default() && megabytes <= MAX_MB_PER_S)
    }

    /// From MB/s. `None` for what is no bandwidth: negative, infinite, not a number.
    #[must_use]
    pub fn from_mb_per_s(megabytes: f64) -> Option<Self> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative; casts saturate"
        )]
        let bytes = (megabytes * 1e6).round() as u64;
        (megabytes.is_finite() && megabytes >= 0.0).then_some(Self(bytes))
    }

    /// From `DIGITS.DIGITS` in MB/s, exactly; digits beyond the sixth are dropped. `None` for anything else.
    #[must_use]
    pub fn from_decimal(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.')?;
        let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !are_digits(whole) || !are_digits(fraction) {
            return None;
        }
        let millionths: String = fraction.chars().chain(std::iter::repeat('0')).take(6).collect();
        // Too large for 64 bits counts as the largest.
        let whole = whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1_000_000);
        Some(Self(whole.saturating_add(millionths.parse().ok()?)))
    }

    /// In MB/s, for documents.
    #[must_use]
    pub fn mb_per_s(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a number for people")]
        let bytes = self.0 as f64;
        bytes / 1e6
    }
}

impl fmt::Display for Rate {
    /// In MB/s to a tenth, never rounded up: a value below the threshold must not look like it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1_000_000, self.0 % 1_000_000 / 100_000)
    }
}
