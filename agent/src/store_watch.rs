//! What the store tells about who reached it, between the store's thread and [`StartWatch`]'s judgement.

use std::{collections::BTreeMap, future, net::SocketAddr};

use rules::{LocalRank, Round, start_watch::StartWatch};
use tokio::sync::watch;

use crate::{arrivals::Arrived, store_host::StoreHost};

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
            pids: BTreeMap::new(),
            judgement: StartWatch::default(),
        }
    }

    /// The workers of a round are being started.
    pub fn begin(&mut self, round: Round, judgement: StartWatch) {
        (self.round, self.judgement, self.looked_at) = (round, judgement, 0);
        self.pids.clear();
    }

    /// A worker runs.
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
        let known = self.peers.as_mut()?.borrow_and_update().clone();
        let peers = known.get(self.looked_at..).unwrap_or_default().to_vec();
        if peers.is_empty() || self.is_looking || self.judgement.is_over() {
            return None;
        }
        self.is_looking = true;
        let (round, port, pids) = (self.round, self.port, self.pids.clone());
        Some(Look { round, up_to: known.len(), peers, port, pids })
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
