//! Links: pairs of nodes and pairs of racks, distinguished from the nodes at their ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    LinkFault, LinkKind, TestResult,
    check_log::{CheckLog, Pair, pair},
    facts::{Facts, NodeFacts, PairTest, TestEvidence, all_met, ends, tests},
    judged::Judged,
    partial_uplinks::PartialUplinkFault,
};

/// The tests between two nodes of which one did not pass.
#[derive(Debug, Clone, Default)]
pub(super) struct Edge {
    pub(super) passes: u32,
    pub(super) slows: u32,
    pub(super) fails: u32,
    /// Both were in a group of three that failed, and all three are good.
    fails_in_three: u32,
    /// The first test that failed; else the first that was slow. `partner` has no meaning here.
    pub(super) first: Option<TestEvidence>,
    /// One of its ends is hardly faster with others, so the link need not be slow.
    is_like_its_ends: bool,
    /// The round of the first that did not pass.
    pub(super) since: usize,
    /// Its tests used a dead larger element.
    pub(super) is_explained: bool,
}

impl Edge {
    /// It was slow each time, and its ends are not.
    pub(super) fn is_slow(&self) -> bool {
        self.slows > 0 && self.fails == 0 && self.passes == 0 && !self.is_like_its_ends
    }

    /// It failed each time, and more than once.
    pub(super) fn is_dead(&self) -> bool {
        self.fails > 0 && self.seen() >= 2 && self.passes == 0 && self.slows == 0
    }

    /// How often it was tried, with the failures that may be its own.
    pub(super) fn seen(&self) -> u32 {
        self.seen_in_pairs() + self.fails_in_three
    }

    /// How often the two were tested by themselves.
    pub(super) fn seen_in_pairs(&self) -> u32 {
        self.passes + self.slows + self.fails
    }

    /// Whether this end passed with another after it failed here, or a group of three failed before all: it is no
    /// fault of the end.
    pub(super) fn is_probed_at(&self, last_pass: Option<usize>) -> bool {
        self.fails_in_three > 0 || last_pass.is_some_and(|last| last > self.since)
    }
}

/// All pairs with a test that did not pass and is not explained by a lost member.
pub(super) fn edges(log: &CheckLog, judged: &[Vec<Judged>], is_good: &[bool]) -> BTreeMap<Pair, Edge> {
    let mut edges: BTreeMap<Pair, Edge> = BTreeMap::new();
    for (round, index, test, judged) in tests(&log.rounds, judged) {
        let Some(ends) = ends(test) else { continue };
        if judged.works || test.explained {
            continue;
        }
        let edge = edges.entry(ends).or_insert_with(|| Edge { since: round, ..Edge::default() });
        let is_fail = judged.result == TestResult::Fail;
        if is_fail {
            edge.fails += 1;
        } else {
            edge.slows += 1;
        }
        if edge.first.is_none_or(|first| is_fail && !first.is_fail) {
            edge.first = Some(TestEvidence { partner: ends.1, round, test: index, is_fail });
        }
    }
    for (_, _, test, judged) in tests(&log.rounds, judged) {
        if judged.works
            && let Some(edge) = ends(test).and_then(|ends| edges.get_mut(&ends))
        {
            edge.passes += 1;
        }
    }
    for (_, _, test, judged) in tests(&log.rounds, judged) {
        // If a member is not good it may be that one's fault.
        let are_good = || test.members.iter().all(|it| is_good.get(*it as usize).copied().unwrap_or(false));
        let is_three = test.members.len() == 3 && judged.result == TestResult::Fail && are_good();
        for ends in all_met(test).filter(|_| is_three) {
            if let Some(edge) = edges.get_mut(&ends) {
                edge.fails_in_three += 1;
            }
        }
    }
    compare_with_ends(log, judged, &mut edges);
    edges
}

/// Good nodes of failed groups of three that have not met as pairs. When all three of a group are good, one of its
/// links is bad, and the one that fails by itself too has failed twice; `false` where that is not known yet. None
/// where a failure is explained.
pub(super) fn of_threes(log: &CheckLog, facts: &Facts) -> Vec<(Pair, bool)> {
    let mut untested = Vec::new();
    for (_, _, test, judged) in tests(&log.rounds, &facts.judged) {
        if test.members.len() != 3 || judged.result != TestResult::Fail || test.explained {
            continue;
        }
        let explains = |ends: Pair| {
            facts.edges.get(&ends).is_some_and(|edge| edge.fails > 0) && facts.are_good(ends)
                || facts.is_cut(log, ends)
        };
        let are_fit = |members: &[u32]| members.iter().all(|member| facts.is(*member, NodeFacts::is_witness));
        if !all_met(test).any(explains) {
            let open = all_met(test).filter(|(a, b)| are_fit(&[*a, *b]) && !facts.have_met(*a, *b));
            untested.extend(open.map(|ends| (ends, are_fit(&test.members))));
        }
    }
    untested
}

/// A test takes as long as the slower of its ends, so a link is slow only by comparison with the other tests of both.
fn compare_with_ends(log: &CheckLog, judged: &[Vec<Judged>], edges: &mut BTreeMap<Pair, Edge>) {
    let slow: BTreeSet<u32> =
        edges.iter().filter(|(_, edge)| edge.slows > 0).flat_map(|((a, b), _)| [*a, *b]).collect();
    // The shortest time of each end with each partner.
    let mut times: BTreeMap<u32, BTreeMap<u32, Duration>> = BTreeMap::new();
    for (_, _, test, judged) in tests(&log.rounds, judged) {
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
                own.as_secs_f64() <= log.policy.straggler_ratio() * elsewhere.as_secs_f64()
            })
        };
        edge.is_like_its_ends = is_like(a, b) || is_like(b, a);
    }
}

/// Pairs of racks between which some test passed.
pub(super) fn open_paths(log: &CheckLog, judged: &[Vec<Judged>]) -> BTreeSet<Pair> {
    let passed = tests(&log.rounds, judged).filter(|(_, _, _, judged)| judged.works);
    let met = passed.flat_map(|(_, _, test, _)| all_met(test));
    met.map(|ends| log.racks_of(ends)).filter(|(a, b)| a != b).collect()
}

/// Paths between racks over which two healthy nodes failed, and no test has passed since.
pub(super) fn suspect_paths(
    log: &CheckLog,
    edges: &BTreeMap<Pair, Edge>,
    nodes: &[NodeFacts],
    pairs: &[PairTest],
) -> BTreeSet<Pair> {
    let is_good = |node: u32| nodes.get(node as usize).is_some_and(|node| node.good);
    let mut passed: BTreeMap<Pair, usize> = BTreeMap::new();
    for test in pairs.iter().filter(|test| test.works) {
        let last = passed.entry(log.racks_of(test.ends)).or_default();
        *last = test.round.max(*last);
    }
    let bad = edges
        .iter()
        .filter(|((a, b), edge)| (edge.fails > 0 || edge.is_slow()) && is_good(*a) && is_good(*b));
    let paths = bad.map(|(ends, edge)| (log.racks_of(*ends), edge.since));
    let is_open = |racks: &Pair, since: usize| passed.get(racks).is_some_and(|last| *last >= since);
    paths
        .filter(|(racks, since)| racks.0 != racks.1 && !is_open(racks, *since))
        .map(|(racks, _)| racks)
        .collect()
}

/// Finds flaky nodes: good nodes that failed with two good ones, more often than tests of this check fail by chance.
/// With a partner that failed with as many others the partner is as likely, and two links that fail each time they
/// are tried are links.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "counts of tests"
)]
pub(super) fn mark_flaky(pairs: &[PairTest], edges: &BTreeMap<Pair, Edge>, nodes: &mut [NodeFacts]) {
    /// Healthy nodes that are called flaky, in one check.
    const CHANCE: f64 = 0.005;
    let good: Vec<bool> = nodes.iter().map(|node| node.good).collect();
    let is_good = |node: u32| good.get(node as usize).copied().unwrap_or(false);
    let failing = |node: &NodeFacts| {
        node.evidence
            .iter()
            .filter(|test_evidence| test_evidence.is_fail && is_good(test_evidence.partner))
            .count()
    };
    let degrees: Vec<usize> = nodes.iter().map(failing).collect();
    // Failures that no node which failed more often can explain.
    let single = (0..).zip(&degrees).filter(|(node, degree)| **degree == 1 && is_good(*node)).count();
    let count = nodes.len();
    // A test that a lost member explains shows nothing, not even chance.
    let mut tests = vec![0_usize; count];
    let mut all_tests = 0_usize;
    for test in pairs.iter().filter(|test| test.works || test.speaks) {
        all_tests += 1;
        for end in [test.ends.0, test.ends.1] {
            if let Some(tests) = tests.get_mut(end as usize) {
                *tests += 1;
            }
        }
    }
    let share = (single as f64 / 2.0).max(0.5) / all_tests.max(1) as f64;
    for ((number, node), tests) in (0..).zip(nodes).zip(tests) {
        let own = failing(node);
        if !node.good || own < 2 {
            continue;
        }
        let partners = || {
            let fails = node
                .evidence
                .iter()
                .filter(|test_evidence| test_evidence.is_fail && is_good(test_evidence.partner));
            fails.map(|test_evidence| test_evidence.partner)
        };
        let lesser = |partner: &u32| degrees.get(*partner as usize).is_some_and(|degree| *degree < own);
        let is_dead = |partner: u32| edges.get(&pair(number, partner)).is_some_and(Edge::is_dead);
        let never_passed =
            |partner: u32| edges.get(&pair(number, partner)).is_some_and(|edge| edge.passes == 0);
        let are_links =
            partners().all(never_passed) && partners().filter(|it| is_dead(*it)).count() + 1 >= own.max(3);
        let tests = tests.max(own);
        let ways = (0..own).fold(1.0, |ways, nth| ways * (tests - nth) as f64 / (nth + 1) as f64);
        let is_no_chance = count as f64 * ways * share.powi(own as i32) < CHANCE || single < 4;
        node.flaky = partners().filter(lesser).count() >= 2 && !are_links && is_no_chance;
        let works_again =
            |partner: u32| edges.get(&pair(number, partner)).is_some_and(|edge| edge.passes > 0);
        node.surely_flaky = node.flaky && (own > 2 || partners().any(works_again));
    }
}

/// Bad links at the end; none that a larger element explains, nor part of a rack's dead paths.
pub(super) fn faults(log: &CheckLog, facts: &Facts, partial: &[PartialUplinkFault]) -> Vec<LinkFault> {
    let mut links = Vec::new();
    for (nodes, edge) in facts.edges.iter().filter(|(ends, _)| facts.are_good(**ends)) {
        let ends = [nodes.0, nodes.1];
        let is_of_node = ends.iter().any(|end| facts.is(*end, |node| node.flaky));
        let is_partial = partial.iter().any(|partial| partial.has(log, *nodes));
        if is_of_node || edge.is_explained || is_partial || facts.is_cut(log, *nodes) {
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
    links
}

/// Whether each failed link of this node fails each time. One that sometimes works indicates a flaky node.
fn fails_only_for_good(facts: &Facts, node: u32) -> bool {
    let is_dead = |partner: u32| facts.edges.get(&pair(node, partner)).is_some_and(Edge::is_dead);
    facts.is(node, |it| {
        it.evidence
            .iter()
            .filter(|test_evidence| test_evidence.is_fail)
            .all(|test_evidence| is_dead(test_evidence.partner))
    })
}
