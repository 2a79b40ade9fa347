//! Which of a worker's two output streams something applies to: the meaning of torchrun's `--redirects`
//! and `--tee` values. The grammar of the flags is the launcher's.

use serde::{Deserialize, Serialize};

/// A choice among a worker's standard output and standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Streams {
    /// Standard output (bit 1 of torchrun's value).
    pub out: bool,
    /// Standard error (bit 2 of torchrun's value).
    pub err: bool,
}

impl Streams {
    /// Neither stream: value 0.
    pub const NONE: Self = Self { out: false, err: false };

    /// From torchrun's value, 0 to 3; `None` beyond.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits > 3 {
            return None;
        }
        Some(Self { out: bits & 1 != 0, err: bits & 2 != 0 })
    }

    /// Both choices together: what is tee'd is redirected too.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self { out: self.out || other.out, err: self.err || other.err }
    }
}
