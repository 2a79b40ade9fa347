//! Why nodes wait, for their own output and for the master's log.

use std::{fmt, time::Duration};

use diagnosis::counted::{counted, named_and_more};
use serde::{Deserialize, Serialize};

use crate::{missing::Missing, node::NodeName};

/// Why a node has no assignment yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pending {
    /// Nodes are gathering.
    Gathering {
        /// How many have joined.
        joined: u32,
        /// The fewest that make a round.
        needed: u32,
        /// The most that a round has.
        most: u32,
        /// The missing ranks; `None` when the nodes request none.
        missing: Option<Missing>,
        /// Members of the last round that are still stopping their workers.
        stopping: u32,
        /// When the round starts unless further nodes join.
        starts_in: Option<Duration>,
        /// The time so far.
        waited: Duration,
        /// The timeout.
        limit: Duration,
    },
    /// The job runs with all the nodes it needs; this one waits.
    Spare {
        /// How many nodes run.
        nodes: u32,
        /// The number of further nodes with which the job grows. 0: it does not grow, because it has the most that
        /// it may have or is about to end.
        lacking: u32,
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
            Self::Gathering { joined, needed, most, missing, stopping, starts_in, limit, .. } => {
                let starts_in = starts_in.map(|_| Duration::ZERO);
                let waited = Duration::ZERO;
                Self::Gathering { joined, needed, most, missing, stopping, starts_in, limit, waited }
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
            Self::Gathering { joined, needed, most, missing, stopping, starts_in, waited, limit } => {
                write!(f, "{joined} of {needed}")?;
                if most > needed {
                    write!(f, "-{most}")?;
                }
                f.write_str(if *most == 1 { " node joined" } else { " nodes joined" })?;
                if let Some(missing) = missing.as_ref().filter(|missing| !missing.is_empty()) {
                    write!(f, ", missing: {missing}")?;
                }
                if let (0, Some(starts_in)) = (stopping, starts_in) {
                    let seconds = starts_in.as_millis().div_ceil(1000);
                    return write!(f, "; starting in {seconds} s unless more join");
                }
                if *stopping > 0 {
                    write!(f, ", {} still stopping workers", counted(*stopping, "node"))?;
                }
                write!(f, " ({} s of {} s)", waited.as_secs(), limit.as_secs_f64())
            }
            Self::Fenced { nodes, more, lease, waited, limit } => {
                let names = named_and_more(nodes, nodes.len() + *more as usize);
                write!(f, "waited {} s of {} s for {names}", waited.as_secs(), limit.as_secs_f64())?;
                let lease = lease.as_secs_f64();
                // No connection of unknown members is known, and some of those not named here may be unknown.
                match nodes.as_slice() {
                    [node] if *more == 0 && !node.is_plural() => write!(
                        f,
                        ", which may still run workers. The job continues without it {lease} s after its last message \
                         if at least half of the round's nodes are connected. Where its host can reach the job \
                         master, stopping its launcher ends the wait when the job master sees the connection close"
                    ),
                    known if *more == 0 && !known.iter().any(NodeName::is_plural) => write!(
                        f,
                        ", which may still run workers. The job continues without them {lease} s after their last \
                         messages if at least half of the round's nodes are connected. Where their hosts can reach \
                         the job master, stopping their launchers ends the wait when the job master sees the \
                         connections close"
                    ),
                    _ => write!(
                        f,
                        ", which may still run workers. The job continues without them {lease} s after the job master \
                         last heard of them, or later, when at least half of the round's nodes are connected"
                    ),
                }
            }
            Self::Spare { nodes, lacking: 0 } => {
                let nodes = counted(*nodes, "node");
                write!(f, "the job runs on {nodes}; this node is a spare and joins when a node rank is free")
            }
            Self::Spare { nodes, lacking } => {
                let nodes = counted(*nodes, "node");
                let (more, joins) =
                    (counted(*lacking, "more node"), if *lacking == 1 { "joins" } else { "join" });
                write!(
                    f,
                    "the job runs on {nodes}; this node joins when a node rank is free, or when {more} {joins}: the job \
                     grows by whole node units only"
                )
            }
            Self::OtherJob { point } => write!(
                f,
                "waiting: {point}; the job that first has enough nodes is served; give every node of \
                 a job the same command line and environment"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeRank, Round};

    #[test]
    fn the_line_has_missing_ranks_and_times() {
        let pending = |joined, missing, starts_in| Pending::Gathering {
            joined,
            needed: 2,
            most: 4,
            missing,
            stopping: 0,
            starts_in,
            waited: Duration::from_millis(63_400),
            limit: Duration::from_secs(600),
        };
        let missing = Some([NodeRank(1), NodeRank(2)].into_iter().collect());
        assert_eq!(
            pending(1, missing, None).to_string(),
            "1 of 2-4 nodes joined, missing: node ranks 1-2 (63 s of 600 s)"
        );
        let soon = pending(3, None, Some(Duration::from_millis(1400)));
        assert_eq!(soon.to_string(), "3 of 2-4 nodes joined; starting in 2 s unless more join");
        assert!(soon.is_same(&pending(3, None, Some(Duration::ZERO))));
    }

    #[test]
    fn unknown_members_are_several() {
        let pending = |nodes: &[&NodeName], more| {
            let (lease, waited, limit) = (15, 3, 600);
            let [lease, waited, limit] = [lease, waited, limit].map(Duration::from_secs);
            let nodes = nodes.iter().copied().cloned().collect();
            Pending::Fenced { nodes, more, lease, waited, limit }.to_string()
        };
        let unknown = NodeName::of_unknown_members(Round(3));
        let text = "waited 3 s of 600 s for unknown members of round 3, which may still run workers. The job \
                    continues without them 15 s after the job master last heard of them, or later, when at least \
                    half of the round's nodes are connected";
        assert_eq!(pending(&[&unknown], 0), text, "no launcher of theirs is known");
        let node_id = crate::NodeId("a".into());
        let known = NodeName { rank: Some(NodeRank(5)), node_id, ..unknown.clone() };
        let one = "stopping its launcher ends the wait when the job master sees the connection close";
        assert!(pending(&[&known], 0).ends_with(one), "{}", pending(&[&known], 0));
        let both = "stopping their launchers ends the wait when the job master sees the connections close";
        assert!(pending(&[&known, &known], 0).ends_with(both), "{}", pending(&[&known, &known], 0));
        for text in [pending(&[&known, &unknown], 0), pending(&[&known], 4)] {
            assert!(text.ends_with(" are connected"), "{text}");
        }
    }

    #[test]
    fn a_node_that_waits_for_a_whole_unit_is_no_spare() {
        let text = |lacking| Pending::Spare { nodes: 2, lacking }.to_string();
        assert_eq!(
            text(0),
            "the job runs on 2 nodes; this node is a spare and joins when a node rank is free"
        );
        let start = "the job runs on 2 nodes; this node joins when a node rank is free, or when";
        for (lacking, more) in [(1, "1 more node joins"), (3, "3 more nodes join")] {
            assert_eq!(text(lacking), format!("{start} {more}: the job grows by whole node units only"));
        }
    }
}
