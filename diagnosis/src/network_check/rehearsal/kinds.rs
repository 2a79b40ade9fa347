//! Random clusters with one element of each kind broken, or two.

use super::{Cluster, ClusterRng, seed_of_run};

/// The fewest nodes of a random cluster.
const FEWEST_NODES: u32 = 4;
/// The most nodes of random clusters, each of them as often as the others: small ones have more surprises.
const MAX_NODES: [u32; 8] = [8, 12, 16, 16, 32, 64, 256, 1024];
/// The most racks, and the most nodes in a rack.
const MAX_RACKS: u32 = 64;
/// The factor of a slow network interface.
const SLOWER: f64 = 4.0;
/// The share of tests in which a flaky node fails.
const FLAKY: f64 = 0.5;
/// The share of all tests that fail by a transient fault.
const TRANSIENT: f64 = 0.01;

/// A kind of element that breaks.
#[derive(Debug, Clone, Copy)]
pub struct ElementKind {
    pub name: &'static str,
    /// It is only found with `exclude_straggler`.
    pub is_slow: bool,
    needs_racks: bool,
    put: fn(&mut Cluster, &mut ClusterRng),
}

const fn kind(name: &'static str, put: fn(&mut Cluster, &mut ClusterRng)) -> ElementKind {
    ElementKind { name, is_slow: false, needs_racks: false, put }
}

impl ElementKind {
    const fn of_racks(self) -> Self {
        Self { needs_racks: true, ..self }
    }

    const fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }
}

/// All kinds; the first is none.
pub const ELEMENT_KINDS: &[ElementKind] = &[
    kind("none", |_, _| {}),
    kind("node", |it, rng| {
        it.faulty.extend(fit_node(it, rng));
    }),
    kind("dies@0", |it, rng| {
        it.dies.extend(fit_node(it, rng).map(|node| (node, 0)));
    }),
    kind("dies@1", |it, rng| {
        it.dies.extend(fit_node(it, rng).map(|node| (node, 1)));
    }),
    kind("local fault", |it, rng| {
        it.local_fault.extend(fit_node(it, rng));
    }),
    kind("lost", |it, rng| {
        it.lost.extend(fit_node(it, rng));
    }),
    kind("link", |it, rng| {
        it.dead_links.extend(rng.two_below(it.nodes));
    }),
    kind("rack pair", |it, rng| {
        it.dead_rack_pairs.extend(rng.two_below(it.filled_racks()));
    })
    .of_racks(),
    kind("uplink", |it, rng| {
        it.dead_uplinks.extend(fit_rack(it, rng));
    })
    .of_racks(),
    kind("uplink@0", |it, rng| {
        it.uplink_dies.extend(fit_rack(it, rng).map(|rack| (rack, 0)));
    })
    .of_racks(),
    kind("uplink@1", |it, rng| {
        it.uplink_dies.extend(fit_rack(it, rng).map(|rack| (rack, 1)));
    })
    .of_racks(),
    kind("partial 0.25", |it, rng| {
        it.partial_uplinks.extend(fit_rack(it, rng).map(|rack| (rack, 0.25)));
    })
    .of_racks(),
    kind("partial 0.5", |it, rng| {
        it.partial_uplinks.extend(fit_rack(it, rng).map(|rack| (rack, 0.5)));
    })
    .of_racks(),
    kind("pod", |it, rng| {
        if it.pod_size == 0 {
            it.pod_size = rng.between(1, it.filled_racks().div_ceil(2));
        }
        let pods: Vec<u32> = (0..it.filled_pods()).filter(|pod| !it.dead_pods.contains(pod)).collect();
        it.dead_pods.extend(rng.one_of(&pods));
    })
    .of_racks(),
    kind("slow nic", |it, rng| {
        it.slow_nic.extend(fit_node(it, rng).map(|node| (node, SLOWER)));
    })
    .slow(),
    kind("liar", |it, rng| {
        it.liars.extend(fit_node(it, rng));
    }),
    kind("transient 0.01", |it, _| {
        it.transient = if it.transient > 0.0 { 2.0 * TRANSIENT } else { TRANSIENT };
    }),
    kind("flaky 0.5", |it, rng| {
        it.flaky.extend(fit_node(it, rng).map(|node| (node, FLAKY)));
    }),
];

/// A random cluster with one element of each of these kinds; the same for the same seed.
#[must_use]
pub fn random_cluster(seed: u64, kinds: &[&ElementKind]) -> Cluster {
    let mut rng = ClusterRng::new(seed);
    let most = rng.one_of(&MAX_NODES).unwrap_or(FEWEST_NODES);
    let nodes = rng.between(FEWEST_NODES, most);
    let fewest_racks = if kinds.iter().any(|kind| kind.needs_racks) { 2 } else { 1 };
    let racks = match rng.below(2) {
        0 => rng.between(fewest_racks, nodes.min(MAX_RACKS)),
        _ => nodes.div_ceil(rng.between(1, MAX_RACKS.min(nodes))).max(fewest_racks),
    };
    let mut cluster = Cluster { seed: seed_of_run(seed, 0), ..Cluster::healthy(nodes, racks) };
    if rng.below(4) == 0 {
        cluster.pod_size = rng.between(1, racks.div_ceil(2));
    }
    if rng.below(4) == 0 {
        cluster.noise = 0.1;
    }
    for kind in kinds {
        (kind.put)(&mut cluster, &mut rng);
    }
    cluster
}

/// A node in which nothing is broken yet.
fn fit_node(cluster: &Cluster, rng: &mut ClusterRng) -> Option<u32> {
    let fit: Vec<u32> = (0..cluster.nodes).filter(|node| !cluster.is_broken(*node, true)).collect();
    rng.one_of(&fit)
}

/// A rack with no broken uplink yet.
fn fit_rack(cluster: &Cluster, rng: &mut ClusterRng) -> Option<u32> {
    let fit: Vec<u32> = (0..cluster.filled_racks()).filter(|rack| !cluster.is_rack_broken(*rack)).collect();
    rng.one_of(&fit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_breaks_one_element_and_two_break_two() {
        for (number, kind) in ELEMENT_KINDS.iter().enumerate() {
            for seed in 0..200 {
                let cluster = random_cluster(seed, &[kind]);
                assert_eq!(cluster, random_cluster(seed, &[kind]));
                let expected = usize::from(number > 0);
                assert_eq!(broken(&cluster), expected, "{} {seed}: {cluster:?}", kind.name);
                assert!((4..=1024).contains(&cluster.nodes) && (1..=cluster.nodes).contains(&cluster.racks));
            }
        }
        let names: BTreeSet<&str> = ELEMENT_KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), ELEMENT_KINDS.len());
    }

    fn broken(cluster: &Cluster) -> usize {
        let nodes = (0..cluster.nodes).filter(|node| cluster.is_broken(*node, true)).count();
        let racks = (0..cluster.racks).filter(|rack| cluster.is_rack_broken(*rack)).count();
        let paths = cluster.dead_links.len() + cluster.dead_rack_pairs.len() + cluster.dead_pods.len();
        nodes + racks + paths + usize::from(cluster.transient > 0.0)
    }
}
