//! Attributes of this machine, for the master and for messages.

use std::{fs, net::IpAddr};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use processes::host_name;
use rules::node::NodeAttributes;

/// The kernel's random id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Adds what is read from the machine. What cannot be read stays empty: no run fails for it.
#[must_use]
pub fn gather(known: NodeAttributes) -> NodeAttributes {
    NodeAttributes {
        host_name: host_name(),
        addresses: addresses(),
        boot_id: fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).unwrap_or_default(),
        ..known
    }
}

/// Addresses that other hosts can reach: no loopback, no link-local ones. IPv4 first.
fn addresses() -> Vec<String> {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = interface_addresses()
        .into_iter()
        .filter(|address| match address {
            IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        })
        .partition(IpAddr::is_ipv4);
    v4.into_iter().chain(v6).map(|address| address.to_string()).collect()
}

/// All addresses of this host's interfaces; empty if they cannot be listed.
#[must_use]
pub fn interface_addresses() -> Vec<IpAddr> {
    let found = getifaddrs().into_iter().flatten().filter_map(|interface| interface.address);
    let ip = found.filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    ip.collect()
}

/// The loopback interface, if it is down. Then this host reaches none of its own addresses, since the kernel routes
/// all of them over loopback.
#[must_use]
pub fn loopback_that_is_down() -> Option<String> {
    let mut down = None;
    for interface in getifaddrs().into_iter().flatten() {
        if !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        if interface.flags.contains(InterfaceFlags::IFF_UP) {
            return None;
        }
        down = Some(interface.interface_name);
    }
    down
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_loopback_address_is_offered_to_others() {
        let attributes = gather(NodeAttributes { pod_name: Some("p".into()), ..NodeAttributes::default() });
        assert!(attributes.addresses.iter().all(|address| !address.starts_with("127.")), "{attributes:?}");
        assert_eq!(attributes.pod_name.as_deref(), Some("p"));
        assert!(!attributes.host_name.is_empty());
    }
}
