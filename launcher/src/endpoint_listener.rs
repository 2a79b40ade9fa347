//! Listens at the endpoint of a rendezvous, if this launcher serves the job master there: only where the endpoint is an
//! address of this host and the port is free. On one host the first to bind wins.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket},
    time::Duration,
};

use agent::{Reach, bind, bind_at, interface_addresses, loopback_that_is_down};
use processes::run_blocking;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    endpoint::{Endpoint, is_loopback},
    resolve::ServeMaster,
};

/// The timeout of a name server.
const LOOK_UP: Duration = Duration::from_secs(5);

/// How soon an unknown name is looked up again. A pod's own name may be registered at this time.
const AGAIN: Duration = Duration::from_millis(500);

/// Why this launcher cannot listen there.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The port of the endpoint cannot be opened.
    #[error(
        "cannot open {endpoint} for the job master of this run: {error}; free the port, or choose another on every node"
    )]
    Open {
        /// The endpoint.
        endpoint: Endpoint,
        /// The system error.
        error: io::Error,
    },
    /// Its network.
    #[error(transparent)]
    LoopbackDown(#[from] LoopbackDown),
}

/// The loopback interface is down, so this host does not reach itself.
#[derive(Debug, thiserror::Error)]
#[error(
    "the loopback interface `{loopback}` is down, so this node cannot reach {at} on this host: the kernel \
     routes all traffic of a host to its own addresses over it; run `ip link set {loopback} up`"
)]
pub struct LoopbackDown {
    loopback: String,
    at: String,
}

impl LoopbackDown {
    /// An error if this host cannot reach itself, where this is.
    ///
    /// # Errors
    /// When its loopback interface is down.
    pub fn check(at: impl ToString) -> Result<(), Self> {
        match loopback_that_is_down() {
            Some(loopback) => Err(Self { loopback, at: at.to_string() }),
            None => Ok(()),
        }
    }
}

/// The open listeners of an endpoint.
#[derive(Debug)]
pub struct EndpointListener {
    /// At least one.
    pub listeners: Vec<TcpListener>,
    /// The address by which this host's own agent connects, so that it is seen as other nodes are.
    pub own: IpAddr,
    /// Only this host reaches it.
    pub is_loopback: bool,
}

/// Listens at the endpoint, if it is this launcher's; `None`: another process serves there. A job of one node asks no
/// name server.
///
/// # Errors
/// When the port cannot be opened, or is taken where it must not be, or this host does not reach itself.
pub async fn open(
    serve_master: ServeMaster,
    endpoint: &Endpoint,
    is_one_node: bool,
    print_line: &dyn Fn(String),
) -> Result<Option<EndpointListener>, BindError> {
    let found = match serve_master {
        ServeMaster::Never => {
            if is_this_host(&endpoint.host) {
                LoopbackDown::check(endpoint)?;
            }
            return Ok(None);
        }
        ServeMaster::Always if is_one_node => endpoint.host.parse().into_iter().collect(),
        ServeMaster::Always | ServeMaster::UnlessServed | ServeMaster::IfLocal => {
            let retries = serve_master == ServeMaster::IfLocal;
            look_up(&endpoint.host, retries).await.unwrap_or_else(|why| {
                let then = match serve_master {
                    ServeMaster::IfLocal => "this launcher does not serve the job master",
                    ServeMaster::Always | ServeMaster::UnlessServed | ServeMaster::Never => {
                        "the job master is served on all addresses of this host"
                    }
                };
                print_line(format!("{}: {why}; {then}", endpoint.host));
                Vec::new()
            })
        }
    };
    let location = Location::of(&endpoint.host, &found, &interface_addresses().into_iter().collect());
    if serve_master != ServeMaster::IfLocal || location != Location::Elsewhere {
        LoopbackDown::check(endpoint)?;
    }
    let place = match location {
        Location::Elsewhere if serve_master == ServeMaster::IfLocal => return Ok(None),
        Location::Elsewhere | Location::EveryAddress => {
            bind(Reach::Anyone, endpoint.port).map(|listeners| EndpointListener {
                own: found
                    .first()
                    .and_then(|there| source_towards(*there))
                    .unwrap_or(Ipv4Addr::LOCALHOST.into()),
                is_loopback: false,
                listeners,
            })
        }
        Location::Loopback => bind(Reach::Loopback, endpoint.port).map(|listeners| EndpointListener {
            own: listeners
                .first()
                .and_then(|first| first.local_addr().ok())
                .map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip()),
            is_loopback: true,
            listeners,
        }),
        Location::Exactly(addresses) => exactly(&addresses, endpoint.port),
    };
    match place {
        Ok(place) => Ok(Some(place)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && serve_master != ServeMaster::Always => {
            if serve_master == ServeMaster::UnlessServed {
                print_line(format!(
                    "{endpoint} is taken on this host, so this node connects to the job master there"
                ));
            }
            Ok(None)
        }
        Err(error) => Err(BindError::Open { endpoint: endpoint.clone(), error }),
    }
}

/// Whether a host that is written as an address, or as `localhost`, is this one.
pub(crate) fn is_this_host(host: &str) -> bool {
    host.parse::<IpAddr>().map_or_else(
        |_| host.eq_ignore_ascii_case("localhost"),
        |address| address.is_loopback() || interface_addresses().contains(&address),
    )
}

/// Where an endpoint is, seen from this host.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    /// At none of our addresses.
    Elsewhere,
    /// `localhost`: both loopback addresses, since workers may try either.
    Loopback,
    /// At these.
    Exactly(Vec<IpAddr>),
    /// Here, by a name that is a loopback address here and another address on every other host, as
    /// `/etc/hosts` has it on Debian.
    EveryAddress,
}

impl Location {
    fn of(host: &str, found: &[IpAddr], own: &BTreeSet<IpAddr>) -> Self {
        if host.eq_ignore_ascii_case("localhost") {
            return Self::Loopback;
        }
        let here: BTreeSet<IpAddr> =
            found.iter().copied().filter(|address| address.is_loopback() || own.contains(address)).collect();
        let (loopback, reachable): (Vec<_>, Vec<_>) =
            here.into_iter().partition(|address| address.is_loopback());
        match (reachable.is_empty(), loopback.is_empty()) {
            (false, _) => Self::Exactly(reachable),
            (true, false) if is_loopback(host) => Self::Exactly(loopback),
            (true, false) => Self::EveryAddress,
            (true, true) => Self::Elsewhere,
        }
    }
}

/// Listens on each of these addresses; the first one decides.
fn exactly(addresses: &[IpAddr], port: u16) -> io::Result<EndpointListener> {
    let mut listeners = Vec::new();
    let mut own = None;
    for address in addresses {
        match bind_at(SocketAddr::new(*address, port)) {
            Ok(listener) => {
                own.get_or_insert(*address);
                listeners.push(listener);
            }
            Err(error) if listeners.is_empty() => return Err(error),
            // An address that is configured and cannot be used, such as IPv6 switched off.
            Err(_) => {}
        }
    }
    let own = own.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(EndpointListener { listeners, own, is_loopback: own.is_loopback() })
}

/// Looks up the addresses of a name. A name server may hang, so a thread asks it.
async fn look_up(host: &str, retries: bool) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    let until = Instant::now() + LOOK_UP;
    loop {
        let name = host.to_owned();
        let asking = run_blocking(move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())
        });
        match timeout_at(until, asking).await {
            Ok(Err(error)) => return Err(format!("cannot be resolved: {error}")),
            Ok(Ok(Ok(found))) if !found.is_empty() => return Ok(found),
            Ok(Ok(answer)) if !retries || Instant::now() + AGAIN >= until => {
                let why = match answer {
                    Err(error) => error.to_string(),
                    Ok(_) => "no address".to_owned(),
                };
                return Err(format!("cannot be resolved ({why})"));
            }
            Ok(Ok(_)) => sleep(AGAIN).await,
            Err(_) => return Err(format!("name resolution timed out after {} s", LOOK_UP.as_secs())),
        }
    }
}

/// The source address of packets from this host to that one. Nothing is sent.
fn source_towards(there: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // The port means nothing: no datagram is sent.
    socket.connect((there, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn location(host: &str, found: &[&str]) -> Location {
        let found: Vec<IpAddr> = found.iter().map(|text| ip(text)).collect();
        Location::of(host, &found, &BTreeSet::from([ip("127.0.0.1"), ip("10.0.0.5"), ip("fd00::5")]))
    }

    #[test]
    fn only_addresses_of_this_host_are_served() {
        assert_eq!(location("10.0.0.5", &["10.0.0.5"]), Location::Exactly(vec![ip("10.0.0.5")]));
        assert_eq!(location("10.0.0.6", &["10.0.0.6"]), Location::Elsewhere);
        assert_eq!(location("127.0.0.2", &["127.0.0.2"]), Location::Exactly(vec![ip("127.0.0.2")]));
        assert_eq!(location("localhost", &[]), Location::Loopback);
        let both = location("node-7", &["fd00::5", "10.0.0.5", "10.0.0.5", "127.0.1.1"]);
        assert_eq!(both, Location::Exactly(vec![ip("10.0.0.5"), ip("fd00::5")]));
        assert_eq!(location("service", &["10.96.0.1"]), Location::Elsewhere);
        assert_eq!(location("unknown", &[]), Location::Elsewhere);
    }

    #[test]
    fn a_name_of_a_loopback_address_here_differs_on_other_hosts() {
        assert_eq!(location("node-7", &["127.0.1.1"]), Location::EveryAddress);
    }

    fn endpoint(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    fn free_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn on_one_host_the_first_to_bind_wins() {
        let here = endpoint("127.0.0.1", free_port());
        let silent = |line: String| panic!("{line}");
        let first = open(ServeMaster::IfLocal, &here, false, &silent).await.unwrap().unwrap();
        assert_eq!((first.own, first.is_loopback), (ip("127.0.0.1"), true));
        assert!(open(ServeMaster::IfLocal, &here, false, &silent).await.unwrap().is_none());
        let must = open(ServeMaster::Always, &here, false, &silent).await.unwrap_err();
        assert!(must.to_string().contains(&here.to_string()), "{must}");
        let told = std::cell::RefCell::new(Vec::new());
        let second = open(ServeMaster::UnlessServed, &here, false, &|line| told.borrow_mut().push(line))
            .await
            .unwrap();
        assert!(second.is_none());
        assert!(told.borrow()[0].contains("is taken on this host"), "{told:?}");
    }

    #[tokio::test]
    async fn hundreds_of_nodes_may_connect_at_once() {
        let here = endpoint("127.0.0.1", free_port());
        let _place =
            open(ServeMaster::IfLocal, &here, false, &|line| panic!("{line}")).await.unwrap().unwrap();
        let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: usize = somaxconn.trim().parse().unwrap();
        let address = SocketAddr::new(ip("127.0.0.1"), here.port);
        // None is accepted: all of them wait in the kernel.
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(20)).unwrap();
        let waiting: Vec<_> = (0..most.min(300)).map(connect).collect();
        assert!(!waiting.is_empty());
    }

    #[tokio::test]
    async fn a_foreign_address_is_left_to_others_unless_this_launcher_must_serve() {
        let silent = |line: String| panic!("{line}");
        let there = endpoint("192.0.2.1", free_port());
        assert!(open(ServeMaster::IfLocal, &there, false, &silent).await.unwrap().is_none());
        assert!(open(ServeMaster::Never, &there, false, &silent).await.unwrap().is_none());
        let place = open(ServeMaster::Always, &there, false, &silent).await.unwrap().unwrap();
        assert!(!place.is_loopback);
    }

    #[tokio::test]
    async fn one_node_asks_no_name_server() {
        let named = endpoint("no-such-name.invalid", free_port());
        let place = open(ServeMaster::Always, &named, true, &|line| panic!("{line}")).await.unwrap().unwrap();
        assert!(!place.listeners.is_empty());
    }
}
