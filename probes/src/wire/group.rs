//! The result of a probe of a group.

use diagnosis::network_check::Probed;
use serde::{Deserialize, Serialize};

/// The result of a probe of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// For the rules.
    pub probed: Probed,
    /// The measurements of an all-reduce, when it was requested and passed.
    pub all_reduced: Option<AllReduced>,
}

impl From<Probed> for Measured {
    fn from(probed: Probed) -> Self {
        Self { probed, all_reduced: None }
    }
}

/// The measurements of an all-reduce.
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
    /// Bytes per second, as a user sees it.
    #[must_use]
    pub fn algorithm_bandwidth(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = self.bytes as f64;
        bytes / self.seconds_median
    }

    /// Bytes per second on each link: 2 (k - 1) / k times that.
    #[must_use]
    pub fn bus_bandwidth(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let members = self.members as f64;
        self.algorithm_bandwidth() * 2.0 * (members - 1.0) / members
    }
}
