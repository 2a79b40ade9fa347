//! What a job of these nodes would do.

use std::fmt;

use diagnosis::network_check::{NodeVerdict, OnBadPath, Outcome, Policy};

use super::words::count;
use launcher::failure::{INCONCLUSIVE, MASS_FAILURE};

/// What a job of these nodes would do, with the default of `--on-inconclusive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    Fails { code: u8, why: &'static str },
    GoesOn { with: usize, without: usize },
}

impl Job {
    pub(super) fn after(policy: &Policy, outcome: &Outcome) -> Self {
        let is_in_doubt = outcome.nodes.iter().any(|node| node.verdict == NodeVerdict::Inconclusive);
        let without = outcome.nodes.iter().filter(|node| node.excluded).count();
        if outcome.guard.mass_failure {
            Self::Fails { code: MASS_FAILURE, why: "more faulty nodes than --taint-guard allows" }
        } else if is_in_doubt {
            Self::Fails { code: INCONCLUSIVE, why: "inconclusive, and --on-inconclusive=fail" }
        } else if outcome.cut.is_some() && policy.on_bad_path == OnBadPath::Fail {
            Self::Fails { code: INCONCLUSIVE, why: "a path is down, and --on-bad-path=fail" }
        } else {
            Self::GoesOn { with: outcome.nodes.len() - without, without }
        }
    }

    /// Whether it starts with the nodes that are not excluded.
    pub(super) fn starts(self) -> bool {
        matches!(self, Self::GoesOn { .. })
    }

    /// The exit code of its launchers, where it fails.
    pub(super) fn code(self) -> Option<u8> {
        match self {
            Self::Fails { code, .. } => Some(code),
            Self::GoesOn { .. } => None,
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fails { code, why } => {
                write!(f, "would fail with exit code {code} ({why}); no node is excluded")
            }
            Self::GoesOn { with: 0, without } => {
                write!(f, "waits for other nodes; {} excluded", count(*without, "node"))
            }
            Self::GoesOn { with, without: 0 } => write!(f, "continues with {}", count(*with, "node")),
            Self::GoesOn { with, without } => {
                let with = count(*with, "node");
                write!(
                    f,
                    "continues with {with}, if --nnodes allows so few; {} excluded",
                    count(*without, "node")
                )
            }
        }
    }
}
