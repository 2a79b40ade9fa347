//! Connects this node's agent with its master, and opens the store that workers use if this is the first node.

use std::{io, net::Ipv4Addr, sync::Arc};

use agent::{
    AgentConfig, Allowed, Console, MasterAt, MasterPort, Reach, SharedStore, StoreHost, StoreHostError,
    StoreLimits,
};
use master::{HttpError, LogLine, MasterConfig, Web};
use rules::chain;
use rules::{NodeRank, job::Policy, node::Terms};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tracing::Level;

use crate::{
    embedded::{self, Embedded, EmbeddedError},
    endpoint::{Endpoint, is_loopback},
    endpoint_listener::{self, BindError, EndpointListener, LoopbackDown},
    host_names::master_addr_of_one_node,
    loopback, open_job,
    resolve::{LaunchPlan, MasterPlan, Rendezvous},
};

/// Why the node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The port of the job master cannot be opened, in a job of this node alone.
    #[error("cannot open a port for the job master on 127.0.0.1")]
    Loopback(#[source] io::Error),
    /// The endpoint's.
    #[error(transparent)]
    Place(#[from] BindError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreHostError),
    /// The master.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// The topology file of the master that is served here.
    #[error(transparent)]
    Topology(master::TopologyFileError),
    /// The file for reports of the master that is served here.
    #[error(transparent)]
    TaintReport(#[from] master::TaintFileError),
    /// The web server of the master that is served here.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// TLS is on, and this launcher serves the job master without a certificate.
    #[error(
        "this launcher serves the job master at {endpoint}, which with TLS needs a certificate: give --tls-cert and \
         --tls-key (or DLROVER_TLS_CERT and DLROVER_TLS_KEY)"
    )]
    NoCertificate {
        /// Where.
        endpoint: Endpoint,
    },
}

/// What the agent needs to take part.
#[derive(Debug)]
pub struct RendezvousSetup {
    /// Where the master is.
    pub master: MasterAt,
    /// The store of the workers, should this node be the first.
    pub store: StoreHost,
    /// The master, when it is served here for others too.
    pub embedded: Option<Embedded>,
    /// The master of a job of this node alone.
    pub own: Option<OwnMaster>,
}

/// The master of a job of this node alone, in this process.
#[derive(Debug)]
pub struct OwnMaster {
    /// It ends with the job.
    pub served: JoinHandle<()>,
    /// Whether it has something to do after its node knows of the end.
    pub has_last_work: bool,
}

/// Listens at the endpoint, or finds that another process serves there.
///
/// # Errors
/// When a port cannot be opened, or what serves there cannot be started.
pub async fn set_up(plan: &mut LaunchPlan, console: &Console) -> Result<RendezvousSetup, RendezvousError> {
    let LaunchPlan { agent, rendezvous, master, local_addr, .. } = plan;
    let print_line = |line: String| console.log(Level::INFO, line);
    let Some(endpoint) = rendezvous.endpoint() else {
        return set_up_single_node(agent, local_addr.as_deref(), master, &print_line).await;
    };
    let is_one_node = agent.terms.max_nodes == 1 && matches!(rendezvous, Rendezvous::Static(_));
    let Some(place) =
        endpoint_listener::open(master.serve_master, endpoint, is_one_node, &print_line).await?
    else {
        if let Err(cut_off) = LoopbackDown::check("the workers' store (if this node serves it)") {
            print_line(cut_off.to_string());
        }
        if matches!(rendezvous, Rendezvous::Master(_)) && !master.given.is_empty() {
            let (is, options) =
                if master.given.len() == 1 { ("is", "this option") } else { ("are", "these options") };
            print_line(format!(
                "`{}` {is} ignored: another process serves the job master at {endpoint}; give {options} to that process",
                master.given.join("`, `")
            ));
        }
        if let (Some(http), false) = (&master.http, matches!(rendezvous, Rendezvous::Master(_))) {
            print_line(format!(
                "`--http={http}` is ignored: the page and metrics are served by the launcher that serves the job master \
                 at {endpoint}, which prints their address"
            ));
        }
        let Endpoint { host, port } = endpoint.clone();
        let master = MasterAt { host, port, trust: master.trust.clone() };
        return Ok(RendezvousSetup { master, store: own_store(agent, endpoint)?, embedded: None, own: None });
    };
    if agent.terms.max_nodes == 1 && master.trust.token.is_none() && !master.trust.tls.is_on() {
        // No other node takes part.
        master.trust.token.clone_from(&master.own_token);
        master.policy.is_open = false;
    }
    let tls = &master.trust.tls;
    if tls.is_on() && tls.cert.is_none() {
        return Err(RendezvousError::NoCertificate { endpoint: endpoint.clone() });
    }
    if let Some(file) = &master.topology_file {
        master::check_topology(file).map_err(RendezvousError::Topology)?;
    }
    check_taint_report(master)?;
    // A certificate names the endpoint, and not the address that it has here.
    let host = if tls.is_on() { endpoint.host.clone() } else { place.own.to_string() };
    let at = MasterAt { host, port: endpoint.port, trust: master.trust.clone() };
    if matches!(rendezvous, Rendezvous::Static(_)) {
        // The line's MASTER_ADDR is this host, so it is first unless --node-rank differs.
        agent.node_rank.get_or_insert(NodeRank(0));
    }
    if !is_one_node {
        let advice = loopback::advice(rendezvous, agent.terms.max_nodes);
        announce(endpoint, &place, (master, advice), &print_line);
    }
    let (shared, store) = match rendezvous {
        Rendezvous::Static(_) => {
            let allowed = agent.is_store_for_members.then(Allowed::default);
            let server = SharedStore::start_for(allowed.clone(), Vec::new(), StoreLimits::default());
            let server = Arc::new(server.map_err(StoreHostError::Start)?);
            let store =
                StoreHost::shared(Some(endpoint.host.clone()), endpoint.port, Arc::clone(&server), allowed);
            (Some(server), store)
        }
        Rendezvous::Loopback | Rendezvous::C10d(_) | Rendezvous::Master(_) => {
            (None, own_store(agent, endpoint)?)
        }
    };
    let http = open_http(master, &print_line)?;
    let config = config_of(master, &agent.terms, http, (!is_one_node).then_some(console));
    let embedded = embedded::start(place.listeners, shared, config)?;
    Ok(RendezvousSetup { master: at, store, embedded: Some(embedded), own: None })
}

/// A job of this node alone, with the master in this process.
async fn set_up_single_node(
    agent: &AgentConfig,
    local_addr: Option<&str>,
    master: &MasterPlan,
    print_line: &dyn Fn(String),
) -> Result<RendezvousSetup, RendezvousError> {
    LoopbackDown::check("the job master of its run").map_err(BindError::from)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(RendezvousError::Loopback)?;
    let port = listener.local_addr().map_err(RendezvousError::Loopback)?.port();
    check_taint_report(master)?;
    let http = open_http(master, print_line)?;
    // A report to write, or a page that is to show the end.
    let has_last_work = master.taints.file.is_some() || http.is_some();
    let config = config_of(master, &agent.terms, http, None);
    let served = tokio::spawn(async move {
        match master::serve(TcpListenerStream::new(listener), config).await {
            Ok(verdict) => tracing::debug!(?verdict, "the job master is done"),
            // The agent reports its broken connection.
            Err(error) => tracing::warn!(error = %chain(&error), "the job master stopped"),
        }
    });
    let (master_addr, reach) = match local_addr {
        Some(address) if !is_loopback(address) => (address.to_owned(), Reach::Anyone),
        Some(address) => (address.to_owned(), Reach::Loopback),
        None => (master_addr_of_one_node(), Reach::Loopback),
    };
    let store = store(agent, Some(master_addr), reach)?;
    let master = MasterAt { host: Ipv4Addr::LOCALHOST.to_string(), port, trust: master.trust.clone() };
    Ok(RendezvousSetup { master, store, embedded: None, own: Some(OwnMaster { served, has_last_work }) })
}

/// A store of this node's own, whose address the master fills in.
fn own_store(agent: &AgentConfig, endpoint: &Endpoint) -> Result<StoreHost, StoreHostError> {
    // Of the loopback addresses only the usual ones are listened to.
    let is_usual = |host: &str| ["localhost", "127.0.0.1", "::1"].contains(&host);
    let is_local = is_loopback(&endpoint.host) && agent.address.as_deref().is_none_or(is_usual);
    store(agent, None, if is_local { Reach::Loopback } else { Reach::Anyone })
}

fn store(
    agent: &AgentConfig,
    master_addr: Option<String>,
    reach: Reach,
) -> Result<StoreHost, StoreHostError> {
    match agent.master_port {
        MasterPort::Served => {
            // All peers of a loopback address are on this host.
            let is_for_members = agent.is_store_for_members && reach == Reach::Anyone;
            StoreHost::serve(master_addr, reach, &agent.port_choices, is_for_members.then(Allowed::default))
        }
        MasterPort::LeftToRankZero => {
            Ok(StoreHost::left_to_rank_zero(master_addr, agent.port_choices.clone()))
        }
    }
}

fn check_taint_report(master: &MasterPlan) -> Result<(), RendezvousError> {
    Ok(master.taints.file.as_deref().map_or(Ok(()), master::check_taint_report)?)
}

/// Opens the socket of `--http`, and says where the page is.
fn open_http(master: &MasterPlan, print_line: &dyn Fn(String)) -> Result<Option<Web>, RendezvousError> {
    let Some(given) = &master.http else { return Ok(None) };
    let web = Web {
        socket: master::open_http(given)?,
        token: master.http_token.clone(),
        mpi_operator: master.mpi_operator.clone(),
    };
    if let Some(announcement) = web.announcement() {
        print_line(announcement);
    }
    Ok(Some(web))
}

/// The master is for this launcher's job: nodes of another job are refused, even when they joined first.
fn config_of(
    master: &MasterPlan,
    terms: &Terms,
    http: Option<Web>,
    console: Option<&Console>,
) -> MasterConfig {
    let console = console.cloned();
    MasterConfig {
        policy: Policy { terms: Some(terms.clone()), ..master.policy.clone() },
        timeout: master.timeout,
        state_dir: master.state_dir.clone(),
        topology_file: master.topology_file.clone(),
        taints: master.taints.clone(),
        stacks: master.stacks.clone(),
        trust: master.trust.clone(),
        http,
        log: Arc::new(move |line| match (&console, line) {
            // This node prints it too when it is one of those that wait, or hang.
            (Some(_), LogLine::Pending(_) | LogLine::Hang(_)) => {}
            (Some(console), line) => {
                console.log_of_master(if line.is_warning() { Level::WARN } else { Level::INFO }, line);
            }
            // One node knows all of it already.
            (None, line) => tracing::debug!(%line, "the job master's log"),
        }),
    }
}

/// Reports that this launcher serves, and whether any host may join.
fn announce(
    endpoint: &Endpoint,
    place: &EndpointListener,
    (master, advice): (&MasterPlan, Option<&str>),
    print_line: &dyn Fn(String),
) {
    let trust = &master.trust;
    if !place.is_loopback && trust.token.is_none() && !trust.tls.is_on() {
        print_line(open_job::warning(endpoint, "DLROVER_JOB_TOKEN"));
    }
    let reach = if place.is_loopback { ", which only this host can reach" } else { "" };
    let advice = advice
        .map(|advice| format!("; nodes on other hosts need another address: {advice}"))
        .unwrap_or_default();
    print_line(format!("this launcher serves the job master at {endpoint}{reach}{advice}"));
}
