//! What the master says.

use std::time::Duration;

use diagnosis::exclusion::Exclusion;
use rules::{
    NodeRank, Round,
    check_order::{CheckOrder, CheckRound},
    missing::Missing,
    pending::Pending,
    verdict::JobVerdict,
    world::{Assignment, Member, World},
};

use super::{ConvertError, cut, millis, port, workers};
use crate::pb::{self, push::Push as Wire};

/// What the master may say to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    /// The stream is open. `None`: no beats are wanted.
    Welcome { beat: Option<Duration>, session: u64, timeout: Option<Duration> },
    /// Serve the store of this round.
    Host { round: Round, fresh_port: bool },
    /// Take your seat.
    Seat(Assignment),
    /// Stop and join again. `excuses`: a failure of this node's own workers came after, and is not counted.
    Regroup { round: Round, why: String, is_secondary: bool },
    /// You cannot take part.
    Refused { reason: String },
    /// The job is over.
    JobEnd(JobVerdict),
    /// There is no seat yet.
    Pending(Pending),
    /// Take part in a test.
    Check(CheckOrder),
    /// End the test of this round now.
    CancelCheck(CheckRound),
    /// The check is over and this node passed.
    CheckOver { words: String },
    /// A check keeps this node out of the job.
    Excluded(Exclusion),
}

/// A push as it came, with its place among all that this life of the master has said to this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Which life of the master.
    pub epoch: u64,
    /// Which of its words to this node.
    pub seq: u64,
    /// What it says; `None` when this agent is too old to know.
    pub push: Option<Push>,
}

impl From<Pushed> for pb::Push {
    fn from(Pushed { epoch, seq, push }: Pushed) -> Self {
        let push = push.map(|push| match push {
            Push::Welcome { beat, session, timeout } => Wire::Welcome(pb::Welcome {
                beat_millis: beat.map_or(0, millis),
                session,
                timeout_millis: timeout.map_or(0, millis),
            }),
            Push::Host { round, fresh_port } => Wire::Host(pb::Host { round: round.0, fresh_port }),
            Push::Seat(assignment) => Wire::Seat(assignment.into()),
            Push::Regroup { round, why, is_secondary } => {
                Wire::Regroup(pb::Regroup { round: round.0, why: cut(why), is_secondary })
            }
            Push::Refused { reason } => Wire::Refused(pb::Refused { reason: cut(reason) }),
            Push::JobEnd(verdict) => Wire::JobEnd(verdict.into()),
            Push::Pending(pending) => Wire::Pending(pending.into()),
            Push::Check(order) => Wire::Check(order.into()),
            Push::CancelCheck(at) => Wire::CancelCheck(at.into()),
            Push::CheckOver { words } => Wire::CheckOver(pb::CheckOver { words: cut(words) }),
            Push::Excluded(exclusion) => Wire::Excluded(exclusion.into()),
        });
        Self { epoch, seq, push }
    }
}

impl TryFrom<pb::Push> for Pushed {
    type Error = ConvertError;

    fn try_from(pb::Push { epoch, seq, push }: pb::Push) -> Result<Self, ConvertError> {
        let push = push.map(|push| {
            Ok(match push {
                Wire::Welcome(pb::Welcome { beat_millis, session, timeout_millis }) => {
                    let some = |millis| Some(Duration::from_millis(millis)).filter(|it| !it.is_zero());
                    Push::Welcome { beat: some(beat_millis), session, timeout: some(timeout_millis) }
                }
                Wire::Host(pb::Host { round, fresh_port }) => Push::Host { round: Round(round), fresh_port },
                Wire::Seat(assignment) => Push::Seat(assignment.try_into()?),
                Wire::Regroup(pb::Regroup { round, why, is_secondary }) => {
                    Push::Regroup { round: Round(round), why, is_secondary }
                }
                Wire::Refused(pb::Refused { reason }) => Push::Refused { reason },
                Wire::JobEnd(end) => Push::JobEnd(end.try_into()?),
                Wire::Pending(pending) => Push::Pending(pending.try_into()?),
                Wire::Check(order) => Push::Check(order.try_into()?),
                Wire::CancelCheck(at) => Push::CancelCheck(at.into()),
                Wire::CheckOver(pb::CheckOver { words }) => Push::CheckOver { words },
                Wire::Excluded(excluded) => Push::Excluded(excluded.into()),
            })
        });
        Ok(Self { epoch, seq, push: push.transpose()? })
    }
}

impl From<Assignment> for pb::Assignment {
    fn from(assignment: Assignment) -> Self {
        Self {
            round: assignment.round.0,
            seat: assignment.seat.0,
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
        }
    }
}

impl TryFrom<pb::Assignment> for Assignment {
    type Error = ConvertError;

    fn try_from(wire: pb::Assignment) -> Result<Self, ConvertError> {
        if wire.seat >= wire.nodes {
            let (value, expected) = (u64::from(wire.seat), "a seat below nodes");
            return Err(ConvertError::Range { field: "seat.seat", value, expected });
        }
        Ok(Self {
            round: Round(wire.round),
            seat: NodeRank(wire.seat),
            nodes: wire.nodes,
            local_world_size: workers(wire.local_world_size, "seat.local_world_size")?,
            role: wire.role,
            first_rank: wire.first_rank,
            world_size: wire.world_size,
            first_role_rank: wire.first_role_rank,
            role_world_size: wire.role_world_size,
            master_addr: wire.master_addr,
            master_port: port(wire.master_port, "seat.master_port")?,
            restore_from_disk: wire.restore_from_disk,
            fence: wire.fence.map(TryInto::try_into).transpose()?,
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
            Pending::Spare { nodes } => Wire::Spare(pb::Spare { nodes }),
            Pending::Fenced { nodes, more, lease, waited, limit } => Wire::Fenced(pb::Fenced {
                nodes: nodes.into_iter().map(pb::NodeName::from).collect(),
                more,
                lease_millis: millis(lease),
                waited_millis: millis(waited),
                limit_millis: millis(limit),
            }),
            Pending::Aside { point } => Wire::Aside(pb::WaitingAside { point: cut(point) }),
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
            Wire::Spare(pb::Spare { nodes }) => Self::Spare { nodes },
            Wire::Fenced(wire) => Self::Fenced {
                nodes: wire.nodes.into_iter().map(Into::into).collect(),
                more: wire.more,
                lease: Duration::from_millis(wire.lease_millis),
                waited: Duration::from_millis(wire.waited_millis),
                limit: Duration::from_millis(wire.limit_millis),
            },
            Wire::Aside(pb::WaitingAside { point }) => Self::Aside { point },
        })
    }
}

/// The whole table, for whoever asks; an empty one between rounds.
impl From<Option<&World>> for pb::WorldTable {
    fn from(world: Option<&World>) -> Self {
        let Some(World { round, members, master_addr, master_port, fence: _ }) = world else {
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
