//! The addresses that workers of a round's members come from.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use master_proto::pb;
use tokio::{net::lookup_host, time::timeout};

/// How long a name server may take for one member that goes by a name.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Where members are reached, what else they have, and this host's own loopback addresses.
pub(super) async fn addresses(members: &[pb::Member]) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::from([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    for member in members {
        for text in member.addresses.iter().chain([&member.address]) {
            match text.parse::<IpAddr>() {
                Ok(address) => {
                    addresses.insert(address.to_canonical());
                }
                Err(_) => {
                    // A name that nobody knows adds nothing.
                    let found = timeout(LOOK_UP, lookup_host((text.as_str(), 0))).await;
                    let found = found.ok().and_then(Result::ok).into_iter().flatten();
                    addresses.extend(found.map(|address| address.ip().to_canonical()));
                }
            }
        }
    }
    addresses
}
