//! The port that the master serves on.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    ops::RangeInclusive,
};

use agent::{Reach, bind};
use tokio::net::{TcpListener, TcpSocket};

/// All nodes of a large job connect in the same moment.
const BACKLOG: u32 = 4096;

/// Where to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListenOn {
    /// `None`: all addresses, IPv4 and IPv6.
    pub(super) address: Option<String>,
    /// 0: one of `choices`, or any where there are none.
    pub(super) port: u16,
    /// `HOST_PORTS`.
    pub(super) choices: Vec<RangeInclusive<u16>>,
}

impl ListenOn {
    /// Whether every interface of this host is served.
    pub(super) fn is_everywhere(&self) -> bool {
        let is_any =
            |address: &String| address.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        self.address.as_ref().is_none_or(is_any)
    }
}

/// What keeps the master from listening.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    /// The port cannot be used, as when it is taken.
    #[error(
        "cannot listen on port {port} of {address}: {error}; {}",
        remedy(error, "free it, or choose another with --port")
    )]
    Port {
        /// `all addresses`, or --bind.
        address: String,
        /// Which one.
        port: u16,
        /// The system error.
        error: io::Error,
    },
    /// None of the ports of `HOST_PORTS` can be used.
    #[error(
        "cannot listen on any port of HOST_PORTS={} of {address}: {error}; {}",
        agent::shown_ports(choices),
        remedy(error, "free one or add more")
    )]
    Choices {
        /// `all addresses`, or --bind.
        address: String,
        /// `HOST_PORTS`.
        choices: Vec<RangeInclusive<u16>>,
        /// The system error of the last one.
        error: io::Error,
    },
}

/// What to do: another port helps where this one is taken or reserved, and not where the address is wrong.
fn remedy(error: &io::Error, of_ports: &'static str) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => of_ports,
        _ => "give --bind an address of this host",
    }
}

/// The listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) address: SocketAddr,
}

/// Listens. Must be called inside the runtime.
///
/// # Errors
/// The port is taken, or the address is not of this host.
pub(super) fn listen(on: &ListenOn) -> Result<Listener, ListenError> {
    let address = || on.address.clone().unwrap_or_else(|| "all addresses".into());
    let port = |port| one(on.address.as_deref(), port);
    if on.port != 0 || on.choices.is_empty() {
        return port(on.port).map_err(|error| ListenError::Port { address: address(), port: on.port, error });
    }
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for choice in on.choices.iter().cloned().flatten() {
        match port(choice) {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = error,
        }
    }
    Err(ListenError::Choices { address: address(), choices: on.choices.clone(), error: refused })
}

fn one(address: Option<&str>, port: u16) -> io::Result<Listener> {
    let socket = match address {
        None => {
            let listener = bind(Reach::Anyone, port)?.into_iter().next();
            let listener = listener.ok_or(io::ErrorKind::AddrNotAvailable)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)?
        }
        Some(address) => {
            let address = (address, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // A restarted master gets its port back although connections of the last one linger.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)?
        }
    };
    let address = socket.local_addr()?;
    Ok(Listener { socket, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(address: Option<&str>, port: u16, choices: &[RangeInclusive<u16>]) -> ListenOn {
        ListenOn { address: address.map(str::to_owned), port, choices: choices.to_vec() }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named_and_passed_over_among_several() {
        let taken = listen(&on(Some("127.0.0.1"), 0, &[])).unwrap();
        let port = taken.address.port();
        let refused = listen(&on(Some("127.0.0.1"), port, &[])).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "cannot listen on port {port} of 127.0.0.1: Address already in use (os error 98); free it, or choose \
                 another with --port"
            )
        );
        let refused = listen(&on(Some("127.0.0.1"), 0, &[port..=port])).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "cannot listen on any port of HOST_PORTS={port} of 127.0.0.1: Address already in use (os error 98); free one or \
                 add more"
            ),
        );
        let free = listen(&on(Some("127.0.0.1"), 0, &[])).unwrap().address.port();
        let chosen = listen(&on(Some("127.0.0.1"), 0, &[port..=port, free..=free])).unwrap();
        assert_eq!(chosen.address.port(), free);
    }

    #[tokio::test]
    async fn all_addresses_are_both_families() {
        let listener = listen(&on(None, 0, &[])).unwrap();
        std::net::TcpStream::connect(("127.0.0.1", listener.address.port())).unwrap();
    }
}
