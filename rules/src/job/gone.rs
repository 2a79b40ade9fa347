//! How a node has left the job.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a node has left the job: the words that follow its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gone {
    /// The master counts the node as lost.
    Lost { reason: String },
    /// The node announced that it leaves.
    Left { reason: String },
    /// Its workers failed for the last time, or could not be started.
    Failed { reason: String },
    /// A check excluded the node from the job.
    Excluded { verdict: String },
}

impl Gone {
    /// Why.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Lost { reason } | Self::Left { reason } | Self::Failed { reason } => reason.clone(),
            Self::Excluded { verdict } => format!("excluded by the network check ({verdict})"),
        }
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { reason } => write!(f, "was lost: {reason}"),
            Self::Left { reason } => write!(f, "left: {reason}"),
            Self::Failed { reason } => write!(f, "failed: {reason}"),
            Self::Excluded { .. } => write!(f, "was {}", self.reason()),
        }
    }
}
