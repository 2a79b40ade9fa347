//! The addresses of the workers of a round's members.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use master_proto::pb;
use tokio::{net::lookup_host, time::timeout};

/// How long a name server may take for one member.
const LOOK_UP: Duration = Duration::from_secs(5);

/// The members' addresses, their further addresses, and this host's own loopback addresses.
pub(super) async fn addresses(members: &[pb::Member]) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::from([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    for member in members {
        for text in member.addresses.iter().chain([&member.address]) {
            match text.parse::<IpAddr>() {
                Ok(address) => {
                    addresses.insert(address.to_canonical());
                }
                Err(_) => {
                    // An unknown name adds nothing.
                    let found = timeout(LOOK_UP, lookup_host((text.as_str(), 0))).await;
                    let found = found.ok().and_then(Result::ok).into_iter().flatten();
                    addresses.extend(found.map(|address| address.ip().to_canonical()));
                }
            }
        }
    }
    addresses
}
