//! The most rounds that a check may take: docs/network-check.md, "What the rounds cost".

use std::collections::BTreeSet;

use super::super::settings::Settings;

/// What links, paths and times add.
const OF_PATHS: u32 = 3;

/// `None`: half of the nodes are broken or more, and it takes as many rounds as it takes.
pub(super) fn most_rounds(settings: &Settings) -> Option<u32> {
    let (cluster, with_slow) = (&settings.cluster, settings.policy.exclude_straggler);
    let nodes = u64::from(cluster.nodes);
    // A node that knows of its fault takes no part.
    let is_broken = |node: &u32| cluster.is_broken(*node, with_slow) && !cluster.local_fault.contains(node);
    let broken = (0..cluster.nodes).filter(is_broken).count() as u64;
    let paths = cluster.dead_links.len()
        + cluster.dead_rack_pairs.len()
        + cluster.dead_uplinks.len()
        + cluster.uplink_dies.len()
        + cluster.partial_uplinks.len()
        + cluster.dead_pods.len()
        + cluster.dies.len()
        + cluster.flaky.len()
        + cluster.liars.len()
        + cluster.slow_compute.len();
    let times = cluster.slow_nic.len() + cluster.slow_links.len();
    let has_paths = paths > 0 || cluster.transient > 0.0 || with_slow && (times > 0 || cluster.noise > 0.0);
    if broken == 0 && !has_paths {
        return Some(1);
    }
    let even = match broken {
        0 => 1,
        _ if broken * 4 <= nodes => 3,
        _ if broken * 3 <= nodes => 4,
        _ if broken * 2 < nodes => 2 + (2 * broken).div_ceil(nodes - 2 * broken),
        _ => return None,
    };
    let odd = nodes % 2 + u64::from(nodes == 5 && broken > 0);
    // One round tests a rack of which every node is broken.
    let healthy = (0..cluster.nodes).filter(|node| !cluster.is_broken(*node, with_slow));
    let with_healthy: BTreeSet<u32> = healthy.map(|node| cluster.rack(node)).collect();
    let racks = cluster.filled_racks() as usize;
    let inside = broken > 0 && racks > 1 && with_healthy.len() < racks;
    let most = even + odd + u64::from(inside) + if has_paths { u64::from(OF_PATHS) } else { 0 };
    u32::try_from(most).ok()
}
