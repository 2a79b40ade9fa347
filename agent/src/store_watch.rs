//! The connections to the store of one generation, between the store's thread and
//! [`Event::StoreReached`](rules::worker_group::Event::StoreReached).

use std::{collections::BTreeMap, future, net::SocketAddr};

use rules::{LocalRank, Round};
use tokio::sync::watch;

use crate::store_host::{SharedStore, StoreHost};

/// The watch over the connections of one generation after the other.
#[derive(Debug)]
pub struct StoreWatch {
    /// `None` when this launcher serves no store.
    peers: Option<watch::Receiver<Vec<SocketAddr>>>,
    port: u16,
    /// How many of the peers were looked up.
    looked_up: usize,
    is_running: bool,
    round: Round,
    /// How many workers are being started. Before all are, a connection may belong to one that is not known yet.
    workers: usize,
    /// The workers that were started, and their process ids.
    pids: BTreeMap<LocalRank, i32>,
}

/// New peers to look up.
#[derive(Debug)]
pub struct Lookup {
    /// The generation's round.
    pub round: Round,
    /// How many peers are known by then.
    pub up_to: usize,
    /// The new ones among them.
    pub peers: Vec<SocketAddr>,
    /// `MASTER_PORT`.
    pub port: u16,
    /// The workers.
    pub pids: BTreeMap<LocalRank, i32>,
}

impl StoreWatch {
    /// Watches the store, if this launcher serves one.
    #[must_use]
    pub fn new(store: &StoreHost) -> Self {
        Self {
            peers: store.server().map(|server| server.watch_arrivals()),
            port: store.port().unwrap_or_default(),
            looked_up: 0,
            is_running: false,
            round: Round(0),
            workers: 0,
            pids: BTreeMap::new(),
        }
    }

    /// The store moved to another port.
    pub fn moved(&mut self, server: &SharedStore, port: u16) {
        (self.peers, self.port) = (Some(server.watch_arrivals()), port);
    }

    /// The workers of a round are being started.
    pub fn begin(&mut self, round: Round, workers: u32) {
        (self.round, self.looked_up, self.workers) = (round, 0, workers as usize);
        self.pids.clear();
    }

    /// A worker runs.
    pub fn started(&mut self, local_rank: LocalRank, pid: i32) {
        self.pids.insert(local_rank, pid);
    }

    /// Ready when a peer has connected; never unless connections are `wanted`.
    pub async fn next_arrival(&mut self, wanted: bool) {
        if wanted
            && let Some(peers) = &mut self.peers
            && peers.changed().await.is_ok()
        {
            return;
        }
        future::pending().await
    }

    /// The peers to look up now, if connections are `wanted`; `None` while a look-up is running, or when there are no new
    /// ones. [`Self::on_looked_up`] ends it.
    pub fn next_lookup(&mut self, wanted: bool) -> Option<Lookup> {
        let known = self.peers.as_mut()?.borrow_and_update();
        if self.is_running || !wanted || self.pids.len() < self.workers {
            return None;
        }
        let (up_to, peers) = (known.len(), known.get(self.looked_up..).unwrap_or_default().to_vec());
        if peers.is_empty() {
            return None;
        }
        self.is_running = true;
        let (round, port, pids) = (self.round, self.port, self.pids.clone());
        Some(Lookup { round, up_to, peers, port, pids })
    }

    /// A look-up ended.
    pub fn on_looked_up(&mut self, round: Round, up_to: usize) {
        self.is_running = false;
        if round == self.round {
            self.looked_up = up_to;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpStream};

    use super::*;

    #[test]
    fn no_peer_is_looked_up_before_all_workers_are_known() {
        let host = StoreHost::serve(Some("localhost".into()), crate::store_host::Reach::Loopback, &[], None)
            .unwrap();
        let port = host.port().unwrap();
        let mut watch = StoreWatch::new(&host);
        watch.begin(Round(0), 2);
        watch.started(LocalRank(0), 100);
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c]).unwrap();
        while host.server().unwrap().arrivals().is_empty() {
            std::thread::yield_now();
        }
        assert!(watch.next_lookup(true).is_none(), "it may belong to the worker that is not known yet");
        watch.started(LocalRank(1), 101);
        assert_eq!(watch.next_lookup(true).unwrap().peers.len(), 1);
    }
}
