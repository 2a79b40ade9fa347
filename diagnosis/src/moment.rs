//! Time in the pure crates: a point on the shell's monotonic clock.

use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Time since the shell's clock started. The shell makes it from two `Instant`s; the pure crates only compare and
/// add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Moment(Duration);

impl Moment {
    /// The start of the clock.
    pub const START: Self = Self(Duration::ZERO);

    /// The moment `since_start` after the start of the clock.
    #[must_use]
    pub const fn new(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// The moment `secs` seconds after the start of the clock.
    #[must_use]
    pub const fn at_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The moment `millis` milliseconds after the start of the clock.
    #[must_use]
    pub const fn at_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Time since the start of the clock.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates: an endless wait stays endless.
    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// Zero when `earlier` is not earlier.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.0.as_secs_f64())
    }
}
