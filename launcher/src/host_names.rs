//! This host's names, without a name server: a lookup may take seconds and delay the start.

use std::fs;

use processes::host_name;

/// `MASTER_ADDR` when all workers are on this host: what torchrun gives where `/etc/hosts` knows `localhost`,
/// else its number, which needs no lookup.
#[must_use]
pub fn master_addr_of_one_node() -> String {
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    let known = entries(&hosts)
        .any(|(address, names)| address == "127.0.0.1" && names.clone().any(|name| name == "localhost"));
    if known { "localhost".into() } else { "127.0.0.1".into() }
}

/// The host's name in torchrun's box: torchrun prints Python's `socket.getfqdn()`, the first of the canonical name
/// and the aliases that has a dot, else the canonical name. Here by `/etc/hosts` alone.
#[must_use]
pub fn fqdn() -> String {
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    qualified(&hosts, &host_name())
}

fn qualified(hosts: &str, hostname: &str) -> String {
    let Some(address) = entries(hosts)
        .find(|(_, names)| names.clone().any(|name| name == hostname))
        .map(|(address, _)| address)
    else {
        return hostname.to_owned();
    };
    // A reverse lookup in /etc/hosts gives the first line of the address.
    let Some((_, names)) = entries(hosts).find(|(other, _)| *other == address) else {
        return hostname.to_owned();
    };
    let dotted = names.clone().find(|name| name.contains('.'));
    dotted.or_else(|| names.clone().next()).unwrap_or(hostname).to_owned()
}

fn entries(hosts: &str) -> impl Iterator<Item = (&str, std::str::SplitAsciiWhitespace<'_>)> {
    hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        Some((words.next()?, words))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_pythons_getfqdn() {
        // Each was printed by socket.getfqdn() with this /etc/hosts.
        assert_eq!(qualified("127.0.0.1 localhost\n127.0.0.1 vm\n", "vm"), "localhost");
        assert_eq!(qualified("10.0.0.1 vm vm.example.org # x\n", "vm"), "vm.example.org");
        assert_eq!(qualified("127.0.0.1 localhost\n", "vm"), "vm");
        assert_eq!(qualified("", "vm"), "vm");
    }
}
