//! The gate between wire messages and the types of `rules`: the only place that validates what came in.

use rules::{
    NodeId, NodeRank, Round,
    job::{Event, JoinRequest, NodeEnd},
    worker_group::JobVerdict,
    world::{Member, World},
};

use crate::pb;

/// A message that is well-formed protobuf and still makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// Path of the field.
        field: &'static str,
    },
    /// A number outside its range.
    #[error("{field} is {value}, expected {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        expected: &'static str,
    },
}

/// What the master may say to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    /// Serve the store of this round.
    Host { round: Round },
    /// Take your seat.
    World(World),
    /// Stop and join again.
    Regroup { round: Round },
    /// You cannot take part.
    Refused { reason: String },
    /// The job is over.
    JobEnd(JobVerdict),
}

/// Most workers on one node that the wire accepts. Far above any machine; keeps sums of ranks in range.
pub const MOST_WORKERS: u32 = 65_536;

fn node_id(id: String, field: &'static str) -> Result<NodeId, ConvertError> {
    if id.is_empty() { Err(ConvertError::Missing { field }) } else { Ok(NodeId(id)) }
}

fn port(value: u32, field: &'static str) -> Result<u16, ConvertError> {
    u16::try_from(value).ok().filter(|port| *port > 0).ok_or(ConvertError::Range {
        field,
        value: u64::from(value),
        expected: "1 to 65535",
    })
}

fn member(id: String, local_world_size: u32, role: String) -> Result<Member, ConvertError> {
    if !(1..=MOST_WORKERS).contains(&local_world_size) {
        return Err(ConvertError::Range {
            field: "local_world_size",
            value: u64::from(local_world_size),
            expected: "1 to 65536",
        });
    }
    Ok(Member { node_id: node_id(id, "node_id")?, local_world_size, role })
}

impl TryFrom<pb::AttendRequest> for NodeId {
    type Error = ConvertError;

    fn try_from(request: pb::AttendRequest) -> Result<Self, ConvertError> {
        node_id(request.node_id, "node_id")
    }
}

impl TryFrom<pb::JoinRequest> for JoinRequest {
    type Error = ConvertError;

    fn try_from(request: pb::JoinRequest) -> Result<Self, ConvertError> {
        let pb::JoinRequest { node_id, local_world_size, role, node_rank } = request;
        Ok(Self { member: member(node_id, local_world_size, role)?, wish: node_rank.map(NodeRank) })
    }
}

impl From<JoinRequest> for pb::JoinRequest {
    fn from(JoinRequest { member, wish }: JoinRequest) -> Self {
        Self {
            node_id: member.node_id.0,
            local_world_size: member.local_world_size,
            role: member.role,
            node_rank: wish.map(|wish| wish.0),
        }
    }
}

impl TryFrom<pb::HostingReport> for Event {
    type Error = ConvertError;

    fn try_from(report: pb::HostingReport) -> Result<Self, ConvertError> {
        if report.master_addr.is_empty() {
            return Err(ConvertError::Missing { field: "master_addr" });
        }
        Ok(Self::Hosted {
            node: node_id(report.node_id, "node_id")?,
            round: Round(report.round),
            master_addr: report.master_addr,
            master_port: port(report.master_port, "master_port")?,
        })
    }
}

impl TryFrom<pb::EndReport> for Event {
    type Error = ConvertError;

    fn try_from(report: pb::EndReport) -> Result<Self, ConvertError> {
        let end = match report.end.ok_or(ConvertError::Missing { field: "end" })? {
            pb::end_report::End::Succeeded(pb::Succeeded {}) => NodeEnd::Succeeded,
            pb::end_report::End::Failed(pb::NodeFailed { reason }) => NodeEnd::Failed { reason },
        };
        Ok(Self::NodeEnded { node: node_id(report.node_id, "node_id")?, end })
    }
}

/// The report of a node's end.
#[must_use]
pub fn end_report(node: &NodeId, end: NodeEnd) -> pb::EndReport {
    let end = match end {
        NodeEnd::Succeeded => pb::end_report::End::Succeeded(pb::Succeeded {}),
        NodeEnd::Failed { reason } => pb::end_report::End::Failed(pb::NodeFailed { reason }),
    };
    pb::EndReport { node_id: node.0.clone(), end: Some(end) }
}

impl From<Push> for pb::Push {
    fn from(push: Push) -> Self {
        use pb::push::Push as Wire;
        let push = match push {
            Push::Host { round } => Wire::Host(pb::Host { round: round.0 }),
            Push::World(world) => Wire::World(world.into()),
            Push::Regroup { round } => Wire::Regroup(pb::Regroup { round: round.0 }),
            Push::Refused { reason } => Wire::Refused(pb::Refused { reason }),
            Push::JobEnd(verdict) => Wire::JobEnd(verdict.into()),
        };
        Self { push: Some(push) }
    }
}

impl TryFrom<pb::Push> for Push {
    type Error = ConvertError;

    fn try_from(push: pb::Push) -> Result<Self, ConvertError> {
        use pb::push::Push as Wire;
        Ok(match push.push.ok_or(ConvertError::Missing { field: "push" })? {
            Wire::Host(pb::Host { round }) => Self::Host { round: Round(round) },
            Wire::World(world) => Self::World(world.try_into()?),
            Wire::Regroup(pb::Regroup { round }) => Self::Regroup { round: Round(round) },
            Wire::Refused(pb::Refused { reason }) => Self::Refused { reason },
            Wire::JobEnd(end) => Self::JobEnd(end.try_into()?),
        })
    }
}

impl From<World> for pb::World {
    fn from(World { round, members, master_addr, master_port }: World) -> Self {
        let members = members
            .into_iter()
            .map(|Member { node_id, local_world_size, role }| pb::Member {
                node_id: node_id.0,
                local_world_size,
                role,
            })
            .collect();
        Self { round: round.0, members, master_addr, master_port: u32::from(master_port) }
    }
}

impl TryFrom<pb::World> for World {
    type Error = ConvertError;

    fn try_from(world: pb::World) -> Result<Self, ConvertError> {
        if world.members.is_empty() {
            return Err(ConvertError::Missing { field: "world.members" });
        }
        let members = world
            .members
            .into_iter()
            .map(|wire| member(wire.node_id, wire.local_world_size, wire.role))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            round: Round(world.round),
            members,
            master_addr: world.master_addr,
            master_port: port(world.master_port, "world.master_port")?,
        })
    }
}

impl From<JobVerdict> for pb::JobEnd {
    fn from(verdict: JobVerdict) -> Self {
        let verdict = match verdict {
            JobVerdict::Succeeded => pb::job_end::Verdict::Succeeded(pb::Succeeded {}),
            JobVerdict::Failed { node, reason } => {
                pb::job_end::Verdict::Failed(pb::JobFailed { node_id: node.0, reason })
            }
        };
        Self { verdict: Some(verdict) }
    }
}

impl TryFrom<pb::JobEnd> for JobVerdict {
    type Error = ConvertError;

    fn try_from(end: pb::JobEnd) -> Result<Self, ConvertError> {
        Ok(match end.verdict.ok_or(ConvertError::Missing { field: "job_end.verdict" })? {
            pb::job_end::Verdict::Succeeded(pb::Succeeded {}) => Self::Succeeded,
            pb::job_end::Verdict::Failed(pb::JobFailed { node_id, reason }) => {
                Self::Failed { node: NodeId(node_id), reason }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        let member =
            |id: &str| Member { node_id: NodeId(id.into()), local_world_size: 2, role: "default".into() };
        World {
            round: Round(3),
            members: vec![member("a"), member("b")],
            master_addr: "10.0.0.1".into(),
            master_port: 29500,
        }
    }

    #[test]
    fn every_push_survives_the_wire() {
        let failed = JobVerdict::Failed { node: NodeId("a".into()), reason: "r".into() };
        for push in [
            Push::Host { round: Round(1) },
            Push::World(world()),
            Push::Regroup { round: Round(2) },
            Push::Refused { reason: "full".into() },
            Push::JobEnd(JobVerdict::Succeeded),
            Push::JobEnd(failed),
        ] {
            assert_eq!(Push::try_from(pb::Push::from(push.clone())), Ok(push));
        }
    }

    #[test]
    fn a_wish_for_seat_zero_is_not_no_wish() {
        for wish in [None, Some(NodeRank(0))] {
            let request = JoinRequest { member: world().members[0].clone(), wish };
            assert_eq!(JoinRequest::try_from(pb::JoinRequest::from(request.clone())), Ok(request));
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_field_and_the_value() {
        let join = pb::JoinRequest { node_id: "a".into(), ..Default::default() };
        assert_eq!(
            JoinRequest::try_from(join).unwrap_err().to_string(),
            "local_world_size is 0, expected 1 to 65536"
        );
        let hosting = pb::HostingReport {
            node_id: "a".into(),
            master_addr: "x".into(),
            master_port: 70_000,
            ..Default::default()
        };
        assert_eq!(
            Event::try_from(hosting).unwrap_err().to_string(),
            "master_port is 70000, expected 1 to 65535"
        );
        assert_eq!(
            Event::try_from(pb::EndReport { node_id: "a".into(), end: None }).unwrap_err().to_string(),
            "end is missing"
        );
        assert_eq!(Push::try_from(pb::Push { push: None }), Err(ConvertError::Missing { field: "push" }));
    }
}
