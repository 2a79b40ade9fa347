//! The port at which a node's peers reach its probe. The agent keeps it over all rounds and never accepts; each probe
//! inherits it and does.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait while no probe runs, or while unknown peers are rejected.
const BACKLOG: i32 = 256;

/// A listening port.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    port: u16,
}

impl Listener {
    /// Listens at `address`, or without one at all addresses of the host, in both families if it has them. Port 0
    /// takes any free one.
    ///
    /// # Errors
    /// When the address is not this host's, or the port is taken.
    pub fn bind(address: Option<IpAddr>, port: u16) -> io::Result<Self> {
        let socket = match address {
            Some(address) => bind(SocketAddr::new(address, port)),
            // A host without IPv6 fails here.
            None => bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
                .or_else(|_| bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))),
        }?;
        Self::from_socket(socket)
    }

    /// Wraps a socket that listens. It must be blocking.
    ///
    /// # Errors
    /// When the system does not return its port.
    pub fn from_socket(socket: TcpListener) -> io::Result<Self> {
        let port = socket.local_addr()?.port();
        Ok(Self { socket, port })
    }

    /// Its port, for [`RingPlan::ports`](crate::RingPlan::ports) of all members.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// The error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn try_clone(&self) -> io::Result<TcpListener> {
        self.socket.try_clone()
    }
}

/// A port that is reserved for a program on this host: it is not given to another process, and connections are
/// refused meanwhile. The program must set `SO_REUSEADDR`, as servers do.
#[derive(Debug)]
pub struct Reservation {
    _socket: Socket,
    port: u16,
}

impl Reservation {
    /// Reserves any free port.
    ///
    /// # Errors
    /// When there is none.
    pub fn new() -> io::Result<Self> {
        let any = |ip: IpAddr| bound(SocketAddr::new(ip, 0));
        let socket = any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(Ipv4Addr::UNSPECIFIED.into()))?;
        let address = socket.local_addr()?.as_socket();
        let port = address
            .map(|address| address.port())
            .ok_or_else(|| io::Error::other("the socket has no port"))?;
        Ok(Self { _socket: socket, port })
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(address)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A bound socket that does not listen.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
