//! How long is waited.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    super::{
        Effect, Event, Policy, Probed,
        rehearsal::{Cluster, rehearse_observed},
    },
    clusters::wild,
};
use crate::moment::Moment;

proptest! {
    /// Invariant 19: no test is cut short before the floor unless one of its members failed, none that is over, and none
    /// at all where all nodes end in time.
    #[test]
    fn nothing_is_cut_short_too_soon(cluster in wild(30), is_healthy: bool) {
        let cluster = if is_healthy { Cluster::healthy(cluster.nodes, 3) } else { cluster };
        let policy = Policy::new(cluster.seed);
        let floor = policy.deadlines.floor;
        let mut since = Moment::START;
        let mut groups = Vec::new();
        let mut reports: BTreeMap<u32, Probed> = BTreeMap::new();
        let mut lost = Vec::new();
        rehearse_observed(&cluster, policy, |scene| {
            match scene.event {
                Some(Event::Reported { node, probed, .. }) => drop(reports.insert(*node, probed.clone())),
                Some(Event::NodeLost { node, .. }) => lost.push(*node),
                _ => {}
            }
            for effect in scene.effects {
                match effect {
                    Effect::Start { groups: started, .. } => {
                        (since, groups) = (scene.now, started.clone());
                        reports.clear();
                    }
                    Effect::Cancel { nodes, .. } => {
                        assert!(!is_healthy);
                        assert!(!nodes.is_empty() && nodes.iter().all(|node| !reports.contains_key(node)));
                        let group = groups.iter().find(|it| it.members.contains(&nodes[0])).unwrap();
                        let members = &group.members;
                        let is_failed = |node: &u32| matches!(reports.get(node), Some(Probed::Failed { .. }));
                        let failed = members.iter().any(|node| is_failed(node) || lost.contains(node));
                        assert!(failed || scene.now >= since + floor);
                    }
                    Effect::Finish(_) => {}
                }
            }
        });
    }
}
