//! Where the nodes of a job meet, and which launcher serves the job master there.
//!
//! In this order: `--standalone`; `DLROVER_MASTER_ADDR`; torchrun's options. Of those, a line without an address (the
//! static backend without an endpoint and without a port, on one node) is a rendezvous of this node alone, and so is
//! c10d on one node that names itself.

use std::time::Duration;

use rules::{RunId, node::Terms};

use crate::{
    cli::{Cli, Given},
    endpoint::{self, Endpoint, is_loopback},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::Flag,
    resolve::{does_nothing, gang, nodes::Nodes, rdzv_conf::Conf},
};

/// Where the job's master is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendezvous {
    /// A job of this node alone: the master is in this process, on `127.0.0.1` and a free port.
    Loopback,
    /// A static rendezvous: store and master share this port, and workers get both as MASTER_ADDR and
    /// MASTER_PORT.
    Static(Endpoint),
    /// A c10d rendezvous: the job master is at this address; the store has a port of its own.
    C10d(Endpoint),
    /// `DLROVER_MASTER_ADDR`: the address of the job master, usually a separate process; the store has a port of
    /// its own.
    Master(Endpoint),
}

impl Rendezvous {
    /// Where, when others take part.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Self::Loopback => None,
            Self::Static(endpoint) | Self::C10d(endpoint) | Self::Master(endpoint) => Some(endpoint),
        }
    }

    /// What events call it: torchrun's name of the backend.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        match self {
            Self::Loopback | Self::C10d(_) => "c10d",
            Self::Static(_) => "static",
            Self::Master(_) => "dlrover-master",
        }
    }
}

/// Whether this launcher serves the job master of a rendezvous with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServeMaster {
    /// This launcher serves the job master; on all addresses if the name does not resolve to one of its own (a service in front of it).
    Always,
    /// This launcher serves the job master, unless another launcher of this host already does.
    UnlessServed,
    /// This launcher serves the job master if the endpoint is an address of this host and the port is free.
    IfLocal,
    /// Another process serves the job master.
    Never,
}

/// A rendezvous as requested.
#[derive(Debug, Clone)]
pub(super) struct ResolvedRendezvous {
    pub(super) rendezvous: Rendezvous,
    pub(super) serve_master: ServeMaster,
    /// What every node must agree on.
    pub(super) terms: Terms,
}

/// The port of a static rendezvous that names none, as torchrun's.
const STATIC_PORT: u16 = 29500;

/// The port of a c10d rendezvous that names none, as torchrun's.
const C10D_PORT: u16 = 29400;

/// torchrun's `join_timeout`.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);

/// How long `--nnodes=MIN:MAX` waits for another node: torchrun waits 30 s, DLRover 60 s.
const LAST_CALL: Duration = Duration::from_secs(3);

pub(super) fn resolve(
    cli: &Cli,
    nodes: &Nodes,
    env: Environment<'_>,
    host: &dyn Host,
    notices: &mut Vec<String>,
) -> Result<ResolvedRendezvous, Invalid> {
    let conf = Conf::parse(cli)?;
    let (rendezvous, serve_master, run_id) = rendezvous(cli, &conf, nodes, env, host, notices)?;
    let is_alone = rendezvous == Rendezvous::Loopback;
    let join_timeout = match conf.join_timeout() {
        Some(timeout) => timeout,
        None if is_alone => JOIN_TIMEOUT,
        None => gang::timeout(env)?.unwrap_or(JOIN_TIMEOUT),
    };
    let node_unit = cli.int(Flag::NodeUnit).and_then(|unit| u32::try_from(unit).ok()).unwrap_or(1);
    let terms = Terms {
        run_id: RunId(run_id),
        min_nodes: nodes.min,
        max_nodes: nodes.max,
        node_unit: if is_alone { 1 } else { node_unit },
        last_call: conf.last_call().unwrap_or(LAST_CALL),
        join_timeout,
        require_uniform: cli.is_on(Flag::RequireUniform),
        check: None,
        hang: None,
        save_at_breakpoint: cli.is_on(Flag::SaveAtBreakpoint),
    };
    Ok(ResolvedRendezvous { rendezvous, serve_master, terms })
}

type Resolved = (Rendezvous, ServeMaster, String);

fn rendezvous(
    cli: &Cli,
    conf: &Conf<'_>,
    nodes: &Nodes,
    env: Environment<'_>,
    host: &dyn Host,
    notices: &mut Vec<String>,
) -> Result<Resolved, Invalid> {
    let alone = |run_id: String| (Rendezvous::Loopback, ServeMaster::Always, run_id);
    if cli.is_on(Flag::Standalone) {
        for name in ["DLROVER_MASTER_ADDR", "NODE_RANK"] {
            if let Some(value) = env.get_filled(name) {
                let given = Given::in_variable(name, value);
                notices.push(format!("--standalone runs on this node alone: `{given}` is ignored"));
            }
        }
        warn_of_static_options(cli, "localhost:0", notices);
        conf.check_dynamic(cli, notices)?;
        return Ok(alone(host.fresh_id()));
    }
    if let Some(value) = env.get_filled("DLROVER_MASTER_ADDR") {
        conf.check_dynamic(cli, notices)?;
        let given = Given::in_variable("DLROVER_MASTER_ADDR", value);
        let read = value.to_str().ok_or(endpoint::NOT_A_HOST).and_then(Endpoint::of_master);
        let endpoint = read.map_err(|why| Invalid::Endpoint { given: given.clone(), why })?;
        warn_of_rendezvous_options(cli, &given, env, notices);
        let run_id = match env.get_filled("ELASTIC_JOB_NAME") {
            Some(name) => name.to_string_lossy().into_owned(),
            None => named(cli.text(Flag::RdzvId)?),
        };
        return Ok((Rendezvous::Master(endpoint), ServeMaster::IfLocal, run_id));
    }
    let rdzv_endpoint = cli.text(Flag::RdzvEndpoint)?.trim();
    let id = cli.text(Flag::RdzvId)?;
    let own_id = || if id.is_empty() { host.fresh_id() } else { id.to_owned() };
    let is_one_node = nodes.max == 1;
    let is_this_host = |addr: &str| is_loopback(addr) || addr == host.name();
    match cli.text(Flag::RdzvBackend)? {
        "static" if rdzv_endpoint.is_empty() && cli.int(Flag::MasterPort).is_none() && is_one_node => {
            warn_of_static_options(cli, "localhost:0", notices);
            if cli.is_on_the_line(Flag::RdzvId) {
                let why = "a run of this node alone gets an id of its own, as with torchrun";
                notices.push(does_nothing(cli, Flag::RdzvId, why));
            }
            conf.check_dynamic(cli, notices)?;
            Ok(alone(host.fresh_id()))
        }
        "static" => {
            conf.check_static(cli, notices)?;
            let (addr, port) = static_address(cli, rdzv_endpoint)?;
            if port == 0 {
                if is_this_host(&addr) && is_one_node {
                    return Ok(alone(own_id()));
                }
                let flag = if rdzv_endpoint.is_empty() { Flag::MasterPort } else { Flag::RdzvEndpoint };
                return Err(no_such_port(cli, flag));
            }
            // Unset is not 0.
            let rank = cli.int(Flag::NodeRank);
            if rank.is_some_and(|rank| !(0..i64::from(nodes.max)).contains(&rank)) {
                return Err(Invalid::NodeRankBeyondNodes {
                    given: cli.given(Flag::NodeRank),
                    nodes: nodes.max,
                });
            }
            let (serve_master, run_id) = match rank {
                _ if is_one_node => (ServeMaster::Always, own_id()),
                Some(0) => (ServeMaster::UnlessServed, named(id)),
                Some(_) => (ServeMaster::Never, named(id)),
                None => (ServeMaster::IfLocal, named(id)),
            };
            Ok((Rendezvous::Static(Endpoint { host: addr, port }), serve_master, run_id))
        }
        "c10d" => {
            conf.check_dynamic(cli, notices)?;
            if rdzv_endpoint.is_empty() {
                warn_of_master_addr(cli, notices);
            }
            // The endpoint is a path then, and a single node does not need the file.
            if conf.is_at_a_file() {
                if !is_one_node {
                    return Err(Invalid::FileStore { given: cli.given(Flag::RdzvConf), nodes: nodes.max });
                }
                warn_of_node_rank(cli, notices);
                return Ok(alone(own_id()));
            }
            let (addr, port) = endpoint::split(rdzv_endpoint)
                .map_err(|why| Invalid::Endpoint { given: cli.given(Flag::RdzvEndpoint), why })?;
            let is_host = conf.is_host();
            // On one node the endpoint is only where this launcher itself would listen.
            if is_one_node && is_this_host(addr) && is_host != Some(false) {
                warn_of_node_rank(cli, notices);
                if port.is_some_and(|port| port != 0) {
                    let given = cli.given(Flag::RdzvEndpoint);
                    notices.push(format!(
                        "`{given}` is ignored: this node is alone, and its job master uses a free port of \
                         127.0.0.1; dlrover-diag status on this node finds it, and --http=ADDRESS:PORT serves \
                         a page for other hosts"
                    ));
                }
                return Ok(alone(own_id()));
            }
            let port = port.unwrap_or(C10D_PORT);
            if port == 0 {
                return Err(no_such_port(cli, Flag::RdzvEndpoint));
            }
            let serve_master = match is_host {
                Some(true) => ServeMaster::Always,
                Some(false) => ServeMaster::Never,
                None => ServeMaster::IfLocal,
            };
            Ok((Rendezvous::C10d(Endpoint { host: addr.to_owned(), port }), serve_master, named(id)))
        }
        "etcd" | "etcd-v2" => Err(Invalid::Etcd { given: cli.given(Flag::RdzvBackend) }),
        _ => Err(Invalid::Backend { given: cli.given(Flag::RdzvBackend) }),
    }
}

fn named(id: &str) -> String {
    if id.is_empty() { RunId::UNNAMED.to_owned() } else { id.to_owned() }
}

fn no_such_port(cli: &Cli, flag: Flag) -> Invalid {
    // No other node could learn the port; a single node needs no fixed one.
    Invalid::OutOfRange {
        given: cli.given(flag),
        range: "a port from 1 to 65535; 0 (any free one) requires a single-node job with an endpoint on localhost",
    }
}

/// Options that `DLROVER_MASTER_ADDR` overrides.
fn warn_of_rendezvous_options(cli: &Cli, master: &Given, env: Environment<'_>, notices: &mut Vec<String>) {
    if let Some(name) = env.get_filled("ELASTIC_JOB_NAME").filter(|_| cli.is_given(Flag::RdzvId)) {
        let id = Given::in_variable("ELASTIC_JOB_NAME", name);
        notices.push(format!("`{}` is ignored: `{id}` is the run id", cli.given(Flag::RdzvId)));
    }
    let flags = [Flag::RdzvBackend, Flag::RdzvEndpoint, Flag::MasterAddr, Flag::MasterPort];
    let ignored: Vec<String> = flags
        .into_iter()
        .filter(|flag| cli.is_given(*flag))
        .map(|flag| format!("`{}`", cli.given(flag)))
        .collect();
    if !ignored.is_empty() {
        let is = if ignored.len() == 1 { "is" } else { "are" };
        notices.push(format!(
            "{} {is} ignored: `{master}` is the address of the job master",
            ignored.join(", ")
        ));
    }
}

/// Options that a rendezvous of this node alone does not use.
fn warn_of_static_options(cli: &Cli, endpoint: &str, notices: &mut Vec<String>) {
    if endpoint.is_empty() {
        warn_of_master_addr(cli, notices);
    }
    warn_of_node_rank(cli, notices);
}

fn warn_of_master_addr(cli: &Cli, notices: &mut Vec<String>) {
    if cli.is_given(Flag::MasterAddr) {
        let given = cli.given(Flag::MasterAddr);
        notices.push(format!("`{given}` is ignored: only the static rendezvous uses it"));
    }
}

fn warn_of_node_rank(cli: &Cli, notices: &mut Vec<String>) {
    if cli.int(Flag::NodeRank).is_some_and(|rank| rank != 0) {
        let given = cli.given(Flag::NodeRank);
        notices.push(format!("`{given}` is ignored: this node is alone, and so has rank 0"));
    }
}

fn static_address(cli: &Cli, rdzv_endpoint: &str) -> Result<(String, u16), Invalid> {
    if !rdzv_endpoint.is_empty() {
        let bad = |why| Invalid::Endpoint { given: cli.given(Flag::RdzvEndpoint), why };
        let (addr, port) = endpoint::split(rdzv_endpoint).map_err(bad)?;
        let port = port.ok_or_else(|| {
            bad("a static rendezvous requires a port: give HOST:PORT, or --master-addr and --master-port instead")
        })?;
        return Ok((addr.to_owned(), port));
    }
    let port = match cli.int(Flag::MasterPort) {
        None => STATIC_PORT,
        Some(port) => u16::try_from(port).map_err(|_| no_such_port(cli, Flag::MasterPort))?,
    };
    let addr = endpoint::host_of(cli.text(Flag::MasterAddr)?)
        .map_err(|why| Invalid::Endpoint { given: cli.given(Flag::MasterAddr), why })?;
    Ok((addr.to_owned(), port))
}
