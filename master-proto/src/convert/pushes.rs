//! Messages from the master.

use std::time::Duration;

use rules::{
    NodeRank, Round,
    missing::Missing,
    pending::Pending,
    push::Push,
    world::{Assignment, Member, World},
};

use super::{ConvertError, checkpoints, cut, millis, port, workers};
use crate::pb::{self, stream_message::Payload as Wire};

/// A message on the stream from the master to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMessage {
    /// The life of the master that sends it.
    pub epoch: u64,
    /// Grows with every message to this node in that life.
    pub seq: u64,
    /// `None`: a message that this agent is too old to know.
    pub payload: Option<Payload>,
}

/// What a [`StreamMessage`] carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The stream is open. Without `beat`, no heartbeats are wanted.
    Welcome { beat: Option<Duration>, session: u64, timeout: Option<Duration> },
    /// What the job decided.
    Push(Push),
}

impl From<StreamMessage> for pb::StreamMessage {
    fn from(StreamMessage { epoch, seq, payload }: StreamMessage) -> Self {
        let payload = payload.map(|payload| match payload {
            Payload::Welcome { beat, session, timeout } => Wire::Welcome(pb::Welcome {
                beat_millis: beat.map_or(0, millis),
                session,
                timeout_millis: timeout.map_or(0, millis),
            }),
            Payload::Push(push) => push.into(),
        });
        Self { epoch, seq, payload }
    }
}

impl From<Push> for Wire {
    fn from(push: Push) -> Self {
        match push {
            Push::Host { round, fresh_port } => Self::Host(pb::Host { round: round.0, fresh_port }),
            Push::Assigned(assignment) => Self::Assigned(assignment.into()),
            Push::Regroup { round, why, is_secondary } => {
                Self::Regroup(pb::Regroup { round: round.0, reason: cut(why), is_secondary })
            }
            Push::Refused { reason } => Self::Refused(pb::Refused { reason: cut(reason) }),
            Push::RootCause(root_cause) => Self::RootCause((*root_cause).into()),
            Push::JobEnd(verdict) => Self::JobEnd(verdict.into()),
            Push::Pending(pending) => Self::Pending(pending.into()),
            Push::Check(order) => Self::Check(order.into()),
            Push::CancelCheck(at) => Self::CancelCheck(at.into()),
            Push::CheckOver { message } => Self::CheckOver(pb::CheckOver { summary: cut(message) }),
            Push::Excluded(exclusion) => Self::Excluded(exclusion.into()),
            Push::DumpStacks { round, episode } => {
                Self::DumpStacks(pb::DumpStacks { round: round.0, episode })
            }
            Push::Hang(notice) => Self::Hang(notice.into()),
            Push::Checkpoint(order) => Self::Checkpoint(order.into()),
        }
    }
}

impl TryFrom<pb::StreamMessage> for StreamMessage {
    type Error = ConvertError;

    fn try_from(wire: pb::StreamMessage) -> Result<Self, ConvertError> {
        let payload = wire.payload.map(Payload::try_from).transpose()?;
        Ok(Self { epoch: wire.epoch, seq: wire.seq, payload })
    }
}

impl TryFrom<Wire> for Payload {
    type Error = ConvertError;

    fn try_from(wire: Wire) -> Result<Self, ConvertError> {
        Ok(Self::Push(match wire {
            Wire::Welcome(pb::Welcome { beat_millis, session, timeout_millis }) => {
                let some = |millis| Some(Duration::from_millis(millis)).filter(|it| !it.is_zero());
                return Ok(Self::Welcome { beat: some(beat_millis), session, timeout: some(timeout_millis) });
            }
            Wire::Host(pb::Host { round, fresh_port }) => Push::Host { round: Round(round), fresh_port },
            Wire::Assigned(assignment) => Push::Assigned(assignment.try_into()?),
            Wire::Regroup(pb::Regroup { round, reason, is_secondary }) => {
                Push::Regroup { round: Round(round), why: reason, is_secondary }
            }
            Wire::Refused(pb::Refused { reason }) => Push::Refused { reason },
            Wire::RootCause(root_cause) => Push::RootCause(Box::new(root_cause.try_into()?)),
            Wire::JobEnd(end) => Push::JobEnd(end.try_into()?),
            Wire::Pending(pending) => Push::Pending(pending.try_into()?),
            Wire::Check(order) => Push::Check(order.try_into()?),
            Wire::CancelCheck(at) => Push::CancelCheck(at.into()),
            Wire::CheckOver(pb::CheckOver { summary }) => Push::CheckOver { message: summary },
            Wire::Excluded(excluded) => Push::Excluded(excluded.into()),
            Wire::DumpStacks(pb::DumpStacks { round, episode }) => {
                Push::DumpStacks { round: Round(round), episode }
            }
            Wire::Hang(hang) => Push::Hang(hang.into()),
            Wire::Checkpoint(order) => Push::Checkpoint(order.try_into()?),
        }))
    }
}

impl From<Assignment> for pb::Assignment {
    fn from(assignment: Assignment) -> Self {
        Self {
            round: assignment.round.0,
            node_rank: assignment.node_rank.0,
            nodes: assignment.nodes,
            local_world_size: assignment.local_world_size,
            role: assignment.role,
            first_rank: assignment.first_rank,
            world_size: assignment.world_size,
            first_role_rank: assignment.first_role_rank,
            role_world_size: assignment.role_world_size,
            master_addr: assignment.master_addr,
            master_port: u32::from(assignment.master_port),
            restore_from_disk: assignment.restore_from_disk,
            fence: assignment.fence.map(pb::Fence::from),
            restore: checkpoints::restored(assignment.restore),
        }
    }
}

impl TryFrom<pb::Assignment> for Assignment {
    type Error = ConvertError;

    fn try_from(wire: pb::Assignment) -> Result<Self, ConvertError> {
        if wire.node_rank >= wire.nodes {
            let (value, expected) = (u64::from(wire.node_rank), "less than assigned.nodes");
            return Err(ConvertError::Range { field: "assigned.node_rank", value, expected });
        }
        Ok(Self {
            round: Round(wire.round),
            node_rank: NodeRank(wire.node_rank),
            nodes: wire.nodes,
            local_world_size: workers(wire.local_world_size, "assigned.local_world_size")?,
            role: wire.role,
            first_rank: wire.first_rank,
            world_size: wire.world_size,
            first_role_rank: wire.first_role_rank,
            role_world_size: wire.role_world_size,
            master_addr: wire.master_addr,
            master_port: port(wire.master_port, "assigned.master_port")?,
            restore_from_disk: wire.restore_from_disk,
            fence: wire.fence.map(TryInto::try_into).transpose()?,
            restore: checkpoints::restore_points(wire.restore, wire.first_rank)?,
        })
    }
}

impl From<Pending> for pb::Pending {
    fn from(pending: Pending) -> Self {
        use pb::pending::Pending as Wire;
        let pending = match pending {
            Pending::Gathering { joined, needed, most, missing, stopping, starts_in, waited, limit } => {
                Wire::Gathering(pb::Gathering {
                    joined,
                    needed,
                    most,
                    missing: missing.map(pb::Missing::from),
                    stopping,
                    starts_in_millis: starts_in.map(millis),
                    waited_millis: millis(waited),
                    limit_millis: millis(limit),
                })
            }
            Pending::Spare { nodes, lacking } => Wire::Spare(pb::Spare { nodes, lacking }),
            Pending::Fenced { nodes, more, lease, waited, limit } => Wire::Fenced(pb::Fenced {
                nodes: nodes.into_iter().map(pb::NodeName::from).collect(),
                more,
                lease_millis: millis(lease),
                waited_millis: millis(waited),
                limit_millis: millis(limit),
            }),
            Pending::OtherJob { point } => Wire::OtherJob(pb::OtherJob { difference: cut(point) }),
        };
        Self { pending: Some(pending) }
    }
}

impl TryFrom<pb::Pending> for Pending {
    type Error = ConvertError;

    fn try_from(wire: pb::Pending) -> Result<Self, ConvertError> {
        use pb::pending::Pending as Wire;
        Ok(match wire.pending.ok_or(ConvertError::Missing { field: "pending.pending" })? {
            Wire::Gathering(wire) => Self::Gathering {
                joined: wire.joined,
                needed: wire.needed,
                most: wire.most,
                missing: wire.missing.map(Missing::from),
                stopping: wire.stopping,
                starts_in: wire.starts_in_millis.map(Duration::from_millis),
                waited: Duration::from_millis(wire.waited_millis),
                limit: Duration::from_millis(wire.limit_millis),
            },
            Wire::Spare(pb::Spare { nodes, lacking }) => Self::Spare { nodes, lacking },
            Wire::Fenced(wire) => Self::Fenced {
                nodes: wire.nodes.into_iter().map(Into::into).collect(),
                more: wire.more,
                lease: Duration::from_millis(wire.lease_millis),
                waited: Duration::from_millis(wire.waited_millis),
                limit: Duration::from_millis(wire.limit_millis),
            },
            Wire::OtherJob(pb::OtherJob { difference }) => Self::OtherJob { point: difference },
        })
    }
}

/// The whole table; empty between rounds.
impl From<Option<&World>> for pb::WorldTable {
    fn from(world: Option<&World>) -> Self {
        let Some(World { round, members, master_addr, master_port, fence: _, restore: _ }) = world else {
            return Self::default();
        };
        let member = |member: &Member| pb::Member {
            node_id: member.node_id.0.clone(),
            local_world_size: member.local_world_size,
            role: member.role.clone(),
            address: member.address.clone(),
            host_name: member.host_name.clone(),
            addresses: member.addresses.clone(),
        };
        Self {
            round: Some(round.0),
            members: members.iter().map(member).collect(),
            master_addr: master_addr.clone(),
            master_port: u32::from(*master_port),
        }
    }
}
