//! The port at which a node's neighbours find its probe. The agent keeps it over all rounds and never accepts; each
//! probe inherits it and does.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait while no probe runs, or a stranger's storm is turned away.
const BACKLOG: i32 = 256;

/// A port that listens.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    port: u16,
}

impl Listener {
    /// Listens at `address`, or without one at every address of the host, both families where it has them. Port 0
    /// takes any free one.
    ///
    /// # Errors
    /// When the address is not this host's, or the port is taken.
    pub fn bind(address: Option<IpAddr>, port: u16) -> io::Result<Self> {
        let socket = match address {
            Some(address) => bind(SocketAddr::new(address, port)),
            // A host without IPv6 says so here.
            None => bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
                .or_else(|_| bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))),
        }?;
        Self::from_socket(socket)
    }

    /// A socket that listens already. It must block.
    ///
    /// # Errors
    /// When the system does not tell its port.
    pub fn from_socket(socket: TcpListener) -> io::Result<Self> {
        let port = socket.local_addr()?.port();
        Ok(Self { socket, port })
    }

    /// Its port, for [`RingPlan::ports`](super::RingPlan::ports) of all members.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
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

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
