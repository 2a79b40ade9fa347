//! Paths: pairs of nodes and pairs of racks, told from the nodes at their ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    LinkFault, LinkKind, RackPairFault, TestResult,
    facts::{Facts, Piece, Standing, all_met, ends, tests},
    judged::Judged,
    known::{Known, Pair, pair},
};

/// What was seen between two nodes of which a test did not pass.
#[derive(Debug, Clone, Default)]
pub(super) struct Edge {
    pub(super) passes: u32,
    pub(super) slows: u32,
    pub(super) fails: u32,
    /// Both were in a group of three that failed, and all three are good.
    fails_in_three: u32,
    /// The first test that failed; else the first that was slow. `partner` has no meaning here.
    pub(super) first: Option<Piece>,
    /// One of its ends is hardly faster with others, so that it was slow says nothing of the link.
    is_like_its_ends: bool,
}

impl Edge {
    /// It was slow each time, and its ends are not.
    pub(super) fn is_slow(&self) -> bool {
        self.slows > 0 && self.fails == 0 && self.passes == 0 && !self.is_like_its_ends
    }

    /// It failed each time, and more than once.
    fn is_dead(&self) -> bool {
        self.fails > 0 && self.seen() >= 2 && self.passes == 0 && self.slows == 0
    }

    /// How often it was tried, with the failures that may be its own.
    pub(super) fn seen(&self) -> u32 {
        self.passes + self.slows + self.fails + self.fails_in_three
    }

    /// Its ends passed with others after a failure that may be its own: a group of three is tested first of all.
    pub(super) fn is_probed(&self) -> bool {
        self.fails_in_three > 0
    }
}

/// What was seen between two racks.
#[derive(Debug, Clone, Default)]
pub(super) struct RackTally {
    /// Some test passed.
    pub(super) passes: bool,
    /// Pairs of good nodes that did not pass.
    pub(super) bad: Vec<Pair>,
}

impl RackTally {
    /// Two pairs of good nodes did not pass and none did: the path is at fault, not who uses it.
    pub(super) fn is_bad(&self) -> bool {
        !self.passes && self.bad.len() >= 2
    }

    /// One is enough to go another way.
    pub(super) fn is_suspect(&self) -> bool {
        !self.passes && !self.bad.is_empty()
    }
}

/// All pairs of which a test did not pass and is not explained by a member that is gone.
pub(super) fn edges(known: &Known, judged: &[Vec<Judged>], is_good: &[bool]) -> BTreeMap<Pair, Edge> {
    let mut edges: BTreeMap<Pair, Edge> = BTreeMap::new();
    for (round, index, test, judged) in tests(&known.rounds, judged) {
        let Some(ends) = ends(test) else { continue };
        if judged.works || test.explained {
            continue;
        }
        let edge = edges.entry(ends).or_default();
        let is_fail = judged.result == TestResult::Fail;
        if is_fail {
            edge.fails += 1;
        } else {
            edge.slows += 1;
        }
        if edge.first.is_none_or(|first| is_fail && !first.is_fail) {
            edge.first = Some(Piece { partner: ends.1, round, test: index, is_fail });
        }
    }
    for (_, _, test, judged) in tests(&known.rounds, judged) {
        if judged.works
            && let Some(edge) = ends(test).and_then(|ends| edges.get_mut(&ends))
        {
            edge.passes += 1;
        }
    }
    for (_, _, test, judged) in tests(&known.rounds, judged) {
        // With one that is not good it may be that one's fault.
        let are_good = || test.members.iter().all(|it| is_good.get(*it as usize).copied().unwrap_or(false));
        let is_three = test.members.len() == 3 && judged.result == TestResult::Fail && are_good();
        for ends in all_met(test).filter(|_| is_three) {
            if let Some(edge) = edges.get_mut(&ends) {
                edge.fails_in_three += 1;
            }
        }
    }
    compare_with_ends(known, judged, &mut edges);
    edges
}

/// Good nodes of failed groups of three that have not met as pairs. When all three of a group are good, one of its links
/// is bad, and the one that fails by itself too has failed twice; `false` where it is not known yet that they are. None
/// where a failure is explained.
pub(super) fn of_threes(known: &Known, facts: &Facts) -> Vec<(Pair, bool)> {
    let mut untested = Vec::new();
    for (_, _, test, judged) in tests(&known.rounds, &facts.judged) {
        if test.members.len() != 3 || judged.result != TestResult::Fail || test.explained {
            continue;
        }
        let explains = |ends: Pair| {
            facts.edges.get(&ends).is_some_and(|edge| edge.fails > 0) && facts.are_good(ends)
                || facts.is_cut(known.racks_of(ends))
        };
        let are_fit = |members: &[u32]| members.iter().all(|member| facts.is(*member, Standing::is_witness));
        if !all_met(test).any(explains) {
            let open = all_met(test).filter(|(a, b)| are_fit(&[*a, *b]) && !facts.have_met(*a, *b));
            untested.extend(open.map(|ends| (ends, are_fit(&test.members))));
        }
    }
    untested
}

/// A test takes as long as the slower of its ends, so a link is slow only by what both of them do with others.
fn compare_with_ends(known: &Known, judged: &[Vec<Judged>], edges: &mut BTreeMap<Pair, Edge>) {
    let slow: BTreeSet<u32> =
        edges.iter().filter(|(_, edge)| edge.slows > 0).flat_map(|((a, b), _)| [*a, *b]).collect();
    // Of each end, its shortest time with each partner.
    let mut times: BTreeMap<u32, BTreeMap<u32, Duration>> = BTreeMap::new();
    for (_, _, test, judged) in tests(&known.rounds, judged) {
        let (Some((a, b)), Some(comm)) = (ends(test), test.comm) else { continue };
        if judged.result == TestResult::Fail {
            continue;
        }
        for (end, partner) in [(a, b), (b, a)].into_iter().filter(|(end, _)| slow.contains(end)) {
            let time = times.entry(end).or_default().entry(partner).or_insert(comm);
            *time = comm.min(*time);
        }
    }
    for ((a, b), edge) in edges.iter_mut().filter(|(_, edge)| edge.slows > 0) {
        let own = times.get(a).and_then(|times| times.get(b)).copied();
        let is_like = |end: &u32, partner: &u32| {
            let others = times.get(end).into_iter().flatten().filter(|(other, _)| *other != partner);
            let elsewhere = others.map(|(_, time)| *time).min();
            own.zip(elsewhere).is_some_and(|(own, elsewhere)| {
                own.as_secs_f64() <= known.policy.straggler_ratio() * elsewhere.as_secs_f64()
            })
        };
        edge.is_like_its_ends = is_like(a, b) || is_like(b, a);
    }
}

/// Pairs of racks between which some test passed.
pub(super) fn open_paths(known: &Known, judged: &[Vec<Judged>]) -> BTreeSet<Pair> {
    let passed = tests(&known.rounds, judged).filter(|(_, _, _, judged)| judged.works);
    let met = passed.flat_map(|(_, _, test, _)| all_met(test));
    met.map(|ends| known.racks_of(ends)).filter(|(a, b)| a != b).collect()
}

/// What is known of the paths between racks that have two good nodes which did not pass.
pub(super) fn rack_pairs(
    known: &Known,
    edges: &BTreeMap<Pair, Edge>,
    is_good: &[bool],
    open_paths: &BTreeSet<Pair>,
) -> BTreeMap<Pair, RackTally> {
    let good = |node: u32| is_good.get(node as usize).copied().unwrap_or(false);
    let mut tallies: BTreeMap<Pair, RackTally> = BTreeMap::new();
    for (ends, _) in edges.iter().filter(|(_, edge)| edge.fails > 0 || edge.is_slow()) {
        let racks = known.racks_of(*ends);
        if racks.0 != racks.1 && good(ends.0) && good(ends.1) {
            tallies.entry(racks).or_default().bad.push(*ends);
        }
    }
    for (racks, tally) in &mut tallies {
        tally.passes = open_paths.contains(racks);
    }
    tallies
}

/// A good node that failed with two good ones. With a partner that failed with as many others it is the partner's
/// fault as likely, and two links that fail each time they are tried are links.
pub(super) fn mark_flaky(edges: &BTreeMap<Pair, Edge>, nodes: &mut [Standing]) {
    let failing = |node: &Standing| node.evidence.iter().filter(|piece| piece.is_fail).count();
    let degrees: Vec<usize> = nodes.iter().map(failing).collect();
    for (number, node) in (0..).zip(nodes) {
        let own = failing(node);
        if !node.good || own < 2 {
            continue;
        }
        let partners = || node.evidence.iter().filter(|piece| piece.is_fail).map(|piece| piece.partner);
        let lesser = |partner: &u32| degrees.get(*partner as usize).is_some_and(|degree| *degree < own);
        let is_dead = |partner: u32| edges.get(&pair(number, partner)).is_some_and(Edge::is_dead);
        let are_links = own == 2 && partners().all(is_dead);
        node.flaky = partners().filter(lesser).count() >= 2 && !are_links;
        let works_again =
            |partner: u32| edges.get(&pair(number, partner)).is_some_and(|edge| edge.passes > 0);
        node.surely_flaky = node.flaky && (own > 2 || partners().any(works_again));
    }
}

/// The paths that are bad, when all is over.
pub(super) fn faults(known: &Known, facts: &Facts) -> (Vec<LinkFault>, Vec<RackPairFault>) {
    let mut rack_pairs = Vec::new();
    let mut of_racks = Vec::new();
    for (racks, tally) in facts.rack_pairs.iter().filter(|(_, tally)| tally.is_bad()) {
        if facts.uplinks.is_dead(racks.0) || facts.uplinks.is_dead(racks.1) {
            of_racks.push(*racks);
        } else if !share_a_node(known, *racks, &tally.bad) {
            let name = |rack: u32| known.racks.get(rack as usize).copied().unwrap_or(rack);
            // Names ascend with their indices.
            let racks_named = (name(racks.0), name(racks.1));
            rack_pairs.push(RackPairFault { racks: racks_named, pairs: tally.bad.clone() });
            of_racks.push(*racks);
        }
    }
    let mut links = Vec::new();
    for (nodes, edge) in facts.edges.iter().filter(|(ends, _)| facts.are_good(**ends)) {
        let racks = known.racks_of(*nodes);
        let ends = [nodes.0, nodes.1];
        let is_of_node = ends.iter().any(|end| facts.is(*end, |node| node.flaky));
        let is_cut_off = racks.0 != racks.1 && ends.iter().any(|end| facts.uplinks.is_dead(known.rack(*end)));
        if is_of_node || is_cut_off || of_racks.binary_search(&racks).is_ok() {
            continue;
        }
        let kind = if edge.is_slow() && edge.slows >= facts.slow_confirmations {
            LinkKind::Slow
        } else if edge.is_dead() && ends.iter().all(|end| fails_only_for_good(facts, *end)) {
            LinkKind::Dead
        } else if edge.fails > 0 && edge.passes + edge.slows > 0 {
            LinkKind::Flaky
        } else {
            continue;
        };
        links.push(LinkFault { nodes: *nodes, kind });
    }
    (links, rack_pairs)
}

/// Each link of this node that failed fails each time. One that works now and then speaks for a flaky node.
fn fails_only_for_good(facts: &Facts, node: u32) -> bool {
    let is_dead = |partner: u32| facts.edges.get(&pair(node, partner)).is_some_and(Edge::is_dead);
    facts.is(node, |it| it.evidence.iter().filter(|piece| piece.is_fail).all(|piece| is_dead(piece.partner)))
}

/// All these pairs have one node in common, and its rack has others: then it is that node's links.
fn share_a_node(known: &Known, racks: Pair, pairs: &[Pair]) -> bool {
    let Some((a, b)) = pairs.first() else { return false };
    let is_alone = |node: u32| {
        let rack = known.rack(node);
        (rack == racks.0 || rack == racks.1)
            && known.order.iter().filter(|other| known.rack(**other) == rack).count() < 2
    };
    [*a, *b].into_iter().any(|end| pairs.iter().all(|(a, b)| *a == end || *b == end) && !is_alone(end))
}
