//! A node as it joins, and the terms that it expects of the job.

use std::{fmt, net::IpAddr, time::Duration};

use checkpoint::message::ShardState;
use serde::{Deserialize, Serialize};

use crate::{
    check_order::Checked,
    check_terms::CheckTerms,
    hang::HangTerms,
    ids::{NodeId, NodeRank, Round, RunId},
    world::Member,
};

/// The settings that every node of a job must agree on. The first node to join sets them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The job's name.
    pub run_id: RunId,
    /// Fewest nodes, at least 1.
    pub min_nodes: u32,
    /// Most nodes, at least `min_nodes`.
    pub max_nodes: u32,
    /// The number of nodes is a multiple of it; at least 1, at most `max_nodes`.
    pub node_unit: u32,
    /// How long the first round waits for one more node once it has enough. 0: not at all.
    pub last_call: Duration,
    /// How long nodes may gather before the job fails.
    pub join_timeout: Duration,
    /// Every node must have the same number of workers.
    pub require_uniform: bool,
    /// How nodes are checked before their workers start; `None`: not at all.
    pub check: Option<CheckTerms>,
    /// When the job counts as hanging; `None`: that is not watched.
    pub hang: Option<HangTerms>,
    /// When workers fail, the newest checkpoint that nodes have in memory is written to disk too.
    pub save_at_breakpoint: bool,
}

impl Terms {
    /// The largest world: `max_nodes`, floored to the unit.
    #[must_use]
    pub fn most(&self) -> u32 {
        let unit = self.node_unit.max(1);
        self.max_nodes / unit * unit
    }

    /// The smallest world: `min_nodes`, raised to the unit, but never above [`Self::most`].
    #[must_use]
    pub fn least(&self) -> u32 {
        let unit = self.node_unit.max(1);
        self.min_nodes.max(1).div_ceil(unit).saturating_mul(unit).min(self.most())
    }

    /// The size of the world of so many nodes; `None` when they are too few.
    #[must_use]
    pub fn world_of(&self, nodes: usize) -> Option<u32> {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX).min(self.most());
        let unit = self.node_unit.max(1);
        Some(nodes / unit * unit).filter(|size| *size > 0 && *size >= self.least())
    }

    /// Returns the first setting in which a joining node (`theirs`) differs from the job, as text.
    #[must_use]
    pub fn difference(&self, theirs: &Self) -> Option<String> {
        // Mostly there is none, and every join asks.
        if self == theirs {
            return None;
        }
        let differs =
            self.settings().into_iter().zip(theirs.settings()).find(|(ours, theirs)| ours != theirs);
        differs.map(|((name, ours), (_, theirs))| {
            format!("the job has {name}={ours}, the joining node has {name}={theirs}")
        })
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let seconds = |wait: Duration| wait.as_secs_f64().to_string();
        let mut settings = vec![
            ("rdzv-id", self.run_id.to_string()),
            ("nnodes", format!("{}:{}", self.min_nodes, self.max_nodes)),
            ("node-unit", self.node_unit.to_string()),
            ("lastcall_timeout", seconds(self.last_call)),
            ("join_timeout", seconds(self.join_timeout)),
            ("require-uniform", self.require_uniform.to_string()),
            ("network-check", self.check.is_some().to_string()),
        ];
        settings.extend(self.check.iter().flat_map(CheckTerms::settings));
        settings.extend(self.hang.as_ref().map_or_else(HangTerms::off, HangTerms::settings));
        settings.push(("save-at-breakpoint", self.save_at_breakpoint.to_string()));
        settings
    }
}

/// Accelerators of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accelerators {
    /// `nvidia`, `metax`, ...
    pub kind: String,
    /// How many the node's workers may see.
    pub count: u32,
}

/// Facts about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeAttributes {
    pub host_name: String,
    /// Addresses of its interfaces that are not loopback.
    pub addresses: Vec<String>,
    /// The Kubernetes node, when it is known (`NODE_NAME`).
    pub k8s_node_name: Option<String>,
    /// The pod (`POD_NAME`).
    pub pod_name: Option<String>,
    /// The kernel's boot id: the same host before and after a reboot differs in it.
    pub boot_id: String,
    /// `None` when there are none.
    pub accelerators: Option<Accelerators>,
}

/// A node's request to take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// This run of this launcher.
    pub node_id: NodeId,
    /// The node rank it asks for. `None` is not 0: a node without one follows those with one.
    pub wish: Option<NodeRank>,
    /// Workers on this node, at least 1.
    pub local_world_size: u32,
    /// `ROLE_NAME` of its workers.
    pub role: String,
    /// The address that other nodes' workers use: the configured one, else the source of its connection.
    pub address: String,
    /// The address that the topology file lists it under, when it is another one.
    pub node_ip: Option<String>,
    /// The terms that it expects.
    pub terms: Terms,
    /// Facts about the machine.
    pub attributes: NodeAttributes,
    /// The last round that it was in and has left. Distinguishes a new request from a repeated one.
    pub after: Option<Round>,
    /// The result of its self-test, where the terms ask for checks.
    pub checked: Option<Checked>,
    /// The port at which its launcher answers other launchers; 0: none.
    pub question_port: u16,
    /// The checkpoints that it has in memory.
    pub shards: Vec<ShardState>,
}

impl JoinRequest {
    /// The node as a member of a round.
    #[must_use]
    pub fn member(&self, restore_from_disk: bool) -> Member {
        Member {
            node_id: self.node_id.clone(),
            local_world_size: self.local_world_size,
            role: self.role.clone(),
            address: self.address.clone(),
            addresses: self.attributes.addresses.clone(),
            host_name: self.attributes.host_name.clone(),
            question_port: self.question_port,
            restore_from_disk,
        }
    }

    /// The node's name for people.
    #[must_use]
    pub fn name(&self) -> NodeName {
        NodeName {
            rank: self.wish,
            host: self.attributes.host_name.clone(),
            address: self.address.clone(),
            node_id: self.node_id.clone(),
        }
    }
}

/// A node's name for people: `node rank 2 (host-a, 10.0.0.3)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeName {
    /// Its node rank, else the one it asked for.
    pub rank: Option<NodeRank>,
    pub host: String,
    pub address: String,
    /// Empty for several nodes of which nothing is known, which `host` describes.
    pub node_id: NodeId,
}

impl NodeName {
    /// Members of a round that have not reported to this master.
    #[must_use]
    pub fn of_unknown_members(round: Round) -> Self {
        Self {
            rank: None,
            host: format!("unknown members of round {round}"),
            address: String::new(),
            node_id: NodeId(String::new()),
        }
    }

    /// Whether it names several nodes.
    #[must_use]
    pub fn is_plural(&self) -> bool {
        self.node_id.0.is_empty() && self.rank.is_none() && self.address.is_empty()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, address, node_id } = self;
        if self.is_plural() {
            return f.write_str(host);
        }
        match rank {
            Some(rank) => write!(f, "node rank {rank} ")?,
            None => f.write_str("a node ")?,
        }
        match (host.is_empty(), address.is_empty()) {
            (false, false) if host != address => write!(f, "({host}, {address})"),
            (false, _) => write!(f, "({host})"),
            (true, false) => write!(f, "({address})"),
            (true, true) => write!(f, "({node_id})"),
        }
    }
}

/// Addresses in the order of their numbers; names after them, by letter.
#[must_use]
pub fn address_order(address: &str) -> (bool, Option<IpAddr>, &str) {
    let ip = address.parse::<IpAddr>().ok();
    (ip.is_none(), ip, address)
}

/// Whether only workers on the same host reach this address.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    address.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(min_nodes: u32, max_nodes: u32, node_unit: u32) -> Terms {
        Terms {
            run_id: RunId("job".into()),
            min_nodes,
            max_nodes,
            node_unit,
            last_call: Duration::from_secs(3),
            join_timeout: Duration::from_secs(600),
            require_uniform: false,
            check: None,
            hang: None,
            save_at_breakpoint: false,
        }
    }

    #[test]
    fn the_unit_floors_every_world_and_never_to_zero() {
        assert_eq!(terms(2, 5, 4).most(), 4);
        assert_eq!(terms(2, 5, 4).world_of(3), None);
        assert_eq!(terms(2, 5, 4).world_of(5), Some(4));
        assert_eq!(terms(8, 12, 4).world_of(10), Some(8));
        assert_eq!(terms(8, 12, 4).world_of(12), Some(12));
        assert_eq!(terms(3, 8, 2).least(), 4);
        assert_eq!(terms(5, 5, 4).least(), 4, "min above the largest multiple: the largest multiple it is");
        assert_eq!(terms(1, 4, 1).world_of(0), None);
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        assert_eq!(terms(2, 4, 1).difference(&terms(2, 4, 1)), None);
        assert_eq!(
            terms(2, 4, 1).difference(&terms(1, 3, 1)).unwrap(),
            "the job has nnodes=2:4, the joining node has nnodes=1:3"
        );
    }

    #[test]
    fn addresses_are_ordered_by_number() {
        let mut addresses = ["10.0.0.10", "b", "10.0.0.9", "a"];
        addresses.sort_by(|a, b| address_order(a).cmp(&address_order(b)));
        assert_eq!(addresses, ["10.0.0.9", "10.0.0.10", "a", "b"]);
    }
}
