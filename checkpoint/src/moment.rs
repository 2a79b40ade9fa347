//! Time, as the shell gives it.

use serde::{Deserialize, Serialize};

/// Milliseconds since the shell's monotonic clock started. This crate only compares and adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename = "CheckpointMoment")]
pub struct Moment(pub u64);

impl Moment {
    /// The moment `millis` milliseconds later. Saturates: an endless wait stays endless.
    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Milliseconds since `earlier`; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
