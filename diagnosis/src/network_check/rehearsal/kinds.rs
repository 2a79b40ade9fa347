//! Random clusters with one element of each kind broken, or two.

use super::{Chance, Cluster, seed_of_run};

/// The fewest nodes of a random cluster.
const FEWEST_NODES: u32 = 4;
/// The most nodes of random clusters, each of them as often as the others: small ones have more surprises.
const MOST_NODES: [u32; 8] = [8, 12, 16, 16, 32, 64, 256, 1024];
/// The most racks, and the most nodes in a rack.
const MOST_RACKS: u32 = 64;
/// The factor of a slow card.
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
    put: fn(&mut Cluster, &mut Chance),
}

const fn kind(name: &'static str, put: fn(&mut Cluster, &mut Chance)) -> ElementKind {
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
    kind("node", |it, chance| {
        it.faulty.extend(fit_node(it, chance));
    }),
    kind("dies@0", |it, chance| {
        it.dies.extend(fit_node(it, chance).map(|node| (node, 0)));
    }),
    kind("dies@1", |it, chance| {
        it.dies.extend(fit_node(it, chance).map(|node| (node, 1)));
    }),
    kind("local fault", |it, chance| {
        it.local_fault.extend(fit_node(it, chance));
    }),
    kind("lost", |it, chance| {
        it.lost.extend(fit_node(it, chance));
    }),
    kind("link", |it, chance| {
        it.dead_links.extend(chance.two_below(it.nodes));
    }),
    kind("rack pair", |it, chance| {
        it.dead_rack_pairs.extend(chance.two_below(it.filled_racks()));
    })
    .of_racks(),
    kind("uplink", |it, chance| {
        it.dead_uplinks.extend(fit_rack(it, chance));
    })
    .of_racks(),
    kind("uplink@0", |it, chance| {
        it.uplink_dies.extend(fit_rack(it, chance).map(|rack| (rack, 0)));
    })
    .of_racks(),
    kind("uplink@1", |it, chance| {
        it.uplink_dies.extend(fit_rack(it, chance).map(|rack| (rack, 1)));
    })
    .of_racks(),
    kind("partial 0.25", |it, chance| {
        it.partial_uplinks.extend(fit_rack(it, chance).map(|rack| (rack, 0.25)));
    })
    .of_racks(),
    kind("partial 0.5", |it, chance| {
        it.partial_uplinks.extend(fit_rack(it, chance).map(|rack| (rack, 0.5)));
    })
    .of_racks(),
    kind("pod", |it, chance| {
        if it.pod_size == 0 {
            it.pod_size = chance.between(1, it.filled_racks().div_ceil(2));
        }
        let pods: Vec<u32> = (0..it.filled_pods()).filter(|pod| !it.dead_pods.contains(pod)).collect();
        it.dead_pods.extend(chance.one_of(&pods));
    })
    .of_racks(),
    kind("slow card", |it, chance| {
        it.slow_nic.extend(fit_node(it, chance).map(|node| (node, SLOWER)));
    })
    .slow(),
    kind("liar", |it, chance| {
        it.liars.extend(fit_node(it, chance));
    }),
    kind("transient 0.01", |it, _| {
        it.transient = if it.transient > 0.0 { 2.0 * TRANSIENT } else { TRANSIENT };
    }),
    kind("flaky 0.5", |it, chance| {
        it.flaky.extend(fit_node(it, chance).map(|node| (node, FLAKY)));
    }),
];

/// A random cluster with one element of each of these kinds; the same for the same seed.
#[must_use]
pub fn imagine(seed: u64, kinds: &[&ElementKind]) -> Cluster {
    let mut chance = Chance::new(seed);
    let most = chance.one_of(&MOST_NODES).unwrap_or(FEWEST_NODES);
    let nodes = chance.between(FEWEST_NODES, most);
    let fewest_racks = if kinds.iter().any(|kind| kind.needs_racks) { 2 } else { 1 };
    let racks = match chance.below(2) {
        0 => chance.between(fewest_racks, nodes.min(MOST_RACKS)),
        _ => nodes.div_ceil(chance.between(1, MOST_RACKS.min(nodes))).max(fewest_racks),
    };
    let mut cluster = Cluster { seed: seed_of_run(seed, 0), ..Cluster::healthy(nodes, racks) };
    if chance.below(4) == 0 {
        cluster.pod_size = chance.between(1, racks.div_ceil(2));
    }
    if chance.below(4) == 0 {
        cluster.noise = 0.1;
    }
    for kind in kinds {
        (kind.put)(&mut cluster, &mut chance);
    }
    cluster
}

/// A node in which nothing is broken yet.
fn fit_node(cluster: &Cluster, chance: &mut Chance) -> Option<u32> {
    let fit: Vec<u32> = (0..cluster.nodes).filter(|node| !cluster.is_broken(*node, true)).collect();
    chance.one_of(&fit)
}

/// A rack with no broken uplink yet.
fn fit_rack(cluster: &Cluster, chance: &mut Chance) -> Option<u32> {
    let fit: Vec<u32> = (0..cluster.filled_racks()).filter(|rack| !cluster.is_rack_broken(*rack)).collect();
    chance.one_of(&fit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_breaks_one_element_and_two_break_two() {
        for (number, kind) in ELEMENT_KINDS.iter().enumerate() {
            for seed in 0..200 {
                let cluster = imagine(seed, &[kind]);
                assert_eq!(cluster, imagine(seed, &[kind]));
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
