//! Clusters to test with.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{NodeVerdict, Outcome, Policy, rehearsal::Cluster};

/// Neither the number of rounds nor the guard is a limit.
pub(super) fn patient(seed: u64) -> Policy {
    Policy { max_rounds: 200, taint_guard_permille: 1000, ..Policy::new(seed) }
}

/// 2 to `most` nodes in any racks, some of them broken.
pub(super) fn broken(most: u32) -> impl Strategy<Value = Cluster> {
    (2..=most, 1..=8_u32, any::<u64>(), 0..100_u32).prop_flat_map(|(nodes, racks, seed, percent)| {
        let broken = (nodes * percent / 100) as usize;
        let faulty = proptest::collection::btree_set(0..nodes, 0..=broken);
        faulty.prop_map(move |faulty| Cluster { faulty, seed, ..Cluster::healthy(nodes, racks.min(nodes)) })
    })
}

/// The same with everything else that can be broken.
pub(super) fn wild(most: u32) -> impl Strategy<Value = Cluster> {
    let few = || proptest::collection::btree_set(0..most, 0..4);
    let pairs = || proptest::collection::btree_set((0..most, 0..most), 0..3);
    let others = (few(), few(), pairs(), pairs(), few(), few(), few(), 0.0..0.5);
    (broken(most), others).prop_map(|(cluster, (local, lost, links, racks, nic, compute, flaky, noise))| {
        let ordered =
            |pairs: BTreeSet<(u32, u32)>| pairs.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
        let times = |nodes: BTreeSet<u32>, factor| nodes.into_iter().map(|node| (node, factor)).collect();
        Cluster {
            local_fault: local,
            lost,
            dead_links: ordered(links),
            dead_rack_pairs: ordered(racks),
            slow_nic: times(nic, 4.0),
            slow_compute: times(compute, 3.0),
            flaky: times(flaky, 0.5),
            noise,
            ..cluster
        }
    })
}

pub(super) fn with(outcome: &Outcome, is: impl Fn(&NodeVerdict) -> bool) -> BTreeSet<u32> {
    (0..).zip(&outcome.nodes).filter(|(_, node)| is(&node.verdict)).map(|(number, _)| number).collect()
}

pub(super) fn faults(outcome: &Outcome) -> BTreeSet<u32> {
    with(outcome, |verdict| *verdict == NodeVerdict::Fault)
}

pub(super) fn tainted(outcome: &Outcome) -> BTreeSet<u32> {
    (0..).zip(&outcome.nodes).filter(|(_, node)| node.tainted).map(|(number, _)| number).collect()
}

pub(super) fn excluded(outcome: &Outcome) -> BTreeSet<u32> {
    (0..).zip(&outcome.nodes).filter(|(_, node)| node.excluded).map(|(number, _)| number).collect()
}
