//! Where the nodes of a job meet: torchrun's choice of a rendezvous backend.
//!
//! `--standalone` is the loopback, whatever else is said. So is a line that says nothing: the static backend
//! without an endpoint and without a port, on one node. Any other static line meets at exactly the address and
//! port it gives.

use crate::{
    cli::{Cli, Said},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::Flag,
    resolve::{nodes::Nodes, rdzv_conf::Conf},
};

/// Where the job's master is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// In this process, on `127.0.0.1` and a free port: no one else takes part.
    Loopback,
    /// At this address: the launcher of node rank 0 binds the port, and workers get both as MASTER_ADDR and
    /// MASTER_PORT.
    Static {
        /// A name or an address, an IPv6 one without brackets.
        addr: String,
        /// At least 1.
        port: u16,
    },
}

/// A rendezvous as it was asked for, in this release or not.
#[derive(Debug, Clone)]
pub(crate) struct Rendezvous {
    /// Where it is.
    pub(crate) place: Place,
    /// `TORCHELASTIC_RUN_ID`.
    pub(crate) run_id: String,
    /// The seat that this node asks for.
    pub(crate) node_rank: Option<u32>,
}

/// Where a rendezvous is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Loopback,
    Static {
        addr: String,
        port: u16,
    },
    /// A store of its own elsewhere; what said so.
    Elsewhere {
        said: Said,
    },
}

/// The port of a static rendezvous that names none, as torchrun's.
const STATIC_PORT: u16 = 29500;

impl Rendezvous {
    pub(super) fn resolve(
        cli: &Cli,
        nodes: &Nodes,
        env: Environment<'_>,
        host: &dyn Host,
        notices: &mut Vec<String>,
    ) -> Result<Self, Invalid> {
        let conf = Conf::parse(cli)?;
        let loopback = |run_id: String| Self { place: Place::Loopback, run_id, node_rank: None };
        if cli.is_on(Flag::Standalone) {
            for name in ["DLROVER_MASTER_ADDR", "NODE_RANK"] {
                if let Some(value) = env.get_filled(name) {
                    let said = Said::in_variable(name, value);
                    notices.push(format!("--standalone runs on this node alone: `{said}` is ignored"));
                }
            }
            conf.check_dynamic(cli)?;
            return Ok(loopback(host.fresh_id()));
        }
        let backend = cli.text(Flag::RdzvBackend)?;
        let endpoint = cli.text(Flag::RdzvEndpoint)?.trim();
        let run_id = match cli.text(Flag::RdzvId)? {
            "" => host.fresh_id(),
            id => id.to_owned(),
        };
        match backend {
            "static" if endpoint.is_empty() && cli.int(Flag::MasterPort).is_none() && nodes.max == 1 => {
                conf.check_dynamic(cli)?;
                Ok(loopback(host.fresh_id()))
            }
            "static" => {
                conf.check_static(cli)?;
                let (addr, port) = static_address(cli, endpoint)?;
                if port == 0 {
                    // Any free port: no other node could learn which, and this one alone needs no more than that.
                    let is_here = is_loopback(&addr) || addr == host.name();
                    if is_here && nodes.max == 1 {
                        return Ok(loopback(run_id));
                    }
                    let flag = if endpoint.is_empty() { Flag::MasterPort } else { Flag::RdzvEndpoint };
                    return Err(Invalid::OutOfRange {
                        said: cli.said(flag),
                        range: "port 0, any free one, is for one node that meets on localhost",
                    });
                }
                let rank = cli.int(Flag::NodeRank).unwrap_or(0);
                let rank = u32::try_from(rank).ok().filter(|rank| *rank < nodes.max);
                let said = || cli.said(Flag::NodeRank);
                let rank =
                    rank.ok_or_else(|| Invalid::NodeRankBeyondNodes { said: said(), nodes: nodes.max })?;
                Ok(Self { place: Place::Static { addr, port }, run_id, node_rank: Some(rank) })
            }
            "c10d" => {
                conf.check_dynamic(cli)?;
                warn_of_static_options(cli, endpoint, notices);
                let (addr, _) = split_endpoint(endpoint)
                    .map_err(|why| Invalid::Endpoint { said: cli.said(Flag::RdzvEndpoint), why })?;
                // On one node the endpoint only says where this launcher itself would listen.
                let is_here = is_loopback(addr) || addr == host.name();
                if is_here && nodes.max == 1 {
                    return Ok(loopback(run_id));
                }
                let flag = if endpoint.is_empty() { Flag::RdzvBackend } else { Flag::RdzvEndpoint };
                Ok(Self { place: Place::Elsewhere { said: cli.said(flag) }, run_id, node_rank: None })
            }
            "etcd" | "etcd-v2" => {
                warn_of_static_options(cli, endpoint, notices);
                Ok(Self {
                    place: Place::Elsewhere { said: cli.said(Flag::RdzvBackend) },
                    run_id,
                    node_rank: None,
                })
            }
            _ => Err(Invalid::Backend { said: cli.said(Flag::RdzvBackend) }),
        }
    }

    /// The meeting; one that this release cannot hold has been refused.
    pub(super) fn meeting(&self) -> Meeting {
        match &self.place {
            Place::Static { addr, port } => Meeting::Static { addr: addr.clone(), port: *port },
            Place::Loopback | Place::Elsewhere { .. } => Meeting::Loopback,
        }
    }
}

/// Options that a rendezvous other than static does not look at.
fn warn_of_static_options(cli: &Cli, endpoint: &str, notices: &mut Vec<String>) {
    if endpoint.is_empty() && cli.is_given(Flag::MasterAddr) {
        let said = cli.said(Flag::MasterAddr);
        notices.push(format!("`{said}` is ignored: only the static rendezvous uses it"));
    }
    if cli.int(Flag::NodeRank).is_some_and(|rank| rank != 0) {
        let said = cli.said(Flag::NodeRank);
        notices.push(format!("`{said}` is ignored: only the static rendezvous uses it"));
    }
}

fn static_address(cli: &Cli, endpoint: &str) -> Result<(String, u16), Invalid> {
    if !endpoint.is_empty() {
        let bad = |why| Invalid::Endpoint { said: cli.said(Flag::RdzvEndpoint), why };
        let (addr, port) = split_endpoint(endpoint).map_err(bad)?;
        let port =
            port.ok_or_else(|| bad("a static rendezvous needs a port, HOST:PORT, or --master-port"))?;
        return Ok((addr.to_owned(), port));
    }
    let port = match cli.int(Flag::MasterPort) {
        None => STATIC_PORT,
        Some(port) => u16::try_from(port).map_err(|_| Invalid::OutOfRange {
            said: cli.said(Flag::MasterPort),
            range: "a port is a number from 0 to 65535 (0: any free one)",
        })?,
    };
    let text = cli.text(Flag::MasterAddr)?.trim();
    let addr = without_brackets(text);
    if !is_host(addr) {
        return Err(Invalid::Endpoint { said: cli.said(Flag::MasterAddr), why: NOT_A_HOST });
    }
    Ok((addr.to_owned(), port))
}

const NOT_A_HOST: &str = "give a host name, an IPv4 address, or an IPv6 address in brackets";

/// `host[:port]`; an empty text is this machine. The rule is that of torch's `parse_rendezvous_endpoint`.
fn split_endpoint(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    if text.is_empty() {
        return Ok(("localhost", None));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some(_) if text.starts_with('[') && text.ends_with(']') => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let number = |port: &str| {
        let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| port.parse().ok()).flatten()
    };
    let port = match port {
        None => None,
        Some(port) => Some(number(port).ok_or("its port is a number from 0 to 65535")?),
    };
    let host = without_brackets(host);
    if is_host(host) { Ok((host, port)) } else { Err(NOT_A_HOST) }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn is_host(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|letter| letter.is_alphanumeric() || "_.:-".contains(letter))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|addr| addr.is_loopback())
}
