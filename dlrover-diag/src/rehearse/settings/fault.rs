//! Something broken, as the command line puts it into a cluster: by its number, or drawn at random.

use diagnosis::network_check::rehearsal::{Cluster, ClusterRng};

/// Draws of a pair before the first free one is taken.
const DRAWS: u32 = 64;

/// What breaks, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FaultKind {
    Faulty,
    LocalFault,
    Lost,
    Liar,
    /// After this round.
    Dies(u32),
    Flaky(f64),
    SlowNic(f64),
    SlowCompute(f64),
    DeadLink,
    SlowLink(f64),
    DeadRackPair,
    DeadUplink,
    /// After this round.
    UplinkDies(u32),
    PartialUplink(f64),
    DeadPod,
}

/// What of the cluster it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// A node, a rack or a pod.
    One(u32),
    /// Two nodes or two racks, the lower first.
    Two(u32, u32),
    /// So many, drawn at random.
    Random(u32),
}

/// What a draw takes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pool {
    Nodes,
    Racks,
    Pods,
    Links,
    RackPairs,
}

impl FaultKind {
    pub(super) fn pool(self) -> Pool {
        match self {
            Self::Faulty
            | Self::LocalFault
            | Self::Lost
            | Self::Liar
            | Self::Dies(_)
            | Self::Flaky(_)
            | Self::SlowNic(_)
            | Self::SlowCompute(_) => Pool::Nodes,
            Self::DeadUplink | Self::UplinkDies(_) | Self::PartialUplink(_) => Pool::Racks,
            Self::DeadPod => Pool::Pods,
            Self::DeadLink | Self::SlowLink(_) => Pool::Links,
            Self::DeadRackPair => Pool::RackPairs,
        }
    }

    /// Breaks it. Where one number is enough the second is ignored.
    pub(super) fn insert(self, cluster: &mut Cluster, (a, b): (u32, u32)) {
        match self {
            Self::Faulty => _ = cluster.faulty.insert(a),
            Self::LocalFault => _ = cluster.local_fault.insert(a),
            Self::Lost => _ = cluster.lost.insert(a),
            Self::Liar => _ = cluster.liars.insert(a),
            Self::Dies(round) => _ = cluster.dies.insert(a, round),
            Self::Flaky(rng) => _ = cluster.flaky.insert(a, rng),
            Self::SlowNic(factor) => _ = cluster.slow_nic.insert(a, factor),
            Self::SlowCompute(factor) => _ = cluster.slow_compute.insert(a, factor),
            Self::DeadLink => _ = cluster.dead_links.insert((a, b)),
            Self::SlowLink(factor) => _ = cluster.slow_links.insert((a, b), factor),
            Self::DeadRackPair => _ = cluster.dead_rack_pairs.insert((a, b)),
            Self::DeadUplink => _ = cluster.dead_uplinks.insert(a),
            Self::UplinkDies(round) => _ = cluster.uplink_dies.insert(a, round),
            Self::PartialUplink(share) => _ = cluster.partial_uplinks.insert(a, share),
            Self::DeadPod => _ = cluster.dead_pods.insert(a),
        }
    }

    /// Breaks one that is drawn of those in which nothing is broken yet. Nothing is left: nothing breaks.
    pub(super) fn insert_random(self, cluster: &mut Cluster, rng: &mut ClusterRng) {
        let drawn = match self.pool() {
            Pool::Nodes | Pool::Racks | Pool::Pods => {
                let free: Vec<u32> = singles(self.pool(), cluster).collect();
                rng.one_of(&free).map(|number| (number, number))
            }
            Pool::Links => pair(cluster.nodes, rng, |ends| is_link_free(cluster, ends)),
            Pool::RackPairs => {
                pair(cluster.filled_racks(), rng, |racks| !cluster.dead_rack_pairs.contains(&racks))
            }
        };
        if let Some(drawn) = drawn {
            self.insert(cluster, drawn);
        }
    }
}

impl Pool {
    /// How many are left to be drawn.
    pub(super) fn left(self, cluster: &Cluster) -> u64 {
        let pairs = |count: u32| u64::from(count) * u64::from(count.saturating_sub(1)) / 2;
        match self {
            Self::Nodes | Self::Racks | Self::Pods => singles(self, cluster).count() as u64,
            Self::Links => {
                let fast = cluster.slow_links.keys().filter(|link| !cluster.dead_links.contains(link));
                pairs(cluster.nodes) - (cluster.dead_links.len() + fast.count()) as u64
            }
            Self::RackPairs => {
                let filled = |(_, b): &&(u32, u32)| *b < cluster.filled_racks();
                let dead = cluster.dead_rack_pairs.iter().filter(filled).count();
                pairs(cluster.filled_racks()) - dead as u64
            }
        }
    }
}

fn singles(pool: Pool, cluster: &Cluster) -> impl Iterator<Item = u32> {
    let end = match pool {
        Pool::Nodes => cluster.nodes,
        Pool::Racks => cluster.filled_racks(),
        Pool::Pods => cluster.filled_pods(),
        Pool::Links | Pool::RackPairs => 0,
    };
    (0..end).filter(move |number| match pool {
        Pool::Nodes => !cluster.is_broken(*number, true),
        Pool::Racks => !cluster.is_rack_broken(*number),
        _ => !cluster.dead_pods.contains(number),
    })
}

fn is_link_free(cluster: &Cluster, ends: (u32, u32)) -> bool {
    !cluster.dead_links.contains(&ends) && !cluster.slow_links.contains_key(&ends)
}

fn pair(end: u32, rng: &mut ClusterRng, is_free: impl Fn((u32, u32)) -> bool) -> Option<(u32, u32)> {
    let drawn = (0..DRAWS).filter_map(|_| rng.two_below(end)).find(|pair| is_free(*pair));
    drawn.or_else(|| (0..end).flat_map(|a| (a + 1..end).map(move |b| (a, b))).find(|pair| is_free(*pair)))
}
