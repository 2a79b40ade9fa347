//! The identity of this node in the job: the rank that it requests, its addresses, and facts about its machine.

use rules::{
    NodeRank,
    node::{Accelerators, NodeAttributes},
};

use crate::{
    accelerators::Devices,
    cli::{Cli, Given},
    endpoint,
    environment::Environment,
    invalid::Invalid,
    options::Flag,
    python_number,
    resolve::rendezvous::Rendezvous,
};

/// The identity of this node in the job.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// `None`: no request, which is not a request for 0.
    pub(super) node_rank: Option<NodeRank>,
    /// The address by which workers of other nodes reach this one; `None`: as the master sees it.
    pub(super) address: Option<String>,
    /// The address in the topology file.
    pub(super) node_ip: Option<String>,
    /// Attributes that the agent cannot find out by itself.
    pub(super) attributes: NodeAttributes,
}

pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    devices: &Devices<'_>,
    rendezvous: &Rendezvous,
) -> Result<Identity, Invalid> {
    let node_rank = node_rank(cli, env, rendezvous)?;
    let attributes = attributes(env, devices);
    if *rendezvous == Rendezvous::Loopback {
        // No other node needs an address.
        return Ok(Identity { node_rank, attributes, ..Identity::default() });
    }
    let given = Addresses { cli, env };
    let [local_addr, node_ip] = [given.given(Flag::LocalAddr)?, given.given(Flag::NodeIp)?];
    let address = match local_addr {
        Some(address) => Some(address),
        None => match given.variable("POD_IP")? {
            Some(address) => Some(address),
            None => match node_ip.clone() {
                Some(address) => Some(address),
                None => given.first_of(&["NODE_IP", "HOST_IP"])?,
            },
        },
    };
    let node_ip = match node_ip {
        Some(address) => Some(address),
        None => given.first_of(&["NODE_IP", "HOST_IP", "POD_IP"])?,
    };
    Ok(Identity { node_rank, address, node_ip, attributes })
}

/// What the environment and the devices show. Also of a node that is alone: its accelerators are watched too.
fn attributes(env: Environment<'_>, devices: &Devices<'_>) -> NodeAttributes {
    let text = |name: &str| env.get_filled(name).map(|value| value.to_string_lossy().into_owned());
    let k8s_node_name = ["NODE_NAME", "MY_NODE_NAME", "K8S_NODE_NAME"].into_iter().find_map(text);
    let accelerators = devices.kind().and_then(|kind| {
        let count = u32::try_from(devices.visible(env).len()).ok()?;
        (count > 0).then(|| Accelerators { kind: kind.to_owned(), count })
    });
    NodeAttributes { k8s_node_name, pod_name: text("POD_NAME"), accelerators, ..Default::default() }
}

/// `--node-rank`, and with `DLROVER_MASTER_ADDR` also `NODE_RANK` or its old name `WORKER_RANK`.
fn node_rank(cli: &Cli, env: Environment<'_>, rendezvous: &Rendezvous) -> Result<Option<NodeRank>, Invalid> {
    let rank = |number: Option<i64>, given: Given| {
        let rank = number.and_then(|number| u32::try_from(number).ok());
        rank.map(|rank| Some(NodeRank(rank))).ok_or(Invalid::NodeRank { given })
    };
    match rendezvous {
        Rendezvous::Loopback => return Ok(None),
        _ if cli.is_given(Flag::NodeRank) => {
            return rank(cli.int(Flag::NodeRank), cli.given(Flag::NodeRank));
        }
        Rendezvous::Static(_) | Rendezvous::C10d(_) => return Ok(None),
        Rendezvous::Master(_) => {}
    }
    let named = ["NODE_RANK", "WORKER_RANK"].into_iter().find_map(|name| Some((name, env.get_filled(name)?)));
    match named {
        None => Ok(None),
        Some((name, value)) => {
            rank(value.to_str().and_then(python_number::int), Given::in_variable(name, value))
        }
    }
}

/// Addresses of this node from options and variables.
struct Addresses<'a> {
    cli: &'a Cli,
    env: Environment<'a>,
}

impl Addresses<'_> {
    fn given(&self, flag: Flag) -> Result<Option<String>, Invalid> {
        let text = self.cli.text(flag)?;
        if text.is_empty() {
            return Ok(None);
        }
        let host = endpoint::host_of(text);
        host.map(|host| Some(host.to_owned()))
            .map_err(|why| Invalid::Endpoint { given: self.cli.given(flag), why })
    }

    fn variable(&self, name: &str) -> Result<Option<String>, Invalid> {
        let Some(value) = self.env.get_filled(name) else { return Ok(None) };
        let host = value.to_str().ok_or(endpoint::NOT_A_HOST).and_then(endpoint::host_of);
        host.map(|host| Some(host.to_owned()))
            .map_err(|why| Invalid::Endpoint { given: Given::in_variable(name, value), why })
    }

    fn first_of(&self, names: &[&str]) -> Result<Option<String>, Invalid> {
        for name in names {
            if let Some(address) = self.variable(name)? {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }
}
