//! What is broken in a simulated cluster.

use crate::rng::mix;
use std::collections::{BTreeMap, BTreeSet};

/// A simulated cluster. Nodes are 0 to `nodes` - 1, racks 0 to `racks` - 1; numbers beyond are ignored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    pub nodes: u32,
    /// The number of racks, each of ceil(nodes / racks) nodes in a row; 0 is 1.
    pub racks: u32,
    /// The seed of all its random numbers.
    pub seed: u64,
    /// Times are multiplied by exp(noise x Z), Z of the normal distribution; 0: not at all.
    pub noise: f64,
    /// Every test with one of them fails.
    pub faulty: BTreeSet<u32>,
    /// They have a fault of their own.
    pub local_fault: BTreeSet<u32>,
    /// They go away in the first round.
    pub lost: BTreeSet<u32>,
    /// Every test between the two fails; the lower first.
    pub dead_links: BTreeSet<(u32, u32)>,
    /// Every test between the two racks fails; the lower first.
    pub dead_rack_pairs: BTreeSet<(u32, u32)>,
    /// Every test out of such a rack fails.
    pub dead_uplinks: BTreeSet<u32>,
    /// Transfers with them take so many times as long; the largest factor counts.
    pub slow_nic: BTreeMap<u32, f64>,
    /// Transfers between the two take so many times as long; the lower first.
    pub slow_links: BTreeMap<(u32, u32), f64>,
    /// They take so many times as long to compute.
    pub slow_compute: BTreeMap<u32, f64>,
    /// They time something else, which takes a tenth of the others' time.
    pub other_kind: BTreeSet<u32>,
    /// Each test with them fails with this probability, 0 to 1.
    pub flaky: BTreeMap<u32, f64>,
    /// Racks in one pod, in a row; 0: pods are not known.
    pub pod_size: u32,
    /// Every test that leaves such a pod fails, and so does every test between two of its racks.
    pub dead_pods: BTreeSet<u32>,
    /// A node -> the round after which every test with it fails.
    pub dies: BTreeMap<u32, u32>,
    /// A rack -> the round after which every test out of it fails.
    pub uplink_dies: BTreeMap<u32, u32>,
    /// A rack -> the share of the pairs out of it that fail, 0 to 1, each of them every time: a hash picks its path.
    pub partial_uplinks: BTreeMap<u32, f64>,
    /// Each test fails with this probability, 0 to 1.
    pub transient: f64,
    /// They report something else than they measured: failures of tests that passed, and made-up times.
    pub liars: BTreeSet<u32>,
}

impl Cluster {
    /// Everything works.
    #[must_use]
    pub fn healthy(nodes: u32, racks: u32) -> Self {
        Self { nodes, racks, ..Self::default() }
    }

    /// The rack of a node.
    #[must_use]
    pub fn rack(&self, node: u32) -> u32 {
        node / self.nodes.div_ceil(self.racks.max(1)).max(1)
    }

    /// The pod of a node; all 0 where pods are not known.
    #[must_use]
    pub fn pod(&self, node: u32) -> u32 {
        self.rack(node).checked_div(self.pod_size).unwrap_or(0)
    }

    /// Racks with a node in them: the last ones may have none.
    #[must_use]
    pub fn filled_racks(&self) -> u32 {
        self.rack(self.nodes.saturating_sub(1)) + 1
    }

    /// Pods with a node in them.
    #[must_use]
    pub fn filled_pods(&self) -> u32 {
        self.pod(self.nodes.saturating_sub(1)) + 1
    }

    /// Whether anything is broken in the node itself, at any time; a slow node counts `with_slow`.
    #[must_use]
    pub fn is_broken(&self, node: u32, with_slow: bool) -> bool {
        self.faulty.contains(&node)
            || self.local_fault.contains(&node)
            || self.lost.contains(&node)
            || self.flaky.contains_key(&node)
            || self.dies.contains_key(&node)
            || self.liars.contains(&node)
            || with_slow && (self.slow_nic.contains_key(&node) || self.slow_compute.contains_key(&node))
    }

    /// Whether the uplinks of the rack break, all or in part, at any time.
    #[must_use]
    pub fn is_rack_broken(&self, rack: u32) -> bool {
        self.dead_uplinks.contains(&rack)
            || self.uplink_dies.contains_key(&rack)
            || self.partial_uplinks.contains_key(&rack)
    }

    /// Whether tests between the two fail in this round apart from their own faults.
    #[must_use]
    pub fn is_cut_in(&self, round: u32, a: u32, b: u32) -> bool {
        let racks = (self.rack(a), self.rack(b));
        let is_out =
            |rack: u32| racks.0 != racks.1 && self.uplink_dies.get(&rack).is_some_and(|last| round > *last);
        self.is_cut(a, b) || is_out(racks.0) || is_out(racks.1)
    }

    /// Whether the pair's path is one of those that died with a part of a rack's uplinks.
    fn is_hashed_away(&self, a: u32, b: u32) -> bool {
        let (low, high) = (a.min(b), a.max(b));
        let is_dead = |rack: u32| {
            let Some(share) = self.partial_uplinks.get(&rack) else { return false };
            let key = self.seed ^ u64::from(rack).rotate_left(48);
            let hash = mix(key ^ mix(u64::from(low) << 32 | u64::from(high)));
            f64::from((hash >> 32) as u32) < share * f64::from(u32::MAX)
        };
        let racks = (self.rack(a), self.rack(b));
        racks.0 != racks.1 && (is_dead(racks.0) || is_dead(racks.1))
    }

    /// Whether tests between the two fail from the beginning apart from their own faults.
    #[must_use]
    pub fn is_cut(&self, a: u32, b: u32) -> bool {
        let (racks, ends) = ((self.rack(a), self.rack(b)), (a.min(b), a.max(b)));
        let is_out = |rack: u32| racks.0 != racks.1 && self.dead_uplinks.contains(&rack);
        let is_in_dead_pod =
            |node: u32| self.pod_size > 0 && racks.0 != racks.1 && self.dead_pods.contains(&self.pod(node));
        is_in_dead_pod(a)
            || is_in_dead_pod(b)
            || self.is_hashed_away(a, b)
            || self.dead_links.contains(&ends)
            || self.dead_rack_pairs.contains(&(racks.0.min(racks.1), racks.0.max(racks.1)))
                && racks.0 != racks.1
            || is_out(racks.0)
            || is_out(racks.1)
    }
}
