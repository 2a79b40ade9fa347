//! What a check names as broken, and which paths are dead by that.

use std::collections::BTreeSet;

use diagnosis::network_check::{LinkKind, NetworkElement, Outcome, rehearsal::Cluster};

/// The elements that are named.
#[derive(Debug)]
pub(super) struct Named<'a> {
    cluster: &'a Cluster,
    elements: BTreeSet<NetworkElement>,
}

impl<'a> Named<'a> {
    /// Those that are named without a doubt. A link that is slow or works now and then is not dead.
    pub(super) fn sure(cluster: &'a Cluster, outcome: &Outcome) -> Self {
        let links = outcome.links.iter().filter(|link| link.kind == LinkKind::Dead);
        let links = links.map(|link| NetworkElement::Link(link.nodes.0, link.nodes.1));
        let pairs =
            outcome.rack_pairs.iter().map(|pair| NetworkElement::RackPair(pair.racks.0, pair.racks.1));
        let uplinks = outcome.uplinks.iter().copied().map(NetworkElement::Uplink);
        let leaves = outcome.leaves.iter().copied().map(NetworkElement::Leaf);
        let pods = outcome.pods.iter().copied().map(NetworkElement::Pod);
        let elements = links.chain(pairs).chain(uplinks).chain(leaves).chain(pods).collect();
        Self { cluster, elements }
    }

    /// All that are named, the candidates of ambiguities and links of any kind with them.
    pub(super) fn perhaps(cluster: &'a Cluster, outcome: &Outcome) -> Self {
        let mut named = Self::sure(cluster, outcome);
        let links = outcome.links.iter().map(|link| NetworkElement::Link(link.nodes.0, link.nodes.1));
        let partial = outcome.partial_uplinks.iter().map(|it| NetworkElement::PartialUplink(it.rack));
        let candidates = outcome.ambiguous.iter().flat_map(|it| it.candidates.iter().copied());
        named.elements.extend(links.chain(partial).chain(candidates));
        named
    }

    pub(super) fn has(&self, element: NetworkElement) -> bool {
        self.elements.contains(&element)
    }

    fn has_rack(&self, rack: u32) -> bool {
        self.has(NetworkElement::Uplink(rack)) || self.has(NetworkElement::Leaf(rack))
    }

    fn pod(&self, rack: u32) -> Option<u32> {
        rack.checked_div(self.cluster.pod_size)
    }

    /// All uplinks of the rack are called dead.
    fn is_out(&self, rack: u32) -> bool {
        self.has_rack(rack) || self.pod(rack).is_some_and(|pod| self.has(NetworkElement::Pod(pod)))
    }

    /// The pairs of these racks between which all paths are called dead.
    pub(super) fn dead_between(&self, racks: &[u32]) -> BTreeSet<(u32, u32)> {
        let out = racks.iter().filter(|rack| self.is_out(**rack));
        let of_one =
            |one: u32| racks.iter().filter(move |it| **it != one).map(move |it| (one.min(*it), one.max(*it)));
        let pairs = self.elements.iter().filter_map(|element| match element {
            NetworkElement::RackPair(a, b) => Some((*a, *b)),
            _ => None,
        });
        out.flat_map(|rack| of_one(*rack)).chain(pairs).collect()
    }

    /// Whether all paths between two different racks are called dead.
    pub(super) fn covers_racks(&self, a: u32, b: u32) -> bool {
        self.is_out(a) || self.is_out(b) || self.has(NetworkElement::RackPair(a.min(b), a.max(b)))
    }

    /// The same, or each of them is named by itself.
    pub(super) fn covers_all_links(&self, ones: &[u32], others: &[u32]) -> bool {
        let pairs = ones.len().saturating_mul(others.len());
        pairs > 0
            && pairs <= self.elements.len()
            && ones.iter().all(|one| others.iter().all(|other| self.covers_link(*one, *other)))
    }

    /// Whether the path between two nodes is called dead, all or in part.
    pub(super) fn covers_link(&self, a: u32, b: u32) -> bool {
        let racks = (self.cluster.rack(a), self.cluster.rack(b));
        let part = |rack: u32| self.has(NetworkElement::PartialUplink(rack));
        self.has(NetworkElement::Link(a.min(b), a.max(b)))
            || racks.0 == racks.1 && self.has(NetworkElement::Leaf(racks.0))
            || racks.0 != racks.1 && (self.covers_racks(racks.0, racks.1) || part(racks.0) || part(racks.1))
    }

    /// Whether a node is among the candidates of an ambiguity, or its rack or pod is named.
    pub(super) fn covers_node(&self, node: u32) -> bool {
        let rack = self.cluster.rack(node);
        let is_pod = self.pod(rack).is_some_and(|pod| self.has(NetworkElement::Pod(pod)));
        self.has(NetworkElement::Node(node)) || self.has(NetworkElement::Leaf(rack)) || is_pod
    }
}
