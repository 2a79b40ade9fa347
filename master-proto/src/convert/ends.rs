//! How a job ended.

use std::time::Duration;

use rules::{
    NodeId, NodeRank,
    missing::Missing,
    node::NodeName,
    verdict::{CutEnd, JobFailure, JobVerdict, RefusedNodes},
};

use super::{ConvertError, cut, millis};
use crate::pb::{self, cut::Reason, job_end::Verdict};

impl From<NodeName> for pb::NodeName {
    fn from(NodeName { rank, host, address, node_id }: NodeName) -> Self {
        Self { rank: rank.map(|rank| rank.0), host, address, node_id: node_id.0 }
    }
}

impl From<pb::NodeName> for NodeName {
    fn from(pb::NodeName { rank, host, address, node_id }: pb::NodeName) -> Self {
        Self { rank: rank.map(NodeRank), host, address, node_id: NodeId(node_id) }
    }
}

impl From<Missing> for pb::Missing {
    fn from(Missing { runs, more }: Missing) -> Self {
        let run = |(first, last): (NodeRank, NodeRank)| pb::Run { first: first.0, last: last.0 };
        Self { runs: runs.into_iter().map(run).collect(), more }
    }
}

impl From<pb::Missing> for Missing {
    fn from(pb::Missing { runs, more }: pb::Missing) -> Self {
        let run = |pb::Run { first, last }| (NodeRank(first), NodeRank(last));
        Self { runs: runs.into_iter().map(run).collect(), more }
    }
}

impl From<JobVerdict> for pb::JobEnd {
    fn from(verdict: JobVerdict) -> Self {
        let gave_up = |node: NodeName, reason| pb::GaveUp { node: Some(node.into()), reason: cut(reason) };
        let verdict = match verdict {
            JobVerdict::Succeeded => Verdict::Succeeded(pb::JobSucceeded {}),
            JobVerdict::Failed(JobFailure::Node { node, reason }) => Verdict::GaveUp(gave_up(node, reason)),
            JobVerdict::Failed(JobFailure::MasterLeft { node, reason }) => {
                Verdict::MasterLeft(gave_up(node, reason))
            }
            JobVerdict::Failed(JobFailure::TimedOut { joined, needed, waited, missing, losses, refused }) => {
                let (waited_millis, missing) = (millis(waited), missing.map(pb::Missing::from));
                let refused = refused.map(|refused| {
                    let RefusedNodes { nodes, last, reason } = *refused;
                    pb::RefusedNodes { nodes, last: Some(last.into()), reason: cut(reason) }
                });
                Verdict::TimedOut(pb::TimedOut { joined, needed, waited_millis, missing, losses, refused })
            }
            JobVerdict::Failed(JobFailure::Exhausted { rank, node, limit, reason }) => {
                let (node, reason) = (Some(node.into()), cut(reason));
                Verdict::Exhausted(pb::Exhausted { rank: rank.0, node, limit, reason })
            }
            JobVerdict::Failed(JobFailure::Stopped { signal }) => Verdict::Stopped(pb::Stopped { signal }),
            JobVerdict::Failed(JobFailure::Inconclusive { named, of, nodes, why }) => {
                let named = named.into_iter().map(pb::NodeName::from).collect();
                Verdict::Inconclusive(pb::Inconclusive { named, of, nodes, reason: cut(why) })
            }
            JobVerdict::Failed(JobFailure::Cut { message, fit, nodes, needed, why }) => {
                let reason = Some(match why {
                    CutEnd::TooFew => Reason::TooFew(pb::CutTooFew {}),
                    CutEnd::Policy => Reason::ByPolicy(pb::CutByPolicy {}),
                    CutEnd::WithoutMaster(node) => Reason::WithoutMaster(node.into()),
                });
                Verdict::Cut(pb::Cut { description: cut(message), fit, nodes, needed, reason })
            }
            JobVerdict::Failed(JobFailure::MassFailure { faults, limit, nodes }) => {
                Verdict::MassFailure(pb::MassFailure { faults, limit, nodes })
            }
        };
        Self { verdict: Some(verdict) }
    }
}

impl TryFrom<pb::JobEnd> for JobVerdict {
    type Error = ConvertError;

    fn try_from(end: pb::JobEnd) -> Result<Self, ConvertError> {
        let node = |node: Option<pb::NodeName>| {
            node.map(NodeName::from).ok_or(ConvertError::Missing { field: "job_end.node" })
        };
        let failure = match end.verdict.ok_or(ConvertError::Missing { field: "job_end.verdict" })? {
            Verdict::Succeeded(pb::JobSucceeded {}) => return Ok(Self::Succeeded),
            Verdict::GaveUp(wire) => JobFailure::Node { node: node(wire.node)?, reason: wire.reason },
            Verdict::MasterLeft(wire) => {
                JobFailure::MasterLeft { node: node(wire.node)?, reason: wire.reason }
            }
            Verdict::TimedOut(wire) => JobFailure::TimedOut {
                joined: wire.joined,
                needed: wire.needed,
                waited: Duration::from_millis(wire.waited_millis),
                missing: wire.missing.map(Missing::from),
                losses: wire.losses,
                refused: wire
                    .refused
                    .map(|pb::RefusedNodes { nodes, last, reason }| {
                        Ok(Box::new(RefusedNodes { nodes, last: node(last)?, reason }))
                    })
                    .transpose()?,
            },
            Verdict::Exhausted(wire) => JobFailure::Exhausted {
                rank: NodeRank(wire.rank),
                node: node(wire.node)?,
                limit: wire.limit,
                reason: wire.reason,
            },
            Verdict::Stopped(pb::Stopped { signal }) => JobFailure::Stopped { signal },
            Verdict::Inconclusive(pb::Inconclusive { named, of, nodes, reason }) => {
                let named = named.into_iter().map(NodeName::from).collect();
                JobFailure::Inconclusive { named, of, nodes, why: reason }
            }
            Verdict::Cut(pb::Cut { description, fit, nodes, needed, reason }) => {
                let why = match reason.ok_or(ConvertError::Missing { field: "job_end.cut.reason" })? {
                    Reason::TooFew(pb::CutTooFew {}) => CutEnd::TooFew,
                    Reason::ByPolicy(pb::CutByPolicy {}) => CutEnd::Policy,
                    Reason::WithoutMaster(node) => CutEnd::WithoutMaster(node.into()),
                };
                JobFailure::Cut { message: description, fit, nodes, needed, why }
            }
            Verdict::MassFailure(pb::MassFailure { faults, limit, nodes }) => {
                JobFailure::MassFailure { faults, limit, nodes }
            }
        };
        Ok(Self::Failed(failure))
    }
}
