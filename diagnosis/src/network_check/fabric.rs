//! Which of the larger elements of a fabric - a path between two racks, a rack's uplink, a pod - explain tests that failed.
//!
//! An element that died at some moment explains every test over it from then on, so it must not have been passed since.
//! One element is a smaller explanation than the two or more nodes and links that would be needed without it; where
//! it would replace one only, the two are the same size, and neither is blamed here.
//!
//! A node that fails on tests without the element is broken in any case: tests with such nodes count for no element.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use super::{
    check_log::{CheckLog, Pair, apart, pair},
    facts::{NodeFacts, PairTest},
};

/// The fewest nodes and links that a larger element must replace.
const FEWEST: usize = 2;

/// An element that several pairs of nodes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FabricElement {
    /// All paths between two racks, by index, the lower first.
    Path(u32, u32),
    /// All uplinks of a rack.
    Uplink(u32),
    /// All uplinks of a pod.
    PodOut(u32),
    /// The switch of a pod: its uplinks, and the paths between its racks.
    PodSwitch(u32),
}

/// An element that is a smaller explanation than nodes and links.
#[derive(Debug, Clone)]
pub(super) struct Blamed {
    pub(super) element: FabricElement,
    /// The pairs that failed over it since it was last passed.
    pub(super) pairs: BTreeSet<Pair>,
    /// Other elements that explain the same.
    pub(super) rivals: Vec<FabricElement>,
    /// It was last passed in this round.
    pub(super) last_pass: Option<usize>,
}

/// What the larger elements explain.
#[derive(Debug, Clone, Default)]
pub(super) struct Fabric {
    pub(super) blamed: Vec<Blamed>,
    /// Their places in the list.
    sure: BTreeMap<FabricElement, usize>,
    has_pods: bool,
}

/// The elements between these two nodes, of racks and pods.
fn elements(log: &CheckLog, has_pods: bool, (a, b): Pair) -> impl Iterator<Item = FabricElement> {
    let racks = log.racks_of((a, b));
    let pods = pair(log.pod(a), log.pod(b));
    let is_across = racks.0 != racks.1;
    let of_racks = [
        FabricElement::Path(racks.0, racks.1),
        FabricElement::Uplink(racks.0),
        FabricElement::Uplink(racks.1),
    ];
    let out = [FabricElement::PodOut(pods.0), FabricElement::PodOut(pods.1)];
    let switches = [FabricElement::PodSwitch(pods.0), FabricElement::PodSwitch(pods.1)];
    let is_out = is_across && has_pods && pods.0 != pods.1;
    let switches =
        switches.into_iter().take(if !(is_across && has_pods) { 0 } else { 1 + usize::from(is_out) });
    let of_racks = of_racks.into_iter().filter(move |_| is_across);
    of_racks.chain(out.into_iter().filter(move |_| is_out)).chain(switches)
}

impl Fabric {
    pub(super) fn of(log: &CheckLog, tests: &[PairTest], nodes: &[NodeFacts]) -> Self {
        let racks = log.racks.len();
        let has_pods = log.pods.len() < racks;
        let mut fabric = Self { blamed: Vec::new(), sure: BTreeMap::new(), has_pods };
        if racks < 2 {
            return fabric;
        }
        let mut last_passes: BTreeMap<FabricElement, usize> = BTreeMap::new();
        for test in tests.iter().filter(|test| test.works) {
            for element in elements(log, has_pods, test.ends) {
                let last = last_passes.entry(element).or_default();
                *last = test.round.max(*last);
            }
        }
        let mut through: BTreeMap<FabricElement, Vec<usize>> = BTreeMap::new();
        for (place, test) in tests.iter().enumerate().filter(|(_, test)| test.speaks) {
            for element in elements(log, has_pods, test.ends) {
                if last_passes.get(&element).is_none_or(|last| test.round > *last) {
                    through.entry(element).or_default().push(place);
                }
            }
        }
        through.retain(|_, places| places.len() >= FEWEST);
        let mut of_nodes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, test) in tests.iter().enumerate().filter(|(_, test)| test.speaks) {
            for (node, partner) in [test.ends, (test.ends.1, test.ends.0)] {
                let is_since = |node: u32| is_since(nodes, node, test.round);
                if is_since(node) && nodes.get(partner as usize).is_some_and(|it| it.has_passed) {
                    of_nodes.entry(node).or_default().push(place);
                }
            }
        }
        let view = View { log, tests, nodes, has_pods, of_nodes, through };
        let mut covered: BTreeSet<usize> = BTreeSet::new();
        // What one element explains another need not: the best is evaluated again before it is accepted.
        let all = view.through.keys();
        let mut queue: BinaryHeap<(usize, Reverse<FabricElement>)> =
            all.filter_map(|element| Some((view.gain(*element, &covered)?.0, Reverse(*element)))).collect();
        while let Some((replaced, Reverse(element))) = queue.pop() {
            let Some((now, free)) = view.gain(element, &covered) else { continue };
            if now < replaced {
                queue.push((now, Reverse(element)));
                continue;
            }
            let is_rival = |(other, places): &(&FabricElement, &Vec<usize>)| {
                **other != element && free.iter().all(|place| places.binary_search(place).is_ok())
            };
            let rivals = view.through.iter().filter(is_rival).map(|(other, _)| *other).collect();
            let all = view.through.get(&element).cloned().unwrap_or_default();
            let pairs = all.iter().filter_map(|place| tests.get(*place)).map(|test| test.ends).collect();
            covered.extend(all);
            fabric.sure.insert(element, fabric.blamed.len());
            fabric.blamed.push(Blamed {
                element,
                pairs,
                rivals,
                last_pass: last_passes.get(&element).copied(),
            });
        }
        fabric
    }

    /// Whether a test of these two in this round failed because of a blamed element. Also one in the round of its
    /// last pass: it died in the middle of it.
    pub(super) fn explains(&self, log: &CheckLog, round: usize, ends: Pair) -> bool {
        self.blamed_over(log, ends).any(|it| it.last_pass.is_none_or(|last| round >= last))
    }

    /// The same for elements larger than the path between two racks.
    pub(super) fn explains_out_of_racks(&self, log: &CheckLog, round: usize, ends: Pair) -> bool {
        let larger = self.blamed_over(log, ends).filter(|it| !matches!(it.element, FabricElement::Path(..)));
        larger.into_iter().any(|it| it.last_pass.is_none_or(|last| round >= last))
    }

    /// Whether no test gets from one of these to the other now.
    pub(super) fn is_cut(&self, log: &CheckLog, ends: Pair) -> bool {
        self.blamed_over(log, ends).next().is_some()
    }

    /// Whether the path of the two has this element.
    pub(super) fn is_over(&self, log: &CheckLog, element: FabricElement, ends: Pair) -> bool {
        elements(log, self.has_pods, ends).any(|it| it == element)
    }

    /// The dead elements between the two.
    pub(super) fn blamed_over(&self, log: &CheckLog, ends: Pair) -> impl Iterator<Item = &Blamed> {
        let elements = elements(log, self.has_pods, ends).filter(|_| !self.sure.is_empty());
        elements.filter_map(|element| self.sure.get(&element).and_then(|at| self.blamed.get(*at)))
    }
}

/// The candidates.
struct View<'a> {
    log: &'a CheckLog,
    tests: &'a [PairTest],
    nodes: &'a [NodeFacts],
    has_pods: bool,
    /// Places of the tests against a node since it passed.
    of_nodes: BTreeMap<u32, Vec<usize>>,
    /// Places of the tests that failed over an element since it was passed, ascending.
    through: BTreeMap<FabricElement, Vec<usize>>,
}

impl View<'_> {
    /// The number of nodes and links that this element replaces beyond what is covered, and their tests. `None` for
    /// too few, and where no two healthy nodes failed over it: then its nodes may be broken as well.
    fn gain(&self, element: FabricElement, covered: &BTreeSet<usize>) -> Option<(usize, Vec<usize>)> {
        let open = |place: &usize| !covered.contains(place);
        let is_through = |place: &usize| {
            let ends = self.tests.get(*place).map(|test| test.ends);
            ends.is_some_and(|ends| elements(self.log, self.has_pods, ends).any(|it| it == element))
        };
        // It is broken whether this element is or not.
        let is_needed = |node: u32| {
            self.of_nodes.get(&node).is_some_and(|own| own.iter().any(|it| open(it) && !is_through(it)))
        };
        let places = self.through.get(&element)?.iter().copied().filter(open);
        let is_free = |place: &usize| {
            self.tests.get(*place).is_some_and(|it| !is_needed(it.ends.0) && !is_needed(it.ends.1))
        };
        let free: Vec<usize> = places.filter(is_free).collect();
        let passed = |node: u32| self.nodes.get(node as usize).is_some_and(|it| it.has_passed);
        let are_fit = |test: &PairTest| passed(test.ends.0) && passed(test.ends.1);
        // The least number of nodes and links that explain them one by one.
        let replaced = apart(free.iter().filter_map(|place| Some(self.tests.get(*place)?.ends)));
        let is_known = free.iter().filter_map(|place| self.tests.get(*place)).any(are_fit);
        (replaced >= FEWEST && is_known).then_some((replaced, free))
    }
}

/// The node has not passed after this round.
fn is_since(nodes: &[NodeFacts], node: u32, round: usize) -> bool {
    nodes.get(node as usize).is_some_and(|it| it.last_pass.is_none_or(|last| round > last))
}
