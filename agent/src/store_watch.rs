//! What the store tells about who reached it, between the store's thread and [`StartWatch`]'s judgement.

use std::{collections::BTreeMap, future, net::SocketAddr};

use rules::{LocalRank, Moment, Round, start_watch::StartWatch};
use tokio::sync::watch;

use crate::{
    arrivals::Arrived,
    store_host::{SharedStore, StoreHost},
};

/// The watch over the connections of one generation after the other.
#[derive(Debug)]
pub struct StoreWatch {
    /// `None` when this launcher serves no store.
    peers: Option<watch::Receiver<Vec<SocketAddr>>>,
    port: u16,
    /// How many of the peers were looked into.
    looked_at: usize,
    is_looking: bool,
    round: Round,
    /// How many workers are being started. Before all are, a connection may be of one that is not known yet.
    workers: usize,
    /// The workers that were started, and their process ids.
    pids: BTreeMap<LocalRank, i32>,
    /// Who is missing, and when to say so.
    pub judgement: StartWatch,
}

/// New peers to look into.
#[derive(Debug)]
pub struct Look {
    /// Whose generation.
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
            looked_at: 0,
            is_looking: false,
            round: Round(0),
            workers: 0,
            pids: BTreeMap::new(),
            judgement: StartWatch::default(),
        }
    }

    /// The store moved to another port.
    pub fn moved(&mut self, server: &SharedStore, port: u16) {
        (self.peers, self.port) = (Some(server.watch_arrivals()), port);
    }

    /// The workers of a round are being started.
    pub fn begin(&mut self, round: Round, now: Moment, workers: u32) {
        (self.round, self.judgement, self.looked_at) = (round, StartWatch::new(now, workers), 0);
        self.workers = workers as usize;
        self.pids.clear();
    }

    /// A worker runs. Time for [`Self::next_look`].
    pub fn started(&mut self, local_rank: LocalRank, pid: i32) {
        self.pids.insert(local_rank, pid);
    }

    /// Ready when somebody connected; never once nobody can be missing any more.
    pub async fn somebody_arrives(&mut self) {
        if !self.judgement.is_over()
            && let Some(peers) = &mut self.peers
            && peers.changed().await.is_ok()
        {
            return;
        }
        future::pending().await
    }

    /// What to look into now; `None` while a look is under way, or when there is nothing new. The answer goes
    /// to [`Self::on_arrived`].
    pub fn next_look(&mut self) -> Option<Look> {
        let known = self.peers.as_mut()?.borrow_and_update();
        if self.is_looking || self.judgement.is_over() || self.pids.len() < self.workers {
            return None;
        }
        let (up_to, peers) = (known.len(), known.get(self.looked_at..).unwrap_or_default().to_vec());
        if peers.is_empty() {
            return None;
        }
        self.is_looking = true;
        let (round, port, pids) = (self.round, self.port, self.pids.clone());
        Some(Look { round, up_to, peers, port, pids })
    }

    /// What a look found.
    pub fn on_arrived(&mut self, round: Round, up_to: usize, arrived: Arrived) {
        self.is_looking = false;
        if round != self.round {
            return;
        }
        self.looked_at = up_to;
        self.judgement.arrived(arrived.workers);
        if arrived.somebody {
            self.judgement.somebody_came();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, net::TcpStream};

    use super::*;

    #[test]
    fn nobody_is_looked_for_before_all_workers_are_known() {
        let host = StoreHost::serve(Some("localhost".into()), crate::store_host::Reach::Loopback, &[], None)
            .unwrap();
        let port = host.port().unwrap();
        let mut watch = StoreWatch::new(&host);
        watch.begin(Round(0), Moment::START, 2);
        watch.started(LocalRank(0), 100);
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c]).unwrap();
        while host.server().unwrap().arrivals().is_empty() {
            std::thread::yield_now();
        }
        assert!(watch.next_look().is_none(), "it may be of the worker that is not known yet");
        watch.started(LocalRank(1), 101);
        assert_eq!(watch.next_look().unwrap().peers.len(), 1);
    }
}
