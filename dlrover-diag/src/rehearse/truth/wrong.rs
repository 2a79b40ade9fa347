//! What is named as broken and is not. Nodes are in `blamed`.

use std::collections::{BTreeMap, BTreeSet};

use diagnosis::network_check::{LinkKind, NetworkElement, Outcome, rehearsal::Cluster};

use super::{super::settings::Settings, is_healthy, last_round};

/// Each element that is named wrongly, and each ambiguity of which no candidate is broken.
pub(super) fn wrong(settings: &Settings, outcome: &Outcome) -> Vec<Vec<NetworkElement>> {
    let judge = Judge { settings, last: last_round(outcome) };
    let links = outcome.links.iter().filter(|link| {
        let is_right = match link.kind {
            LinkKind::Dead => judge.is_link(link.nodes),
            LinkKind::Slow => judge.is_slow_link(link.nodes),
            LinkKind::Flaky => judge.is_link(link.nodes) || settings.cluster.transient > 0.0,
        };
        !is_right
    });
    let links = links.map(|link| vec![NetworkElement::Link(link.nodes.0, link.nodes.1)]);
    let pairs = outcome.rack_pairs.iter().map(|it| NetworkElement::RackPair(it.racks.0, it.racks.1));
    let uplinks = outcome.uplinks.iter().copied().map(NetworkElement::Uplink);
    let leaves = outcome.leaves.iter().copied().map(NetworkElement::Leaf);
    let pods = outcome.pods.iter().copied().map(NetworkElement::Pod);
    let partial = outcome.partial_uplinks.iter().map(|it| NetworkElement::PartialUplink(it.rack));
    let larger = pairs.chain(uplinks).chain(leaves).chain(pods).chain(partial);
    let larger = larger.filter(|element| !judge.is_right(*element)).map(|element| vec![element]);
    let (honest, ambiguous): (Vec<_>, Vec<_>) = outcome
        .ambiguous
        .iter()
        .map(|it| it.candidates.clone())
        .partition(|it| it.iter().any(|element| judge.is_right(*element)));
    // What is named with a doubt is not wrong where the doubt is right.
    let is_doubted =
        |named: &Vec<NetworkElement>| honest.iter().any(|it| named.iter().all(|one| it.contains(one)));
    links.chain(larger).filter(|named| !is_doubted(named)).chain(ambiguous).collect()
}

struct Judge<'a> {
    settings: &'a Settings,
    last: u32,
}

impl Judge<'_> {
    /// Whether every path between healthy nodes that this would cut is cut.
    fn is_right(&self, element: NetworkElement) -> bool {
        let cluster = &self.settings.cluster;
        let rack = |node: &u32| cluster.rack(*node);
        match element {
            NetworkElement::Node(node) => !is_healthy(self.settings, node),
            NetworkElement::Link(a, b) => self.is_link((a, b)),
            NetworkElement::RackPair(a, b) => self.are_cut(|it| rack(it) == a, |it| rack(it) == b),
            NetworkElement::Uplink(one) => self.are_cut(|it| rack(it) == one, |it| rack(it) != one),
            NetworkElement::Leaf(one) => self.are_cut(|it| rack(it) == one, |_| true),
            NetworkElement::Pod(one) => {
                self.are_cut(|it| cluster.pod(*it) == one, |it| cluster.pod(*it) != one)
            }
            NetworkElement::PartialUplink(one) => self.is_partial(one),
        }
    }

    /// Whether all paths between such healthy nodes are cut.
    fn are_cut(&self, is_one: impl Fn(&u32) -> bool, is_other: impl Fn(&u32) -> bool) -> bool {
        let cluster = &self.settings.cluster;
        let by_rack = |is_such: &dyn Fn(&u32) -> bool| {
            let mut racks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            let nodes = (0..cluster.nodes).filter(|node| is_such(node) && is_healthy(self.settings, *node));
            nodes.for_each(|node| racks.entry(cluster.rack(node)).or_default().push(node));
            racks
        };
        let (ones, others) = (by_rack(&is_one), by_rack(&is_other));
        // Switches cut all pairs of two racks or none: two nodes tell it for all.
        let (dead_links, partial_uplinks) = (BTreeSet::new(), BTreeMap::new());
        let switches = Cluster { dead_links, partial_uplinks, ..cluster.clone() };
        let is_cut = |one: u32, other: u32| one == other || cluster.is_cut_in(self.last, one, other);
        ones.iter().all(|(a, ones)| {
            others.iter().all(|(b, others)| {
                let (Some(one), Some(other)) = (ones.first(), others.first()) else { return true };
                a != b && switches.is_cut_in(self.last, *one, *other)
                    || ones.iter().all(|one| others.iter().all(|other| is_cut(*one, *other)))
            })
        })
    }

    /// Whether the path is cut, or one of its ends is broken.
    fn is_link(&self, (a, b): (u32, u32)) -> bool {
        let is_end = [a, b].iter().any(|end| !is_healthy(self.settings, *end));
        is_end || self.settings.cluster.is_cut_in(self.last, a, b)
    }

    fn is_slow_link(&self, (a, b): (u32, u32)) -> bool {
        let cluster = &self.settings.cluster;
        let is_end = |end: &u32| cluster.slow_nic.contains_key(end) || cluster.liars.contains(end);
        cluster.slow_links.contains_key(&(a, b)) || [a, b].iter().any(is_end)
    }

    /// Part of the uplinks are dead, of this rack or of the only other one; two dead links look the same.
    fn is_partial(&self, rack: u32) -> bool {
        let cluster = &self.settings.cluster;
        let is_out = |(a, b): &&(u32, u32)| (cluster.rack(*a) == rack) != (cluster.rack(*b) == rack);
        let of_two = || cluster.filled_racks() == 2 && !cluster.partial_uplinks.is_empty();
        cluster.partial_uplinks.contains_key(&rack)
            || of_two()
            || cluster.dead_links.iter().filter(is_out).count() > 1
    }
}
