//! The outcome of a job's check with the names of its nodes, and a table of it for the master's log ([`table`]).

mod fabric;
mod table;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{NodeId, NodeRank, RunId},
    node::JoinRequest,
};
use diagnosis::{gpus::Inventory, network_check::Outcome};

/// The outcome of a check with its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaintReport {
    pub job: RunId,
    /// Which of its checks, counted from 0.
    pub check: u32,
    /// The nodes that were checked, by number.
    pub nodes: Vec<CheckedNode>,
    /// The names of the racks' switches; empty where no topology is known.
    pub racks: Vec<String>,
    /// The names of the pods' switches; empty where no topology is known.
    pub pods: Vec<String>,
    pub outcome: Outcome,
}

/// A node as the report names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedNode {
    pub id: NodeId,
    /// The node rank it asked for, or had last.
    pub rank: Option<NodeRank>,
    pub host: String,
    /// The address that was tested.
    pub ip: String,
    /// Its Kubernetes node, when it is known.
    pub k8s_node: Option<String>,
    /// Its pod, when it is known.
    pub pod: Option<String>,
    /// Its rack's number.
    pub rack: u32,
    /// The number of its pod of racks, which hang under one switch of the second level.
    pub psw: u32,
    /// An earlier check of the job called its machine `flaky` or `lost`.
    pub seen_before: bool,
    /// Its accelerators, as far as it has reported them by the end of the check.
    pub inventory: Option<Box<Inventory>>,
    /// What its self-test found that does not exclude it.
    pub notes: Vec<String>,
}

impl CheckedNode {
    /// A node as it joined.
    pub(crate) fn new(
        request: &JoinRequest,
        rank: Option<NodeRank>,
        ip: String,
        (rack, psw): (u32, u32),
        seen_before: bool,
    ) -> Self {
        Self {
            id: request.node_id.clone(),
            rank,
            host: request.attributes.host_name.clone(),
            ip,
            k8s_node: request.attributes.k8s_node_name.clone(),
            pod: request.attributes.pod_name.clone(),
            rack,
            psw,
            seen_before,
            inventory: None,
            notes: request.checked.as_ref().map(|checked| checked.local.notes.clone()).unwrap_or_default(),
        }
    }

    pub(crate) fn name(&self, number: u32) -> String {
        numbered(number, self.rank, &self.host, &self.ip)
    }
}

/// The name of a node by its number in the check: `node number 4 (host-e, 10.0.0.4)`, and with its node rank where
/// that is another.
pub(crate) fn numbered(number: u32, rank: Option<NodeRank>, host: &str, address: &str) -> String {
    let rank = rank.filter(|rank| rank.0 != number).map(|rank| format!("node rank {rank}"));
    let host = (!host.is_empty() && host != address).then(|| host.to_owned());
    let facts: Vec<String> = rank.into_iter().chain(host).chain([address.to_owned()]).collect();
    format!("node number {number} ({})", facts.join(", "))
}

impl TaintReport {
    /// The name of the node of this number.
    #[must_use]
    pub fn name(&self, number: u32) -> String {
        self.nodes
            .get(number as usize)
            .map_or_else(|| format!("node number {number}"), |node| node.name(number))
    }

    /// The name of a rack's switch.
    #[must_use]
    pub fn rack(&self, number: u32) -> String {
        self.racks.get(number as usize).cloned().unwrap_or_else(|| format!("rack {number}"))
    }

    /// The name of a pod's switch.
    #[must_use]
    pub fn pod(&self, number: u32) -> String {
        self.pods.get(number as usize).cloned().unwrap_or_else(|| format!("pod {number}"))
    }
}

#[cfg(test)]
mod tests {
    use diagnosis::network_check::{LocalFault, NodeVerdict};

    #[test]
    fn a_taint_names_the_switchbox() {
        let of = |component: &str| NodeVerdict::LocalFault(LocalFault::new(component, "r"));
        assert_eq!(of("switchbox").taint_value(), "switchbox");
        assert_eq!(of("switchbox").as_str(), "local-fault");
        assert!(of("switchbox").look_at().contains("the optical modules"));
        assert_eq!(of("GPU 3").taint_value(), "local-fault");
        assert_eq!(NodeVerdict::Fault.taint_value(), "fault");
    }
}
