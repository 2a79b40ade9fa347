//! Finds the workers that own connections of peers on this host, by `/proc/net/tcp` (address to inode) and
//! `/proc/<pid>/fd` (inode to process).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rules::LocalRank;

use processes::tree;

/// The owners of some connections.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Connected {
    /// Workers that own a connection, themselves or by a process below them.
    pub workers: BTreeSet<LocalRank>,
    /// A peer on this host has closed its socket already, or its owner is not a worker.
    pub has_unknown: bool,
}

/// Finds the workers behind `peers`. Reads some files of /proc for each worker, so it is not called on the event
/// loop.
#[must_use]
pub fn find(peers: &[SocketAddr], store_port: u16, workers: &BTreeMap<LocalRank, i32>) -> Connected {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let sockets: BTreeMap<SocketAddr, u64> =
        tables.iter().flat_map(|table| connections_to(table, store_port)).collect();
    let inodes: BTreeSet<u64> = peers.iter().filter_map(|peer| sockets.get(peer).copied()).collect();
    let has_unknown = peers.iter().any(|peer| peer.ip().is_loopback() && !sockets.contains_key(peer));
    let mut unowned = inodes;
    let mut found = BTreeSet::new();
    for (local_rank, pid) in workers {
        if takes_any(*pid, &mut unowned) {
            found.insert(*local_rank);
        }
    }
    // A worker may be a shell around the training process. This walk is expensive, so it is done only if needed.
    for (local_rank, pid) in workers {
        if unowned.is_empty() {
            break;
        }
        for process in tree::below(*pid) {
            if takes_any(process.pid, &mut unowned) {
                found.insert(*local_rank);
            }
        }
    }
    Connected { workers: found, has_unknown: has_unknown || !unowned.is_empty() }
}

/// Local addresses and inodes of all connections to a port, from a table of `/proc/net`.
fn connections_to(table: &str, port: u16) -> impl Iterator<Item = (SocketAddr, u64)> {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let local = address(fields.nth(1)?)?;
        let remote = address(fields.next()?)?;
        // After the addresses: state, queues, timer, retransmits, uid, timeout.
        let inode: u64 = fields.nth(6)?.parse().ok()?;
        (remote.port() == port && inode != 0).then_some((local, inode))
    })
}

/// `0100007F:1F90` is 127.0.0.1:8080: each 32-bit word in the host's byte order, the port in plain hex.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Whether the process owns any of these sockets; removes those that it owns.
fn takes_any(pid: i32, inodes: &mut BTreeSet<u64>) -> bool {
    socket_inodes(pid).filter(|inode| inodes.remove(inode)).count() > 0
}

fn socket_inodes(pid: i32) -> impl Iterator<Item = u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    entries.filter_map(|entry| {
        let target = fs::read_link(entry.ok()?.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        net::TcpListener,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn both_address_forms_of_proc_are_read() {
        assert_eq!(address("0100007F:1F90"), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(address("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(address("0000000000000000FFFF00000100007F:0050"), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(address("xyz"), None);
    }

    #[test]
    fn the_process_behind_a_connection_is_found_and_a_closed_one_leaves_doubt() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!(
            "import socket, sys\ns = socket.create_connection(('127.0.0.1', {port}))\nprint('up', flush=True)\n\
             sys.stdin.read()"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (_stream, peer) = listener.accept().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let workers = BTreeMap::from([(LocalRank(0), 1), (LocalRank(3), i32::try_from(child.id()).unwrap())]);
        let connected = find(&[peer], port, &workers);
        assert!(connected.workers.contains(&LocalRank(3)));
        assert!(!connected.has_unknown);
        // Its owner is not a worker: a daemon, or another user's program.
        let others = BTreeMap::new();
        assert!(find(&[peer], port, &others).workers.is_empty() && find(&[peer], port, &others).has_unknown);
        drop(child.stdin.take());
        child.wait().unwrap();
        let gone: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert!(find(&[gone], port, &workers).has_unknown);
    }
}
