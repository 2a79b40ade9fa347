//! How the whole job ended.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{ids::NodeRank, missing::Missing, node::NodeName, signal_name::stop_signal};
use diagnosis::{
    counted::{counted, named_and_more},
    network_check::CHECK_COMMAND,
};

/// How the whole job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobVerdict {
    /// The workers of every node exited with code 0.
    Succeeded,
    Failed(JobFailure),
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobFailure {
    /// A node gave up and may not be replaced.
    Node { node: NodeName, reason: String },
    /// Too few nodes joined in time.
    TimedOut {
        /// How many had joined.
        joined: u32,
        /// How many are needed.
        needed: u32,
        waited: Duration,
        /// The ranks that are missing; `None` when the nodes have no ranks.
        missing: Option<Missing>,
        /// Why nodes that had joined are gone, the last one last.
        losses: Vec<String>,
        /// The nodes that were refused, since the last round began.
        refused: Option<Box<RefusedNodes>>,
    },
    /// A rank was lost more often than it may be replaced.
    Exhausted {
        rank: NodeRank,
        /// Its last holder.
        node: NodeName,
        /// How often it may be replaced.
        limit: u32,
        /// How its last holder has left the job: `was lost: ...`.
        reason: String,
    },
    /// The launcher that served the job master was stopped.
    MasterLeft { node: NodeName, reason: String },
    /// The launcher that served the job master was stopped by this signal, and no other node was left.
    Stopped { signal: i32 },
    /// A check could not decide which of some nodes is at fault.
    Inconclusive {
        /// The first of them.
        named: Vec<NodeName>,
        /// How many there are.
        of: u32,
        /// How many were checked.
        nodes: u32,
        /// The evidence of the first of them.
        why: String,
    },
    /// A check found fault with more nodes than the limit.
    MassFailure {
        /// How many.
        faults: u32,
        /// The limit.
        limit: u32,
        /// How many were checked.
        nodes: u32,
    },
    /// A check found that healthy nodes cannot reach each other.
    Cut {
        /// The cut, in one sentence.
        message: String,
        /// How many nodes could train together.
        fit: u32,
        /// How many were checked.
        nodes: u32,
        /// How many are needed.
        needed: u32,
        /// Why the job does not continue with those.
        why: CutEnd,
    },
}

/// Nodes that the job master has refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedNodes {
    /// How many; at least 1. A launcher that is started again counts again.
    pub nodes: u32,
    /// The last of them.
    pub last: NodeName,
    /// Why that one was.
    pub reason: String,
}

impl fmt::Display for RefusedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, last, reason } = self;
        f.write_str("rejected ")?;
        if *nodes > 1 {
            write!(f, "{nodes} nodes, the last of them ")?;
        }
        write!(f, "{last}: {reason}")
    }
}

/// Why a job does not continue with the nodes that could train together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CutEnd {
    /// The nodes that can train together are too few.
    TooFew,
    /// A path is down, and the job is set to fail then (`--on-bad-path=fail`).
    Policy,
    /// The launcher that serves the job master is cut off from the nodes that can train together.
    WithoutMaster(NodeName),
}

impl JobFailure {
    /// Whether a signal to one launcher, or to the job master, ended the job on all nodes.
    #[must_use]
    pub const fn is_by_signal(&self) -> bool {
        matches!(self, Self::MasterLeft { .. } | Self::Stopped { .. })
    }
}

impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { node, reason } => write!(f, "{node} failed: {reason}"),
            Self::TimedOut { joined, needed, waited, missing, losses, refused } => {
                write!(
                    f,
                    "{joined} of {} joined within {} s",
                    counted(*needed, "node"),
                    waited.as_secs_f64()
                )?;
                if let Some(missing) = missing.as_ref().filter(|missing| !missing.is_empty()) {
                    write!(f, "; missing: {missing}")?;
                }
                for loss in losses {
                    write!(f, "; {loss}")?;
                }
                refused.as_ref().map_or(Ok(()), |refused| write!(f, "; {refused}"))
            }
            Self::Exhausted { node, limit, reason, .. } => {
                write!(
                    f,
                    "{node} {reason}; not replaced ({limit} of {} used)",
                    counted(*limit, "replacement")
                )
            }
            Self::MasterLeft { node, reason } => {
                write!(f, "{node}, whose launcher served the job master, left: {reason}")
            }
            Self::Stopped { signal } => write!(f, "the launcher was stopped by {}", stop_signal(*signal)),
            Self::Inconclusive { named, of, nodes, why } => {
                f.write_str("the network check is inconclusive and cannot tell ")?;
                let names = named_and_more(named, *of as usize);
                match of {
                    1 => write!(f, "whether {names} (1 of {} checked) is at fault", counted(*nodes, "node"))?,
                    _ => write!(f, "which of these {of} nodes (of {nodes} checked) is at fault: {names}")?,
                }
                if !why.is_empty() {
                    write!(f, "; {} {why}", if *of == 1 { "it" } else { "the first of them" })?;
                }
                f.write_str("; no node is tainted. ")?;
                // The command may fail for reasons of its own, and on every node.
                f.write_str(match (why.contains(CHECK_COMMAND), of) {
                    (true, 1) => {
                        "Run the check command by hand on that node first, then check the network between it \
                         and the others"
                    }
                    (true, _) => {
                        "Run the check command by hand on each of these nodes first, then check the network \
                         between them"
                    }
                    (false, 1) => "Check that node first, then the network between it and the others",
                    (false, _) => "Check these nodes first, then the network between them",
                })?;
                if why.contains(CHECK_COMMAND) {
                    return Ok(());
                }
                f.write_str(". With one more healthy node, or with more check rounds if all of them were used, the check could decide")
            }
            Self::Cut { message, fit, nodes, needed, why } => {
                let able = format!("{fit} of {} can train together", counted(*nodes as usize, "node"));
                write!(f, "the network check found paths that are down: {message}. {able}")?;
                match why {
                    CutEnd::TooFew => write!(f, "; the job needs {needed}")?,
                    CutEnd::Policy => write!(f, ", but the job fails (on-bad-path=fail)")?,
                    CutEnd::WithoutMaster(node) => {
                        write!(f, ", without {node}, whose launcher serves the job master")?;
                    }
                }
                f.write_str(
                    "; no node is tainted. Check first the switches and cables on the paths that are down",
                )
            }
            Self::MassFailure { faults, limit, nodes } => write!(
                f,
                "the network check found {faults} of {nodes} nodes at fault (limit: {limit}), so no node is \
                 tainted: check first what they share, such as a switch, a driver, the image or the \
                 configuration"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    #[test]
    fn a_timeout_names_missing_ranks() {
        let failure = JobFailure::TimedOut {
            joined: 2,
            needed: 4,
            waited: Duration::from_secs(600),
            missing: Some([NodeRank(2), NodeRank(3)].into_iter().collect()),
            losses: Vec::new(),
            refused: None,
        };
        assert_eq!(failure.to_string(), "2 of 4 nodes joined within 600 s; missing: node ranks 2-3");
    }

    /// The first `named` of `of` nodes in doubt have names.
    fn inconclusive(named: u32, of: u32) -> String {
        let name = |rank| NodeName {
            rank: Some(NodeRank(rank)),
            host: format!("host-{rank}"),
            address: String::new(),
            node_id: NodeId(format!("id-{rank}")),
        };
        let named = (0..named).map(name).collect();
        JobFailure::Inconclusive { named, of, nodes: 64, why: String::new() }.to_string()
    }

    #[test]
    fn nodes_in_doubt_without_a_name_are_counted() {
        let two = "is at fault: node rank 0 (host-0), node rank 1 (host-1)";
        let some = inconclusive(2, 5);
        let text = format!("which of these 5 nodes (of 64 checked) {two} and 3 more; no node is tainted");
        assert!(some.contains(&text), "{some}");
        let all = inconclusive(2, 2);
        let end = "; no node is tainted. Check these nodes first, then the network between them";
        let text = format!("which of these 2 nodes (of 64 checked) {two}{end}");
        assert!(all.contains(&text), "{all}");
    }

    #[test]
    fn one_node_in_doubt_is_not_the_node_that_says_so() {
        let one = inconclusive(1, 1);
        let start = "whether node rank 0 (host-0) (1 of 64 nodes checked) is at fault; no node is tainted. Check \
                     that node first, then the network between it and the others";
        assert!(one.contains(start), "{one}");
    }
}
