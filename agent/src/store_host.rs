//! The store that workers of a round meet at: served by this launcher, or left to rank 0.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    sync::Arc,
};

use socket2::{Domain, Protocol, Socket, Type};
pub use store::{Allowed, Limits as StoreLimits, StoreServer as SharedStore, bind_at};
use store::{Limits, StoreServer, bind_any, bind_loopback};

/// The hosts that may reach the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Workers on this host only.
    Loopback,
    /// Workers on any host.
    Anyone,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreHostError {
    /// No port of the allowed ones is free.
    #[error(
        "no port of HOST_PORTS={} is free for the workers' store; free one or add more",
        shown_ports(choices)
    )]
    NoPort {
        choices: Vec<RangeInclusive<u16>>,
        /// The error of the last one.
        #[source]
        source: io::Error,
    },
    /// The system has no free port.
    #[error("cannot open a port for the workers' store")]
    Bind(#[source] io::Error),
    /// The server did not start.
    #[error("cannot start the workers' store")]
    Start(#[source] io::Error),
}

/// The ports as `HOST_PORTS` names them: `20000,20010-20012`.
#[must_use]
pub fn shown_ports(choices: &[RangeInclusive<u16>]) -> String {
    let one = |range: &RangeInclusive<u16>| {
        if range.start() == range.end() {
            range.start().to_string()
        } else {
            format!("{}-{}", range.start(), range.end())
        }
    };
    choices.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Where `MASTER_ADDR` and `MASTER_PORT` come from when this node is group rank 0.
#[derive(Debug)]
pub struct StoreHost {
    master_addr: Option<String>,
    /// Set when the members of a round are known.
    allowed: Option<Allowed>,
    kind: Kind,
}

/// A store that is ready for a round.
#[derive(Debug)]
pub struct OpenedStore {
    /// `MASTER_ADDR`, unless the master determines it.
    pub master_addr: Option<String>,
    pub master_port: u16,
    /// The server, if it is a new one.
    pub new_server: Option<Arc<StoreServer>>,
}

/// How the port is chosen.
#[derive(Debug, Clone)]
struct Choice {
    allowed: Option<Allowed>,
    reach: Reach,
    ports: Vec<RangeInclusive<u16>>,
}

#[derive(Debug)]
enum Kind {
    /// Without a choice the port is given and never changes.
    Served {
        server: Arc<StoreServer>,
        port: u16,
        choice: Option<Choice>,
        used: bool,
    },
    LeftToRankZero {
        choices: Vec<RangeInclusive<u16>>,
        held: Option<Socket>,
    },
}

impl StoreHost {
    /// Binds a port now and serves the store on it for as long as the launcher lives.
    ///
    /// # Errors
    /// When no allowed port is free.
    pub fn serve(
        master_addr: Option<String>,
        reach: Reach,
        choices: &[RangeInclusive<u16>],
        allowed: Option<Allowed>,
    ) -> Result<Self, StoreHostError> {
        let choice = Choice { allowed: allowed.clone(), reach, ports: choices.to_vec() };
        let (server, port) = launch(&choice)?;
        let kind = Kind::Served { server, port, choice: Some(choice), used: false };
        Ok(Self { master_addr, allowed, kind })
    }

    /// Uses a store that gets its connections from elsewhere, accepted at `port`.
    #[must_use]
    pub fn shared(
        master_addr: Option<String>,
        port: u16,
        server: Arc<StoreServer>,
        allowed: Option<Allowed>,
    ) -> Self {
        Self { master_addr, allowed, kind: Kind::Served { server, port, choice: None, used: false } }
    }

    /// Rank 0 serves; each round gets a free port that is reserved for it.
    #[must_use]
    pub fn left_to_rank_zero(master_addr: Option<String>, choices: Vec<RangeInclusive<u16>>) -> Self {
        Self { master_addr, allowed: None, kind: Kind::LeftToRankZero { choices, held: None } }
    }

    /// The addresses that may connect, if they are restricted.
    #[must_use]
    pub fn allowed(&self) -> Option<Allowed> {
        self.allowed.clone()
    }

    /// The store, when this launcher serves it.
    #[must_use]
    pub fn server(&self) -> Option<&Arc<StoreServer>> {
        match &self.kind {
            Kind::Served { server, .. } => Some(server),
            Kind::LeftToRankZero { .. } => None,
        }
    }

    /// `MASTER_PORT`, when this launcher serves the store.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match &self.kind {
            Kind::Served { port, .. } => Some(*port),
            Kind::LeftToRankZero { .. } => None,
        }
    }

    /// Makes the store ready and empty for a round; with `fresh_port` on another port if it can be chosen, since
    /// workers of a lost node may still send to the old one.
    ///
    /// # Errors
    /// When no allowed port is free.
    pub async fn open(&mut self, fresh_port: bool) -> Result<OpenedStore, StoreHostError> {
        if let Some(allowed) = &self.allowed {
            allowed.forget();
        }
        let mut new_server = None;
        let master_port = match &mut self.kind {
            Kind::Served { server, port, choice: Some(choice), used: true } if fresh_port => {
                (*server, *port) = launch(choice)?;
                server.ready().map_err(StoreHostError::Start)?;
                new_server = Some(Arc::clone(server));
                *port
            }
            Kind::Served { server, port, used, .. } => {
                if std::mem::replace(used, true) {
                    server.begin_generation_async().await;
                } else {
                    // Its thread was started early enough to be ready by now.
                    server.ready().map_err(StoreHostError::Start)?;
                }
                *port
            }
            Kind::LeftToRankZero { choices, held } => {
                *held = None;
                let socket = first_free(choices, hold)?;
                let port = port_of(&socket).map_err(StoreHostError::Bind)?;
                *held = Some(socket);
                port
            }
        };
        Ok(OpenedStore { master_addr: self.master_addr.clone(), master_port, new_server })
    }
}

/// A server on the first port that is free.
fn launch(choice: &Choice) -> Result<(Arc<StoreServer>, u16), StoreHostError> {
    let listeners = first_free(&choice.ports, |port| bind(choice.reach, port))?;
    let port = listeners
        .first()
        .ok_or_else(|| StoreHostError::Bind(io::ErrorKind::AddrNotAvailable.into()))?
        .local_addr()
        .map_err(StoreHostError::Bind)?
        .port();
    let server = StoreServer::launch_for(choice.allowed.clone(), listeners, Limits::default())
        .map_err(StoreHostError::Start)?;
    Ok((Arc::new(server), port))
}

/// Listens on a port; 0 is any free one.
///
/// # Errors
/// When the port is taken, or there is no socket.
pub fn bind(reach: Reach, port: u16) -> io::Result<Vec<TcpListener>> {
    match reach {
        Reach::Loopback => bind_loopback(port),
        Reach::Anyone => bind_any(port),
    }
}

fn first_free<T>(
    choices: &[RangeInclusive<u16>],
    bind: impl Fn(u16) -> io::Result<T>,
) -> Result<T, StoreHostError> {
    if choices.is_empty() {
        return bind(0).map_err(StoreHostError::Bind);
    }
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for port in choices.iter().flat_map(Clone::clone) {
        match bind(port) {
            Ok(bound) => return Ok(bound),
            Err(error) => refused = error,
        }
    }
    Err(StoreHostError::NoPort { choices: choices.to_vec(), source: refused })
}

/// Binds without listening: the port is not given to another process, and rank 0 can still bind it, because both
/// sides set SO_REUSEADDR and only one listens.
fn hold(port: u16) -> io::Result<Socket> {
    let address = |v6: bool| -> SocketAddr {
        if v6 { (Ipv6Addr::UNSPECIFIED, port).into() } else { (Ipv4Addr::UNSPECIFIED, port).into() }
    };
    let bind = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    bind(address(true)).or_else(|_: io::Error| bind(address(false)))
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    address.map(|address| address.port()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_served_port_stays_the_same_over_rounds_unless_a_node_was_lost() {
        let mut host = StoreHost::serve(Some("localhost".into()), Reach::Loopback, &[], None).unwrap();
        let mut open = |fresh_port| run(host.open(fresh_port)).unwrap();
        let first = open(false).master_port;
        assert_ne!(first, 0);
        assert_eq!(open(false).master_port, first);
        let moved = open(true);
        assert!(moved.new_server.is_some() && moved.master_port != first, "a lost node knows the old one");
    }

    #[test]
    fn a_taken_port_is_skipped_and_no_free_one_is_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error =
            StoreHost::serve(Some("localhost".into()), Reach::Loopback, &[port..=port], None).unwrap_err();
        assert!(error.to_string().starts_with(&format!("no port of HOST_PORTS={port} is free")), "{error}");
    }

    #[test]
    fn a_held_port_can_be_bound_by_rank_zero() {
        let mut host = StoreHost::left_to_rank_zero(Some("localhost".into()), Vec::new());
        let port = run(host.open(false)).unwrap().master_port;
        // std sets SO_REUSEADDR on listeners, as torch does.
        TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))).unwrap();
    }
}
