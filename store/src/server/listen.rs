//! Listening sockets for the store.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use socket2::{Domain, Protocol, Socket, Type};

/// All ranks of a large job connect at the same moment; with 128, tokio's default, some were reset.
pub(super) const BACKLOG: i32 = 4096;

/// How often another free port is tried when the one of IPv4 is taken on IPv6.
const TRIES: usize = 64;

/// Listens on `port` of the loopback addresses only: 127.0.0.1 and, if available, `[::1]`. Port 0 is any port that is
/// free on both.
///
/// # Errors
/// The port is taken, or there is no socket.
pub fn bind_loopback(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut tries = 0;
    loop {
        let v4 = bind_at(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, v4.local_addr()?.port()));
        tries += 1;
        match bind_at(v6) {
            Ok(v6) => return Ok(vec![v4, v6]),
            Err(error) if is_no_ipv6(&error) => return Ok(vec![v4]),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port == 0 && tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Listens on `port` of all addresses, IPv4 and IPv6 in one socket if the host has both. Port 0 is any.
///
/// # Errors
/// The port is taken, or there is no socket.
pub fn bind_any(port: u16) -> io::Result<Vec<TcpListener>> {
    let listener = match bind_at(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if is_no_ipv6(&error) => bind_at(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?,
        outcome => outcome?,
    };
    Ok(vec![listener])
}

/// Listens at this address.
///
/// # Errors
/// The port is taken, the address is not this host's, or there is no socket.
pub fn bind_at(address: SocketAddr) -> io::Result<TcpListener> {
    // socket2 sets close-on-exec: no worker inherits it.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted launcher gets its port back although connections of the last one linger in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if let SocketAddr::V6(v6) = address {
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// No IPv6 in the kernel, or none configured on the interface.
fn is_no_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// Linux, all architectures.
const EAFNOSUPPORT: i32 = 97;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_listeners_share_one_port() {
        let listeners = bind_loopback(0).unwrap();
        let addresses: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        assert!(addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(addresses.iter().all(|address| address.port() == addresses[0].port()));
        assert!(addresses[0].is_ipv4());
    }

    #[test]
    fn a_taken_port_is_an_error() {
        let taken = bind_any(0).unwrap();
        let port = taken[0].local_addr().unwrap().port();
        assert_eq!(bind_any(port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(bind_loopback(port).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_listener_on_all_interfaces_takes_ipv4() {
        let listeners = bind_any(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
