//! What a probe of a group came to.

use diagnosis::network_check::Probed;
use serde::{Deserialize, Serialize};

/// What a probe of a group came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// For the rules.
    pub probed: Probed,
    /// What an all-reduce was measured at, when that was asked for and it passed.
    pub all_reduced: Option<AllReduced>,
}

impl From<Probed> for Measured {
    fn from(probed: Probed) -> Self {
        Self { probed, all_reduced: None }
    }
}

/// What an all-reduce was measured at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AllReduced {
    /// Size of what was summed.
    pub bytes: u64,
    /// Members of the ring.
    pub members: usize,
    /// The median of the repeats.
    pub seconds_median: f64,
}

impl AllReduced {
    /// Bytes per second, as its user sees it.
    #[must_use]
    pub fn algorithm_bandwidth(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = self.bytes as f64;
        bytes / self.seconds_median
    }

    /// Bytes per second that crossed each link: 2 (k - 1) / k as many.
    #[must_use]
    pub fn bus_bandwidth(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let members = self.members as f64;
        self.algorithm_bandwidth() * 2.0 * (members - 1.0) / members
    }
}
