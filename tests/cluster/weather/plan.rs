//! A schedule: what a seed stands for.

use std::{collections::BTreeMap, time::Duration};

use dlrover_sim::prng::Prng;

use super::relay::{Way, Weather};

/// Bad weather, from a moment on and for a while, counted from the start.
#[derive(Clone, Debug)]
pub(super) struct Storm {
    pub(super) from: Duration,
    pub(super) lasts: Duration,
    pub(super) weather: Weather,
    pub(super) ways: Vec<Way>,
}

/// The master is killed, and started again after a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fall {
    pub(super) at: Duration,
    pub(super) down: Duration,
}

/// Something else that happens to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strike {
    pub(super) at: Duration,
    pub(super) node: usize,
    pub(super) kind: BlowKind,
}

/// What.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlowKind {
    /// Its worker fails, for which there is one restart.
    WorkerFails,
    /// Its launcher is killed, and started again after a while.
    LauncherKilled(Duration),
    /// Its launcher stands still for a while.
    LauncherFrozen(Duration),
}

/// Where the job's master is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Master {
    /// A `dlrover-master` with a state directory, on the host after the nodes.
    OfItsOwn,
    /// In the launcher of host 0.
    InALauncher,
}

/// What one run goes through.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) master: Master,
    /// When each node's launcher is started.
    pub(super) starts: Vec<Duration>,
    /// `--nnodes=LEAST:ALL`.
    pub(super) least: usize,
    /// In seconds.
    pub(super) heartbeat_timeout: u64,
    pub(super) storms: Vec<Storm>,
    pub(super) falls: Vec<Fall>,
    pub(super) blow: Option<Strike>,
    /// Nothing in it is reason enough to lose a node, so no worker may be stopped.
    pub(super) is_mild: bool,
    /// Rank 0 fails at the end, and has no restart left.
    pub(super) fails: bool,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let nodes = prng.index(3) + 2;
        let is_mild = prng.chance(250);
        let master = if prng.chance(250) { Master::InALauncher } else { Master::OfItsOwn };
        let hosts = nodes + usize::from(master == Master::OfItsOwn);
        let starts = (0..nodes).map(|_| prng.millis(0, 800)).collect();
        let least = if is_mild || prng.chance(500) { nodes } else { prng.index(nodes) + 1 };
        let heartbeat_timeout = if is_mild { 15 } else { [1, 1, 1, 2, 15][prng.index(5)] };
        let storms = (0..2 + prng.index(4)).map(|_| storm(&mut prng, hosts, is_mild)).collect();
        let falls = falls(&mut prng, master);
        let blow = (!is_mild && prng.chance(400)).then(|| blow(&mut prng, nodes, master));
        let fails = master == Master::InALauncher && blow.is_none() && prng.chance(500);
        Self { seed, master, starts, least, heartbeat_timeout, storms, falls, blow, is_mild, fails }
    }

    pub(super) fn nodes(&self) -> usize {
        self.starts.len()
    }

    /// The host of the master.
    pub(super) fn master_host(&self) -> usize {
        match self.master {
            Master::OfItsOwn => self.nodes(),
            Master::InALauncher => 0,
        }
    }

    pub(super) fn hosts(&self) -> usize {
        self.nodes() + usize::from(self.master == Master::OfItsOwn)
    }

    /// The weather at a moment.
    pub(super) fn network(&self, at: Duration) -> BTreeMap<Way, Weather> {
        let mut network: BTreeMap<Way, Weather> = BTreeMap::new();
        for storm in self.storms.iter().filter(|storm| (storm.from..storm.from + storm.lasts).contains(&at)) {
            for way in &storm.ways {
                let here = network.entry(*way).or_default();
                *here = here.and(storm.weather);
            }
        }
        network
    }

    /// From when on nothing happens any more.
    pub(super) fn is_over_at(&self) -> Duration {
        let storms = self.storms.iter().map(|storm| storm.from + storm.lasts);
        let falls = self.falls.iter().map(|fall| fall.at + fall.down);
        let blow = self.blow.iter().map(|blow| blow.at + blow.kind.lasts());
        storms.chain(falls).chain(blow).chain(self.starts.iter().copied()).max().unwrap_or_default()
    }
}

impl BlowKind {
    /// How long until what is to be undone is undone.
    pub(super) fn lasts(self) -> Duration {
        match self {
            Self::WorkerFails => Duration::ZERO,
            Self::LauncherKilled(lasts) | Self::LauncherFrozen(lasts) => lasts,
        }
    }
}

/// One after the other.
fn falls(prng: &mut Prng, master: Master) -> Vec<Fall> {
    let count = if master == Master::OfItsOwn && prng.chance(400) { 1 + prng.index(2) } else { 0 };
    let mut falls = Vec::new();
    let mut at = Duration::ZERO;
    for _ in 0..count {
        at += prng.millis(100, 3000);
        let down = prng.millis(50, 3000);
        falls.push(Fall { at, down });
        at += down;
    }
    falls
}

/// Not in the first second: all launchers are there then.
fn blow(prng: &mut Prng, nodes: usize, master: Master) -> Strike {
    let lasts = prng.millis(50, 6000);
    // The launcher that serves the master is that master.
    let least = usize::from(master == Master::InALauncher);
    let kind = [BlowKind::WorkerFails, BlowKind::LauncherKilled(lasts), BlowKind::LauncherFrozen(lasts)]
        [prng.index(3)];
    Strike { at: prng.millis(1000, 4000), node: least + prng.index(nodes - least), kind }
}

fn storm(prng: &mut Prng, hosts: usize, is_mild: bool) -> Storm {
    // Some are there before the nodes.
    let from = if prng.chance(200) { Duration::ZERO } else { prng.millis(0, 5000) };
    let most = [800, 4000, 9000][prng.index(3)];
    let lasts = prng.millis(most / 4, most);
    let mut weather = Weather::default();
    let kinds = if is_mild { 2 } else { 6 };
    match prng.index(kinds) {
        0 => weather.lost = prng.small(1, if is_mild { 30 } else { 400 }),
        1 => {
            let slowest = if is_mild { 100 } else { 1500 };
            weather.delay = (prng.millis(1, slowest), prng.millis(0, slowest));
        }
        2 => weather.most_bytes = Some(prng.index(800) + 100),
        _ => weather.is_cut = true,
    }
    Storm { from, lasts, weather, ways: ways(prng, hosts) }
}

/// The two hosts.
fn ways(prng: &mut Prng, hosts: usize) -> Vec<Way> {
    let all =
        (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let (one, kind) = (prng.index(hosts), prng.index(6));
    let other = (one + 1 + prng.index(hosts - 1)) % hosts;
    // Which hosts are on one side.
    let side: Vec<bool> = (0..hosts).map(|_| prng.chance(500)).collect();
    let is_struck = |(from, to): &Way| match kind {
        0 => *from == one,
        1 => *to == one,
        2 => *from == one || *to == one,
        3 => (*from, *to) == (one, other),
        4 => side[*from] != side[*to],
        _ => true,
    };
    all.filter(is_struck).collect()
}
