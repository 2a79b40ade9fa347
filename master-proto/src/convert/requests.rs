//! Requests of agents.

use std::time::Duration;

use rules::{
    NodeId, NodeRank, Round, RunId,
    job::{Claim, Event, NodeEnd, WorkersState},
    node::{Accelerators, JoinRequest, NodeAttributes, Terms},
};

use super::{
    ConvertError, MAX_ADDRESSES, MAX_NAME, MAX_NODES, MAX_TEXT, checkpoints, limited, millis, name, node_id,
    port, round, workers,
};
use crate::pb;

/// A request to join, which may leave its address to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// Its `address` is empty when the agent gave none.
    request: JoinRequest,
}

impl Join {
    /// Returns the node that joins.
    #[must_use]
    pub fn sender(&self) -> &NodeId {
        &self.request.node_id
    }

    /// Returns the request, with the peer's address where it has none.
    #[must_use]
    pub fn from_peer(self, peer: impl FnOnce() -> String) -> JoinRequest {
        let mut request = self.request;
        if request.address.is_empty() {
            request.address = peer();
        }
        request
    }
}

impl TryFrom<pb::JoinRequest> for Join {
    type Error = ConvertError;

    fn try_from(wire: pb::JoinRequest) -> Result<Self, ConvertError> {
        let terms = wire.terms.ok_or(ConvertError::Missing { field: "terms" })?;
        let address = name(wire.address.unwrap_or_default(), "address")?;
        let request = JoinRequest {
            node_id: node_id(wire.node_id, "node_id")?,
            wish: wire.node_rank.map(NodeRank),
            local_world_size: workers(wire.local_world_size, "local_world_size")?,
            role: name(wire.role, "role")?,
            address,
            node_ip: wire.node_ip.map(|ip| name(ip, "node_ip")).transpose()?,
            terms: terms.try_into()?,
            attributes: wire.attributes.unwrap_or_default().try_into()?,
            after: wire.after_round.map(|after| round(after, "after_round")).transpose()?,
            checked: wire.checked.map(TryInto::try_into).transpose()?,
            question_port: u16::try_from(wire.question_port).map_err(|_| ConvertError::Range {
                field: "question_port",
                value: u64::from(wire.question_port),
                expected: "0 to 65535",
            })?,
            shards: checkpoints::shards(wire.checkpoints)?,
        };
        Ok(Self { request })
    }
}

/// A request to join; an empty address is left to the connection.
#[must_use]
pub fn join_request(request: JoinRequest) -> pb::JoinRequest {
    let JoinRequest {
        node_id,
        wish,
        local_world_size,
        role,
        address,
        node_ip,
        terms,
        attributes,
        after,
        checked,
        question_port,
        shards,
    } = request;
    pb::JoinRequest {
        node_id: node_id.0,
        local_world_size,
        role,
        node_rank: wish.map(|wish| wish.0),
        address: (!address.is_empty()).then_some(address),
        node_ip,
        terms: Some(terms.into()),
        attributes: Some(attributes.into()),
        after_round: after.map(|round| round.0),
        checked: checked.map(pb::Checked::from),
        question_port: u32::from(question_port),
        session: None,
        checkpoints: checkpoints::folders(shards),
    }
}

impl TryFrom<pb::Terms> for Terms {
    type Error = ConvertError;

    fn try_from(wire: pb::Terms) -> Result<Self, ConvertError> {
        let range =
            |field, value: u32, expected| ConvertError::Range { field, value: u64::from(value), expected };
        if wire.max_nodes > MAX_NODES {
            return Err(range("terms.max_nodes", wire.max_nodes, "at most 65536"));
        }
        if wire.min_nodes < 1 || wire.min_nodes > wire.max_nodes {
            return Err(range("terms.min_nodes", wire.min_nodes, "1 to max_nodes"));
        }
        if wire.node_unit < 1 || wire.node_unit > wire.max_nodes {
            return Err(range("terms.node_unit", wire.node_unit, "1 to max_nodes"));
        }
        Ok(Self {
            run_id: RunId(limited(wire.run_id, MAX_TEXT, "terms.run_id")?),
            min_nodes: wire.min_nodes,
            max_nodes: wire.max_nodes,
            node_unit: wire.node_unit,
            last_call: Duration::from_millis(wire.last_call_millis),
            join_timeout: Duration::from_millis(wire.join_timeout_millis),
            require_uniform: wire.require_uniform,
            check: wire.check.map(TryInto::try_into).transpose()?,
            hang: wire.hang.map(TryInto::try_into).transpose()?,
            save_at_breakpoint: wire.save_at_breakpoint,
        })
    }
}

impl From<Terms> for pb::Terms {
    fn from(terms: Terms) -> Self {
        let Terms {
            run_id,
            min_nodes,
            max_nodes,
            node_unit,
            last_call,
            join_timeout,
            require_uniform,
            check,
            hang,
            save_at_breakpoint,
        } = terms;
        Self {
            run_id: run_id.0,
            min_nodes,
            max_nodes,
            node_unit,
            last_call_millis: millis(last_call),
            join_timeout_millis: millis(join_timeout),
            require_uniform,
            check: check.map(pb::CheckTerms::from),
            hang: hang.map(pb::HangTerms::from),
            save_at_breakpoint,
        }
    }
}

impl TryFrom<pb::NodeAttributes> for NodeAttributes {
    type Error = ConvertError;

    fn try_from(wire: pb::NodeAttributes) -> Result<Self, ConvertError> {
        if wire.addresses.len() > MAX_ADDRESSES {
            return Err(ConvertError::TooMany {
                field: "attributes.addresses",
                length: wire.addresses.len(),
                max: MAX_ADDRESSES,
            });
        }
        let addresses = wire.addresses.into_iter().map(|address| name(address, "attributes.addresses"));
        let accelerators = wire.accelerators.map(|wire| {
            let kind = name(wire.kind, "attributes.accelerators.kind")?;
            Ok(Accelerators { kind, count: wire.count })
        });
        Ok(Self {
            host_name: name(wire.host_name, "attributes.host_name")?,
            addresses: addresses.collect::<Result<_, _>>()?,
            k8s_node_name: wire.k8s_node_name.map(|it| name(it, "attributes.k8s_node_name")).transpose()?,
            pod_name: wire.pod_name.map(|it| name(it, "attributes.pod_name")).transpose()?,
            boot_id: name(wire.boot_id, "attributes.boot_id")?,
            accelerators: accelerators.transpose()?,
        })
    }
}

impl From<NodeAttributes> for pb::NodeAttributes {
    fn from(attributes: NodeAttributes) -> Self {
        let NodeAttributes { host_name, mut addresses, k8s_node_name, pod_name, boot_id, accelerators } =
            attributes;
        addresses.truncate(MAX_ADDRESSES);
        // From the environment, where other programs may have set the variable: longer ones are no names of Kubernetes,
        // and would be refused.
        let [k8s_node_name, pod_name] =
            [k8s_node_name, pod_name].map(|name| name.filter(|name| name.len() <= MAX_NAME));
        let accelerators = accelerators.map(|Accelerators { kind, count }| pb::Accelerators { kind, count });
        Self { host_name, addresses, k8s_node_name, pod_name, boot_id, accelerators }
    }
}

/// The reported state of a node, with the peer's address where it has none.
///
/// # Errors
/// The first field that is invalid.
pub fn resume_request(wire: pb::ResumeRequest, peer: impl FnOnce() -> String) -> Result<Event, ConvertError> {
    let node = wire.node.clone().ok_or(ConvertError::Missing { field: "node" })?;
    let workers_state = match wire.workers_state() {
        pb::WorkersState::Running => WorkersState::Running,
        pb::WorkersState::Stopping => WorkersState::Stopping,
        pb::WorkersState::Succeeded => WorkersState::Succeeded,
        pb::WorkersState::Unspecified => return Err(ConvertError::Missing { field: "workers_state" }),
    };
    if wire.nodes > MAX_NODES {
        let (value, expected) = (u64::from(wire.nodes), "at most 65536");
        return Err(ConvertError::Range { field: "nodes", value, expected });
    }
    if wire.node_rank >= wire.nodes {
        let (value, expected) = (u64::from(wire.node_rank), "a node rank below the number of nodes");
        return Err(ConvertError::Range { field: "node_rank", value, expected });
    }
    let claim = Claim {
        round: round(wire.round, "round")?,
        node_rank: NodeRank(wire.node_rank),
        nodes: wire.nodes,
        master_addr: name(wire.master_addr, "master_addr")?,
        master_port: port(wire.master_port, "master_port")?,
        workers_state,
        fence: wire.fence.map(TryInto::try_into).transpose()?,
    };
    Ok(Event::Resumed { request: Join::try_from(node)?.from_peer(peer), claim })
}

impl From<(JoinRequest, Claim)> for pb::ResumeRequest {
    fn from((request, claim): (JoinRequest, Claim)) -> Self {
        let Claim { round, node_rank, nodes, master_addr, master_port, workers_state, fence } = claim;
        let workers_state = match workers_state {
            WorkersState::Running => pb::WorkersState::Running,
            WorkersState::Stopping => pb::WorkersState::Stopping,
            WorkersState::Succeeded => pb::WorkersState::Succeeded,
        };
        Self {
            node: Some(join_request(request)),
            round: round.0,
            node_rank: node_rank.0,
            nodes,
            master_addr,
            master_port: u32::from(master_port),
            workers_state: workers_state.into(),
            fence: fence.map(pb::Fence::from),
        }
    }
}

impl TryFrom<pb::HostingReport> for Event {
    type Error = ConvertError;

    fn try_from(report: pb::HostingReport) -> Result<Self, ConvertError> {
        if report.master_addr.as_ref().is_some_and(String::is_empty) {
            return Err(ConvertError::Missing { field: "master_addr" });
        }
        Ok(Self::Hosted {
            node: node_id(report.node_id, "node_id")?,
            round: Round(report.round),
            master_addr: report.master_addr.map(|address| name(address, "master_addr")).transpose()?,
            master_port: port(report.master_port, "master_port")?,
        })
    }
}

impl TryFrom<pb::FailureReport> for Event {
    type Error = ConvertError;

    fn try_from(report: pb::FailureReport) -> Result<Self, ConvertError> {
        Ok(Self::WorkersFailed {
            node: node_id(report.node_id, "node_id")?,
            round: Round(report.round),
            reason: limited(report.reason, MAX_TEXT, "reason")?,
            gives_up: report.gives_up,
            has_detail: report.has_detail,
            age: Duration::from_micros(report.age_micros),
        })
    }
}

impl TryFrom<pb::EndReport> for Event {
    type Error = ConvertError;

    fn try_from(report: pb::EndReport) -> Result<Self, ConvertError> {
        use pb::end_report::End;
        let end = match report.end.ok_or(ConvertError::Missing { field: "end" })? {
            End::Succeeded(pb::NodeSucceeded { round }) => NodeEnd::Succeeded { round: Round(round) },
            End::Failed(pb::NodeFailed { reason }) => {
                NodeEnd::Failed { reason: limited(reason, MAX_TEXT, "failed.reason")? }
            }
            End::Left(pb::NodeLeft { signal }) => NodeEnd::Left { signal },
        };
        Ok(Self::NodeEnded { node: node_id(report.node_id, "node_id")?, end })
    }
}

/// The report of a node's end.
#[must_use]
pub fn end_report(node: &NodeId, end: NodeEnd) -> pb::EndReport {
    use pb::end_report::End;
    let end = match end {
        NodeEnd::Succeeded { round } => End::Succeeded(pb::NodeSucceeded { round: round.0 }),
        NodeEnd::Failed { reason } => End::Failed(pb::NodeFailed { reason: super::cut(reason) }),
        NodeEnd::Left { signal } => End::Left(pb::NodeLeft { signal }),
    };
    pb::EndReport { node_id: node.0.clone(), end: Some(end) }
}
