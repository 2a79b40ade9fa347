//! The members of one round, in the order of their seats, and every rank that follows from it.

use serde::{Deserialize, Serialize};

use crate::ids::{LocalRank, NodeId, NodeRank, Rank, Round};

/// One node's place in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The machine's launcher.
    pub node_id: NodeId,
    /// Workers on this node, at least 1. May differ from node to node.
    pub local_world_size: u32,
    /// `ROLE_NAME` of its workers.
    pub role: String,
}

/// A completed round: who takes part, in which seat, and where the workers meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct World {
    /// Which round this is.
    pub round: Round,
    /// The nodes by [`NodeRank`]; never empty.
    pub members: Vec<Member>,
    /// `MASTER_ADDR`.
    pub master_addr: String,
    /// `MASTER_PORT`.
    pub master_port: u16,
}

/// Every number torchrun tells a worker about its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// `RANK`: local world sizes of all lower seats, plus the local rank.
    pub rank: Rank,
    /// `WORLD_SIZE`.
    pub world_size: u32,
    /// `LOCAL_WORLD_SIZE`.
    pub local_world_size: u32,
    /// `ROLE_RANK`: the same sum over nodes of the same role.
    pub role_rank: u32,
    /// `ROLE_WORLD_SIZE`: all workers of that role.
    pub role_world_size: u32,
    /// `GROUP_WORLD_SIZE`: nodes in the round.
    pub nodes: u32,
}

impl World {
    /// The seat that `node` holds in this round.
    #[must_use]
    pub fn seat_of(&self, node: &NodeId) -> Option<NodeRank> {
        let index = self.members.iter().position(|member| member.node_id == *node)?;
        u32::try_from(index).ok().map(NodeRank)
    }

    /// The member in a seat.
    #[must_use]
    pub fn member(&self, seat: NodeRank) -> Option<&Member> {
        self.members.get(seat.0 as usize)
    }

    /// Where a worker stands; `None` when the seat or the local rank does not exist.
    #[must_use]
    pub fn place(&self, seat: NodeRank, local_rank: LocalRank) -> Option<Place> {
        let me = self.member(seat).filter(|me| local_rank.0 < me.local_world_size)?;
        let workers = |members: &mut dyn Iterator<Item = &Member>| -> u32 {
            members.map(|member| member.local_world_size).sum()
        };
        let of_my_role = |member: &&Member| member.role == me.role;
        let lower = &self.members[..seat.0 as usize];
        Some(Place {
            rank: Rank(workers(&mut lower.iter()) + local_rank.0),
            world_size: workers(&mut self.members.iter()),
            local_world_size: me.local_world_size,
            role_rank: workers(&mut lower.iter().filter(of_my_role)) + local_rank.0,
            role_world_size: workers(&mut self.members.iter().filter(of_my_role)),
            nodes: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(members: &[(&str, u32, &str)]) -> World {
        let members = members
            .iter()
            .map(|(id, size, role)| Member {
                node_id: NodeId((*id).into()),
                local_world_size: *size,
                role: (*role).into(),
            })
            .collect();
        World { round: Round(0), members, master_addr: "localhost".into(), master_port: 1 }
    }

    #[test]
    fn ranks_are_summed_over_unequal_nodes_and_roles() {
        let world = world(&[("a", 2, "x"), ("b", 3, "y"), ("c", 1, "x")]);
        let place = world.place(NodeRank(2), LocalRank(0)).unwrap();
        assert_eq!(
            place,
            Place {
                rank: Rank(5),
                world_size: 6,
                local_world_size: 1,
                role_rank: 2,
                role_world_size: 3,
                nodes: 3
            }
        );
        assert_eq!(world.place(NodeRank(1), LocalRank(2)).unwrap().rank, Rank(4));
        assert_eq!(world.seat_of(&NodeId("b".into())), Some(NodeRank(1)));
    }

    #[test]
    fn a_place_that_does_not_exist_is_none() {
        let world = world(&[("a", 2, "x")]);
        assert_eq!(world.place(NodeRank(0), LocalRank(2)), None);
        assert_eq!(world.place(NodeRank(1), LocalRank(0)), None);
        assert_eq!(world.seat_of(&NodeId("z".into())), None);
    }
}
