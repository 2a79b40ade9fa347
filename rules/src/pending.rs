//! What a waiting node waits for.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{missing::Missing, node::NodeName};

/// Why a node has no assignment yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pending {
    /// Nodes are gathering.
    Gathering {
        /// How many have joined.
        joined: u32,
        /// How many are needed.
        needed: u32,
        /// Ranks that no node has asked for; `None` when the nodes have no ranks.
        missing: Option<Missing>,
        /// Members of the last round that are still stopping their workers.
        stopping: u32,
        /// How long it has been.
        waited: Duration,
        limit: Duration,
    },
    /// The job runs with all the nodes it needs; this one is a spare.
    Spare {
        /// How many nodes run.
        nodes: u32,
    },
    /// Lost nodes may still have workers, so no round begins.
    Fenced {
        /// Some of them.
        nodes: Vec<NodeName>,
        /// The number of further ones.
        more: u32,
        /// How long their workers may run without contact.
        lease: Duration,
        /// How long it has been.
        waited: Duration,
        limit: Duration,
    },
    /// Nodes of two jobs have joined one master, and neither job runs.
    OtherJob {
        /// What differs.
        point: String,
    },
}

impl Pending {
    /// Whether only the waiting time differs.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let timeless = |pending: &Self| match pending.clone() {
            Self::Gathering { joined, needed, missing, stopping, limit, .. } => {
                Self::Gathering { joined, needed, missing, stopping, limit, waited: Duration::ZERO }
            }
            Self::Fenced { nodes, more, lease, limit, .. } => {
                Self::Fenced { nodes, more, lease, limit, waited: Duration::ZERO }
            }
            other @ (Self::Spare { .. } | Self::OtherJob { .. }) => other,
        };
        timeless(self) == timeless(other)
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gathering { joined, needed, missing, stopping, waited, limit } => {
                write!(f, "PENDING {joined}/{needed} joined")?;
                if let Some(missing) = missing.as_ref().filter(|missing| !missing.is_empty()) {
                    write!(f, ", missing ranks {missing}")?;
                }
                if *stopping > 0 {
                    write!(f, ", {stopping} still stopping their workers")?;
                }
                if *stopping == 0 && joined >= needed {
                    // Enough: a job may take more than its minimum.
                    f.write_str(", enough to start; waiting briefly for more")?;
                }
                write!(f, ", {} s of {} s", waited.as_secs(), limit.as_secs_f64())
            }
            Self::Fenced { nodes, more, lease, waited, limit } => {
                f.write_str("PENDING enough nodes have joined, but ")?;
                for (number, node) in nodes.iter().enumerate() {
                    write!(f, "{}{node}", if number > 0 { ", " } else { "" })?;
                }
                if *more > 0 {
                    write!(f, " and {more} more")?;
                }
                write!(
                    f,
                    " may still run workers of the last round: the next round begins {} s after the last contact \
                     if half of that round's nodes are present, else when they are back, their launchers have ended, or \
                     other nodes have taken their node ranks (NODE_RANK), {} s of {} s",
                    lease.as_secs_f64(),
                    waited.as_secs(),
                    limit.as_secs_f64()
                )
            }
            Self::Spare { nodes } => {
                write!(
                    f,
                    "SPARE: the job runs on {}; this one joins as soon as a place is free",
                    diagnosis::counted::counted(*nodes, "node")
                )
            }
            Self::OtherJob { point } => write!(
                f,
                "WAITING: {point}; the master serves the job that has enough nodes first; give every node of a job the \
                 same command line"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeRank;

    #[test]
    fn the_line_has_missing_ranks_and_the_waiting_time() {
        let pending = Pending::Gathering {
            joined: 2,
            needed: 4,
            missing: Some([NodeRank(2), NodeRank(3)].into_iter().collect()),
            stopping: 0,
            waited: Duration::from_millis(63_400),
            limit: Duration::from_secs(600),
        };
        assert_eq!(pending.to_string(), "PENDING 2/4 joined, missing ranks 2-3, 63 s of 600 s");
        let Pending::Gathering { waited, limit, .. } = pending else { unreachable!() };
        let enough = Pending::Gathering { joined: 2, needed: 2, missing: None, stopping: 0, waited, limit };
        assert_eq!(
            enough.to_string(),
            "PENDING 2/2 joined, enough to start; waiting briefly for more, 63 s of 600 s"
        );
    }
}
