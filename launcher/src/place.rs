//! The place of a meeting: whether this launcher serves the job master there. It does only where the endpoint is an
//! address of its own and the port is free: on one host the first to bind wins.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket},
    thread,
    time::Duration,
};

use agent::{Reach, bind, bind_at, interface_addresses, loopback_that_is_down};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    endpoint::{Endpoint, is_loopback},
    resolve::Serves,
};

/// How long a name server may take to tell whether a name is ours.
const LOOK_UP: Duration = Duration::from_secs(5);

/// How soon a name that is not known is asked for again. A pod's own name may become known just now.
const AGAIN: Duration = Duration::from_millis(500);

/// A place that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CannotTake {
    /// Its port.
    #[error(
        "cannot open {endpoint} for the job master of this run; free the port, or choose another on every node"
    )]
    Open {
        /// What was asked for.
        endpoint: Endpoint,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The way to it.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}

/// This host does not reach itself.
#[derive(Debug, thiserror::Error)]
#[error(
    "the loopback interface `{loopback}` is down, so this node cannot reach {at}, which is on this host: the kernel \
     sends all that a host says to its own addresses over it; run `ip link set {loopback} up`"
)]
pub struct CutOff {
    loopback: String,
    at: String,
}

impl CutOff {
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

/// What this launcher listens on.
#[derive(Debug)]
pub struct Place {
    /// At least one.
    pub listeners: Vec<TcpListener>,
    /// The address by which this host's own agent shall come: others see it by the same one.
    pub own: IpAddr,
    /// Only this host reaches it.
    pub is_loopback: bool,
}

/// Takes the place, if it is this launcher's; `None`: somebody else serves. Of one node no name server is asked.
///
/// # Errors
/// When the port cannot be opened, or is taken where it must not be, or this host does not reach itself.
pub async fn take(
    serves: Serves,
    endpoint: &Endpoint,
    is_one_node: bool,
    tell: &dyn Fn(String),
) -> Result<Option<Place>, CannotTake> {
    let found = match serves {
        Serves::Never => {
            if is_here(&endpoint.host) {
                CutOff::check(endpoint)?;
            }
            return Ok(None);
        }
        Serves::Must if is_one_node => endpoint.host.parse().into_iter().collect(),
        Serves::Must | Serves::Unless | Serves::IfOwn => {
            let is_patient = serves == Serves::IfOwn;
            look_up(&endpoint.host, is_patient).await.unwrap_or_else(|why| {
                let then = match serves {
                    Serves::IfOwn => "another node is taken to serve the job master there",
                    Serves::Must | Serves::Unless | Serves::Never => {
                        "the job master is served on all addresses of this host"
                    }
                };
                tell(format!("{}: {why}; {then}", endpoint.host));
                Vec::new()
            })
        }
    };
    let whereabouts = Whereabouts::of(&endpoint.host, &found, &interface_addresses().into_iter().collect());
    if serves != Serves::IfOwn || whereabouts != Whereabouts::Elsewhere {
        CutOff::check(endpoint)?;
    }
    let place = match whereabouts {
        Whereabouts::Elsewhere if serves == Serves::IfOwn => return Ok(None),
        Whereabouts::Elsewhere | Whereabouts::EveryAddress => {
            bind(Reach::Anyone, endpoint.port).map(|listeners| Place {
                own: found
                    .first()
                    .and_then(|there| source_towards(*there))
                    .unwrap_or(Ipv4Addr::LOCALHOST.into()),
                is_loopback: false,
                listeners,
            })
        }
        Whereabouts::Loopback => bind(Reach::Loopback, endpoint.port).map(|listeners| Place {
            own: listeners
                .first()
                .and_then(|first| first.local_addr().ok())
                .map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip()),
            is_loopback: true,
            listeners,
        }),
        Whereabouts::Exactly(addresses) => exactly(&addresses, endpoint.port),
    };
    match place {
        Ok(place) => Ok(Some(place)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && serves != Serves::Must => {
            if serves == Serves::Unless {
                tell(format!("{endpoint} is taken on this host, so this node joins the job master there"));
            }
            Ok(None)
        }
        Err(source) => Err(CannotTake::Open { endpoint: endpoint.clone(), source }),
    }
}

/// Whether a host that is written as an address, or as `localhost`, is this one.
fn is_here(host: &str) -> bool {
    host.parse::<IpAddr>().map_or_else(
        |_| host.eq_ignore_ascii_case("localhost"),
        |address| address.is_loopback() || interface_addresses().contains(&address),
    )
}

/// Where an endpoint is, seen from this host.
#[derive(Debug, PartialEq, Eq)]
enum Whereabouts {
    /// At none of our addresses.
    Elsewhere,
    /// `localhost`: both loopback addresses, as nobody knows which one workers will try.
    Loopback,
    /// At these.
    Exactly(Vec<IpAddr>),
    /// Here, by a name that stands for a loopback address here and for another one on every other host, as
    /// `/etc/hosts` has it on Debian.
    EveryAddress,
}

impl Whereabouts {
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

/// Listens on each of these addresses; whoever has the first one has the place.
fn exactly(addresses: &[IpAddr], port: u16) -> io::Result<Place> {
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
    Ok(Place { listeners, own, is_loopback: own.is_loopback() })
}

/// The addresses that a name stands for. A name server may hang, so it is asked beside.
async fn look_up(host: &str, is_patient: bool) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    let until = Instant::now() + LOOK_UP;
    loop {
        let (answer, answered) = oneshot::channel();
        let name = host.to_owned();
        let asker = thread::Builder::new().name("look-up".into()).stack_size(256 << 10).spawn(move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            let _too_late =
                answer.send(found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>()));
        });
        if let Err(error) = asker {
            return Err(format!("cannot be looked up: {error}"));
        }
        match timeout_at(until, answered).await {
            Ok(Ok(Ok(found))) if !found.is_empty() => return Ok(found),
            Ok(answer) if !is_patient || Instant::now() + AGAIN >= until => {
                let why = match answer {
                    Ok(Err(error)) => error.to_string(),
                    Ok(Ok(_)) | Err(_) => "no address".to_owned(),
                };
                return Err(format!("cannot be looked up ({why})"));
            }
            Ok(_) => sleep(AGAIN).await,
            Err(_) => return Err(format!("no answer from the name server within {} s", LOOK_UP.as_secs())),
        }
    }
}

/// The address that words of this host to that one come from. Nothing is sent.
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

    fn whereabouts(host: &str, found: &[&str]) -> Whereabouts {
        let found: Vec<IpAddr> = found.iter().map(|text| ip(text)).collect();
        Whereabouts::of(host, &found, &BTreeSet::from([ip("127.0.0.1"), ip("10.0.0.5"), ip("fd00::5")]))
    }

    #[test]
    fn only_an_own_address_is_served_and_exactly_that() {
        assert_eq!(whereabouts("10.0.0.5", &["10.0.0.5"]), Whereabouts::Exactly(vec![ip("10.0.0.5")]));
        assert_eq!(whereabouts("10.0.0.6", &["10.0.0.6"]), Whereabouts::Elsewhere);
        assert_eq!(whereabouts("127.0.0.2", &["127.0.0.2"]), Whereabouts::Exactly(vec![ip("127.0.0.2")]));
        assert_eq!(whereabouts("localhost", &[]), Whereabouts::Loopback);
        let both = whereabouts("node-7", &["fd00::5", "10.0.0.5", "10.0.0.5", "127.0.1.1"]);
        assert_eq!(both, Whereabouts::Exactly(vec![ip("10.0.0.5"), ip("fd00::5")]));
        assert_eq!(whereabouts("service", &["10.96.0.1"]), Whereabouts::Elsewhere);
        assert_eq!(whereabouts("unknown", &[]), Whereabouts::Elsewhere);
    }

    #[test]
    fn a_name_that_is_a_loopback_address_here_is_another_one_elsewhere() {
        assert_eq!(whereabouts("node-7", &["127.0.1.1"]), Whereabouts::EveryAddress);
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
        let first = take(Serves::IfOwn, &here, false, &silent).await.unwrap().unwrap();
        assert_eq!((first.own, first.is_loopback), (ip("127.0.0.1"), true));
        assert!(take(Serves::IfOwn, &here, false, &silent).await.unwrap().is_none());
        let must = take(Serves::Must, &here, false, &silent).await.unwrap_err();
        assert!(must.to_string().contains(&here.to_string()), "{must}");
        let told = std::cell::RefCell::new(Vec::new());
        let second = take(Serves::Unless, &here, false, &|line| told.borrow_mut().push(line)).await.unwrap();
        assert!(second.is_none());
        assert!(told.borrow()[0].contains("is taken on this host"), "{told:?}");
    }

    #[tokio::test]
    async fn hundreds_of_nodes_may_come_in_one_moment() {
        let here = endpoint("127.0.0.1", free_port());
        let _place = take(Serves::IfOwn, &here, false, &|line| panic!("{line}")).await.unwrap().unwrap();
        let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: usize = somaxconn.trim().parse().unwrap();
        let address = SocketAddr::new(ip("127.0.0.1"), here.port);
        // None is accepted: all of them wait in the kernel.
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(20)).unwrap();
        let waiting: Vec<_> = (0..most.min(300)).map(connect).collect();
        assert!(!waiting.is_empty());
    }

    #[tokio::test]
    async fn what_is_not_ours_is_left_to_others_but_where_we_are_told_to_serve() {
        let silent = |line: String| panic!("{line}");
        let there = endpoint("192.0.2.1", free_port());
        assert!(take(Serves::IfOwn, &there, false, &silent).await.unwrap().is_none());
        assert!(take(Serves::Never, &there, false, &silent).await.unwrap().is_none());
        let place = take(Serves::Must, &there, false, &silent).await.unwrap().unwrap();
        assert!(!place.is_loopback);
    }

    #[tokio::test]
    async fn one_node_asks_no_name_server() {
        let named = endpoint("no-such-name.invalid", free_port());
        let place = take(Serves::Must, &named, true, &|line| panic!("{line}")).await.unwrap().unwrap();
        assert!(!place.listeners.is_empty());
    }
}
