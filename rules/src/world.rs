//! The members of one round by node rank, and every rank that follows from it.

use std::{collections::BTreeMap, ops::Range};

use checkpoint::message::RestorePoint;
use serde::{Deserialize, Serialize};

use crate::{
    fence::FenceTerms,
    ids::{LocalRank, NodeId, NodeRank, Rank, Round},
    node::is_loopback,
};

/// A node in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node_id: NodeId,
    /// Workers on this node, at least 1. May differ from node to node.
    pub local_world_size: u32,
    /// `ROLE_NAME` of its workers.
    pub role: String,
    /// The address that workers of other nodes use.
    pub address: String,
    /// Addresses of its interfaces that are not loopback.
    pub addresses: Vec<String>,
    pub host_name: String,
    /// The port at which its launcher answers other launchers; 0: none.
    pub question_port: u16,
    /// Its ranks differ from those that its state in memory belongs to.
    pub restore_from_disk: bool,
}

/// A completed round: its members, their ranks, and where the workers meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct World {
    pub round: Round,
    /// The nodes by [`NodeRank`]; never empty.
    pub members: Vec<Member>,
    /// `MASTER_ADDR`.
    pub master_addr: String,
    /// `MASTER_PORT`.
    pub master_port: u16,
    /// When its workers may run without the master; `None`: always.
    pub fence: Option<FenceTerms>,
    /// What its workers restore of checkpoints that nodes have in memory.
    pub restore: Vec<RestorePoint>,
}

/// What one node needs to know of a round. At most some 3 KiB on the wire, however large the world is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Which round.
    pub round: Round,
    /// This node's rank, `GROUP_RANK`.
    pub node_rank: NodeRank,
    /// Nodes in the round, `GROUP_WORLD_SIZE`.
    pub nodes: u32,
    /// Workers on this node.
    pub local_world_size: u32,
    /// `ROLE_NAME` of its workers.
    pub role: String,
    /// `RANK` of its local rank 0.
    pub first_rank: u32,
    /// `WORLD_SIZE`.
    pub world_size: u32,
    /// `ROLE_RANK` of its local rank 0.
    pub first_role_rank: u32,
    /// `ROLE_WORLD_SIZE`.
    pub role_world_size: u32,
    /// `MASTER_ADDR`.
    pub master_addr: String,
    /// `MASTER_PORT`.
    pub master_port: u16,
    /// The state that this node keeps in memory belongs to other ranks than those of this round.
    pub restore_from_disk: bool,
    /// When its workers may run without the master; `None`: always.
    pub fence: Option<FenceTerms>,
    /// What all workers of the round restore of checkpoints that nodes have in memory; of any other directory, what is
    /// on disk.
    pub restore: Vec<RestorePoint>,
}

/// The ranks and sizes that torchrun gives a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// `RANK`: local world sizes of all lower node ranks, plus the local rank.
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

impl Assignment {
    /// Whether this node fetches something of what is restored from the memory of other nodes.
    #[must_use]
    pub fn fetches(&self) -> bool {
        self.restore.iter().any(|point| point.fetched.as_ref().is_some_and(|it| !it.fetches.is_empty()))
    }

    /// The ranks of a worker; `None` when there is no such local rank.
    #[must_use]
    pub fn place(&self, local_rank: LocalRank) -> Option<Place> {
        (local_rank.0 < self.local_world_size).then_some(Place {
            rank: Rank(self.first_rank.saturating_add(local_rank.0)),
            world_size: self.world_size,
            local_world_size: self.local_world_size,
            role_rank: self.first_role_rank.saturating_add(local_rank.0),
            role_world_size: self.role_world_size,
            nodes: self.nodes,
        })
    }
}

impl World {
    /// The ranks of a member; none of another node.
    #[must_use]
    pub fn ranks_of(&self, node: &NodeId) -> Range<u32> {
        let mut first = 0_u32;
        for member in &self.members {
            let next = first.saturating_add(member.local_world_size);
            if member.node_id == *node {
                return first..next;
            }
            first = next;
        }
        0..0
    }

    /// The rank of `node` in this round.
    #[must_use]
    pub fn node_rank_of(&self, node: &NodeId) -> Option<NodeRank> {
        let index = self.members.iter().position(|member| member.node_id == *node)?;
        u32::try_from(index).ok().map(NodeRank)
    }

    /// The assignments of all members, by node rank. One pass, whatever the number of nodes.
    pub fn assignments(&self) -> impl Iterator<Item = (&Member, Assignment)> {
        let mut role_sizes: BTreeMap<&str, u32> = BTreeMap::new();
        let mut world_size = 0_u32;
        for member in &self.members {
            world_size = world_size.saturating_add(member.local_world_size);
            let size = role_sizes.entry(&member.role).or_default();
            *size = size.saturating_add(member.local_world_size);
        }
        let nodes = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let mut first_rank = 0_u32;
        let mut first_role_ranks: BTreeMap<&str, u32> = BTreeMap::new();
        (0..).map(NodeRank).zip(&self.members).map(move |(node_rank, member)| {
            let first_role_rank = first_role_ranks.entry(&member.role).or_default();
            let assignment = Assignment {
                round: self.round,
                node_rank,
                nodes,
                local_world_size: member.local_world_size,
                role: member.role.clone(),
                first_rank,
                world_size,
                first_role_rank: *first_role_rank,
                role_world_size: role_sizes.get(&*member.role).copied().unwrap_or_default(),
                master_addr: self.master_addr.clone(),
                master_port: self.master_port,
                restore_from_disk: member.restore_from_disk,
                fence: self.fence.clone(),
                restore: own(&self.restore, first_rank),
            };
            first_rank = first_rank.saturating_add(member.local_world_size);
            *first_role_rank = first_role_rank.saturating_add(member.local_world_size);
            (member, assignment)
        })
    }

    /// The assignment of one member.
    #[must_use]
    pub fn assignment(&self, node: &NodeId) -> Option<Assignment> {
        self.assignments().find(|(member, _)| member.node_id == *node).map(|(_, assignment)| assignment)
    }
}

/// What all nodes restore, with what the node of this first rank fetches for it: a world of thousands of nodes has
/// thousands of fetches, and a node needs no ticket of others.
fn own(points: &[RestorePoint], first_rank: u32) -> Vec<RestorePoint> {
    let mut points = points.to_vec();
    for fetched in points.iter_mut().filter_map(|point| point.fetched.as_mut()) {
        fetched.fetches.retain(|(rank, _)| *rank == first_rank);
        fetched.void.retain(|rank| *rank == first_rank);
    }
    points
}

/// The address at which all members reach the node of rank 0: its own, unless that is a loopback address and some
/// member is on another host; then the first of its interfaces that is not.
#[must_use]
pub fn master_addr(members: &[Member]) -> Option<String> {
    let host = members.first()?;
    let is_local_job = members.iter().all(|member| is_loopback(&member.address));
    Some(reachable_address(&host.address, &host.addresses, is_local_job))
}

/// The address at which members of other hosts reach a node: its own, unless that is a loopback address and there are
/// other hosts; then the first of its interfaces that is not.
#[must_use]
pub fn reachable_address(own: &str, others: &[String], is_local_job: bool) -> String {
    if is_loopback(own) && !is_local_job {
        let other = others.iter().find(|address| !is_loopback(address));
        return other.map_or(own, String::as_str).to_owned();
    }
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, local_world_size: u32, role: &str) -> Member {
        Member {
            node_id: NodeId(id.into()),
            local_world_size,
            role: role.into(),
            address: "127.0.0.1".into(),
            addresses: vec!["10.0.0.1".into()],
            host_name: id.into(),
            question_port: 0,
            restore_from_disk: false,
        }
    }

    fn world(members: &[(&str, u32, &str)]) -> World {
        let members = members.iter().map(|(id, size, role)| member(id, *size, role)).collect();
        World {
            round: Round(0),
            members,
            master_addr: "localhost".into(),
            master_port: 1,
            fence: None,
            restore: Vec::new(),
        }
    }

    #[test]
    fn ranks_are_summed_over_unequal_nodes_and_roles() {
        let world = world(&[("a", 2, "x"), ("b", 3, "y"), ("c", 1, "x")]);
        let assignment = world.assignment(&NodeId("c".into())).unwrap();
        assert_eq!(assignment.node_rank, NodeRank(2));
        assert_eq!(
            assignment.place(LocalRank(0)).unwrap(),
            Place {
                rank: Rank(5),
                world_size: 6,
                local_world_size: 1,
                role_rank: 2,
                role_world_size: 3,
                nodes: 3
            }
        );
        let assignment = world.assignment(&NodeId("b".into())).unwrap();
        assert_eq!(assignment.place(LocalRank(2)).unwrap().rank, Rank(4));
        assert_eq!(world.node_rank_of(&NodeId("b".into())), Some(NodeRank(1)));
    }

    #[test]
    fn a_place_that_does_not_exist_is_none() {
        let world = world(&[("a", 2, "x")]);
        let assignment = world.assignment(&NodeId("a".into())).unwrap();
        assert_eq!(assignment.place(LocalRank(2)), None);
        assert_eq!(world.assignment(&NodeId("z".into())), None);
        assert_eq!(world.node_rank_of(&NodeId("z".into())), None);
    }

    #[test]
    fn master_addr_is_loopback_only_when_all_members_are() {
        let mut members = vec![member("a", 1, "x"), member("b", 1, "x")];
        assert_eq!(master_addr(&members).unwrap(), "127.0.0.1");
        members[1].address = "10.0.0.2".into();
        assert_eq!(master_addr(&members).unwrap(), "10.0.0.1");
    }
}
