//! What the closed tests prove: a pure function of the log.
//!
//! A test that passed proves both its ends good at that time, since data was transferred both ways and verified. A
//! test that failed proves nothing by itself; with a partner that is verified it is evidence, unless a larger
//! element explains it ([`Fabric`]) or the node passed later. A failed group of three is no evidence about any node:
//! any of its three links would explain it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    RoundRecord, TestRecord, TestResult,
    check_log::{CheckLog, Pair, pair},
    fabric::Fabric,
    judged::{Judged, judge},
    links::{self, Edge},
    racks::Racks,
};

/// A test that is evidence against a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestEvidence {
    /// A node that is verified.
    pub(super) partner: u32,
    /// Its place in the log.
    pub(super) round: usize,
    pub(super) test: usize,
    /// Else it was slow.
    pub(super) is_fail: bool,
}

/// The facts about a node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeFacts {
    pub(super) is_gone: bool,
    /// A test with it passed.
    pub(super) has_passed: bool,
    /// The last round in which it passed.
    pub(super) last_pass: Option<usize>,
    /// It passed, it is still there, and it is not condemned.
    pub(super) good: bool,
    /// It did not pass with enough good nodes, and not since.
    pub(super) condemned: bool,
    /// Condemned for being slow.
    pub(super) slow: bool,
    pub(super) flaky: bool,
    /// It is flaky, and two bad links are no explanation.
    pub(super) surely_flaky: bool,
    /// There is enough evidence against it, unless its rack's uplink is at fault.
    pub(super) is_held: bool,
    /// No further test can distinguish it from its rack: neither is called broken.
    pub(super) is_undecided: bool,
    /// It never passed, and dead larger elements explain why.
    pub(super) is_out_of_reach: bool,
    /// One for each good partner.
    pub(super) evidence: Vec<TestEvidence>,
    /// Other nodes that it was tested with, in pairs.
    pub(super) met: Vec<u32>,
}

impl NodeFacts {
    /// Whether it is unknown if it is good or bad.
    pub(super) fn is_suspect(&self) -> bool {
        !self.is_gone && !self.good && !self.condemned && !self.is_undecided
    }

    /// Whether others can be judged by their tests with it.
    pub(super) fn is_witness(&self) -> bool {
        self.good && !self.flaky
    }
}

/// A test of two nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairTest {
    pub(super) round: usize,
    pub(super) index: usize,
    pub(super) ends: Pair,
    pub(super) works: bool,
    pub(super) is_fail: bool,
    /// It did not pass, and the loss of a member does not explain it.
    pub(super) speaks: bool,
}

/// What the closed tests prove.
#[derive(Debug)]
pub(super) struct Facts {
    /// By round and test, as in the log.
    pub(super) judged: Vec<Vec<Judged>>,
    pub(super) nodes: Vec<NodeFacts>,
    /// Pairs with a test that did not pass, whatever their ends are.
    pub(super) edges: BTreeMap<Pair, Edge>,
    /// Pairs of racks with a test that passed between them.
    pub(super) open_paths: BTreeSet<Pair>,
    /// Pairs of racks between which two healthy nodes failed, and no test has passed since.
    pub(super) suspect_paths: BTreeSet<Pair>,
    /// All tests of pairs.
    pub(super) pairs: Vec<PairTest>,
    pub(super) fabric: Fabric,
    pub(super) racks: Racks,
    /// The samples that it takes to call a node or a link slow.
    pub(super) slow_confirmations: u32,
    /// Tests in a row, each with another good node, that a node must fail.
    pub(super) needed: u32,
}

impl Facts {
    pub(super) fn of(log: &CheckLog) -> Self {
        let (judged, slow_confirmations) = judge(log);
        let pairs = pair_tests(log, &judged);
        let mut nodes = standings(log, &judged, &pairs);
        let is_good: Vec<bool> = nodes.iter().map(|node| node.good).collect();
        let mut edges = links::edges(log, &judged, &is_good);
        let fabric = Fabric::of(log, &telling_of_paths(&pairs, &edges), &nodes);
        for (ends, edge) in &mut edges {
            edge.is_explained =
                edge.first.is_some_and(|test_evidence| fabric.explains(log, test_evidence.round, *ends));
        }
        let open_paths = links::open_paths(log, &judged);
        gather(log, &pairs, &fabric, &mut nodes);
        let racks = Racks::of(log, &pairs, &fabric, &nodes);
        let needed = needed(log, &pairs, &edges, &nodes);
        condemn(log, &racks, needed, slow_confirmations, &mut nodes);
        let suspect_paths = links::suspect_paths(log, &edges, &nodes, &pairs);
        let mut facts = Self {
            judged,
            nodes,
            edges,
            open_paths,
            suspect_paths,
            pairs,
            fabric,
            racks,
            slow_confirmations,
            needed,
        };
        facts.find_those_that_died(log);
        links::mark_flaky(&facts.pairs, &facts.edges, &mut facts.nodes);
        for (number, node) in (0_u32..).zip(&mut facts.nodes) {
            // A fault that it found itself outweighs every test.
            let has_own = log.node(number).is_some_and(|node| node.local.fault.is_some());
            node.condemned &= !has_own;
        }
        facts
    }

    pub(super) fn node(&self, node: u32) -> Option<&NodeFacts> {
        self.nodes.get(node as usize)
    }

    pub(super) fn is(&self, node: u32, question: impl Fn(&NodeFacts) -> bool) -> bool {
        self.node(node).is_some_and(question)
    }

    pub(super) fn have_met(&self, a: u32, b: u32) -> bool {
        self.is(a, |node| node.met.contains(&b))
    }

    /// Whether a test between two good nodes failed: not every failure is a node's here.
    pub(super) fn has_link_trouble(&self) -> bool {
        self.edges.iter().any(|(ends, edge)| edge.fails > 0 && self.are_good(*ends))
    }

    /// Whether a dead larger element is between these.
    pub(super) fn is_cut(&self, log: &CheckLog, ends: Pair) -> bool {
        self.fabric.is_cut(log, ends)
    }

    pub(super) fn are_good(&self, (a, b): Pair) -> bool {
        self.is(a, |node| node.good) && self.is(b, |node| node.good)
    }

    /// Finds nodes that passed at first, and since then with no other: they died in the check. Failures with them
    /// since are no evidence against others.
    fn find_those_that_died(&mut self, log: &CheckLog) {
        let mut since: BTreeMap<u32, Vec<TestEvidence>> = BTreeMap::new();
        for test in self.pairs.iter().filter(|test| test.speaks && test.is_fail) {
            if self.fabric.explains(log, test.round, test.ends) {
                continue;
            }
            for (node, partner) in [test.ends, (test.ends.1, test.ends.0)] {
                // Where the two failed before it last passed, their link explains both.
                let first = self.edges.get(&test.ends).map_or(test.round, |edge| edge.since);
                let is_open = self.is(node, |it| it.last_pass.is_some_and(|last| first > last))
                    && self.is(partner, |it| it.good);
                let evidence = since.entry(node).or_default();
                if is_open && evidence.iter().all(|test_evidence| test_evidence.partner != partner) {
                    evidence.push(TestEvidence {
                        partner,
                        round: test.round,
                        test: test.index,
                        is_fail: true,
                    });
                }
            }
        }
        let degree = |node: u32| since.get(&node).map_or(0, Vec::len);
        let mut died = Vec::new();
        for (node, evidence) in &since {
            // A partner that passed since, or that has less evidence against it.
            let is_sound = |test_evidence: &&TestEvidence| {
                degree(test_evidence.partner) < evidence.len()
                    || self.is(test_evidence.partner, |it| {
                        it.last_pass.is_some_and(|last| last >= test_evidence.round)
                    })
            };
            let sound = count(evidence.iter().filter(is_sound));
            let is_certain = !self.racks.is_in_doubt(log, *node, evidence);
            if self.is(*node, |it| it.good) && sound >= self.needed && is_certain {
                died.push((*node, evidence.clone()));
            }
        }
        for (node, evidence) in died {
            if let Some(facts) = self.nodes.get_mut(node as usize) {
                (facts.good, facts.condemned, facts.evidence) = (false, true, evidence);
            }
            for partner in &mut self.nodes {
                let Some(at) =
                    partner.evidence.iter().position(|test_evidence| test_evidence.partner == node)
                else {
                    continue;
                };
                let is_since = partner.evidence.get(at).is_some_and(|test_evidence| {
                    since.get(&node).is_some_and(|own| own.iter().any(|it| it.round == test_evidence.round))
                });
                if is_since && !partner.has_passed {
                    partner.evidence.remove(at);
                    partner.condemned &= count(partner.evidence.iter()) >= self.needed;
                }
            }
        }
    }
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// The tests with their places.
pub(super) fn tests<'a>(
    rounds: &'a [RoundRecord],
    judged: &'a [Vec<Judged>],
) -> impl Iterator<Item = (usize, usize, &'a TestRecord, Judged)> {
    rounds.iter().zip(judged).enumerate().flat_map(|(round, (record, judged))| {
        let tests = record.tests.iter().zip(judged).enumerate();
        tests.map(move |(index, (test, judged))| (round, index, test, *judged))
    })
}

/// Its two members.
pub(super) fn ends(test: &TestRecord) -> Option<Pair> {
    match test.members[..] {
        [a, b] => Some(pair(a, b)),
        _ => None,
    }
}

/// All pairs of members; if the test passed, all of them did.
pub(super) fn all_met(test: &TestRecord) -> impl Iterator<Item = Pair> {
    let members = &test.members;
    members.iter().enumerate().flat_map(|(at, a)| members.iter().skip(at + 1).map(|b| pair(*a, *b)))
}

/// All tests of pairs, in order; a group of three that passed is three of them.
fn pair_tests(log: &CheckLog, judged: &[Vec<Judged>]) -> Vec<PairTest> {
    let mut pairs = Vec::new();
    for (round, index, test, judged) in tests(&log.rounds, judged) {
        let counts = judged.works || test.members.len() == 2;
        for ends in all_met(test).filter(|_| counts) {
            pairs.push(PairTest {
                round,
                index,
                ends,
                works: judged.works,
                is_fail: judged.result == TestResult::Fail,
                speaks: !judged.works && !test.explained,
            });
        }
    }
    pairs
}

/// The same for larger elements: a link that is only as slow as its ends is no evidence.
fn telling_of_paths(pairs: &[PairTest], edges: &BTreeMap<Pair, Edge>) -> Vec<PairTest> {
    let is_slow = |ends: &Pair| edges.get(ends).is_some_and(Edge::is_slow);
    let tell =
        |test: &PairTest| PairTest { speaks: test.speaks && (test.is_fail || is_slow(&test.ends)), ..*test };
    pairs.iter().map(tell).collect()
}

/// Which nodes passed, and their partners.
fn standings(log: &CheckLog, judged: &[Vec<Judged>], pairs: &[PairTest]) -> Vec<NodeFacts> {
    let new = |node: &super::check_log::Node| NodeFacts { is_gone: node.is_gone(), ..NodeFacts::default() };
    let mut nodes: Vec<NodeFacts> = log.nodes.iter().map(new).collect();
    for (_, _, test, _) in tests(&log.rounds, judged) {
        if let [a, b] = test.members[..] {
            for (node, partner) in [(a, b), (b, a)] {
                if let Some(node) = nodes.get_mut(node as usize) {
                    node.met.push(partner);
                }
            }
        }
    }
    for test in pairs.iter().filter(|test| test.works) {
        for node in [test.ends.0, test.ends.1] {
            if let Some(node) = nodes.get_mut(node as usize) {
                node.has_passed = true;
                node.last_pass = node.last_pass.max(Some(test.round));
                node.good = !node.is_gone;
            }
        }
    }
    nodes
}

/// The evidence against each node: each good partner once, and nothing that a larger element explains. Of a node that
/// has passed, only failures.
fn gather(log: &CheckLog, pairs: &[PairTest], fabric: &Fabric, nodes: &mut [NodeFacts]) {
    for test in pairs.iter().filter(|test| test.speaks) {
        let is_explained = fabric.explains(log, test.round, test.ends);
        for (node, partner) in [test.ends, (test.ends.1, test.ends.0)] {
            if is_explained {
                if let Some(node) =
                    nodes.get_mut(node as usize).filter(|node| !node.has_passed && !node.is_gone)
                {
                    node.is_out_of_reach = true;
                }
                continue;
            }
            let is_good = nodes.get(partner as usize).is_some_and(|node| node.good);
            let Some(node) = nodes.get_mut(node as usize).filter(|_| is_good) else { continue };
            if !test.is_fail && node.has_passed {
                continue;
            }
            let test_evidence =
                TestEvidence { partner, round: test.round, test: test.index, is_fail: test.is_fail };
            match node.evidence.iter_mut().find(|test_evidence| test_evidence.partner == partner) {
                Some(log) if test_evidence.is_fail && !log.is_fail => *log = test_evidence,
                Some(_) => {}
                None => node.evidence.push(test_evidence),
            }
        }
    }
    for node in nodes {
        node.evidence.sort_by_key(|test_evidence| (test_evidence.round, test_evidence.test));
    }
}

/// The number of tests that a node must fail in a row: the policy's, and more where tests fail by chance; so many
/// that it happens to one healthy node in one of ten thousand checks.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped"
)]
fn needed(log: &CheckLog, pairs: &[PairTest], edges: &BTreeMap<Pair, Edge>, nodes: &[NodeFacts]) -> u32 {
    /// Where everything fails by chance no number is enough.
    const MAX_TESTS: u32 = 5;
    const CHANCE: f64 = 1e-4;
    let fewest = log.policy.confirm.max(1);
    let is_good = |node: u32| nodes.get(node as usize).is_some_and(|node| node.good);
    // By chance: it passed later, or was not repeated yet (a failed group of three repeats nothing: it must not make
    // fewer tests enough). Two that pass and fail are one flaky node.
    let mut of_nodes: BTreeSet<u32> = BTreeSet::new();
    let mut failures = 0_u32;
    for ((a, b), edge) in edges {
        let by_chance = edge.fails > 0 && !edge.is_explained && (edge.passes > 0 || edge.seen_in_pairs() < 2);
        if by_chance && is_good(*a) && is_good(*b) && !of_nodes.contains(a) && !of_nodes.contains(b) {
            of_nodes.extend([*a, *b]);
            failures += 1;
        }
    }
    // A test with a lost node is no evidence, not even of chance.
    let telling = pairs.iter().filter(|test| test.works || test.speaks).count();
    if failures == 0 || telling == 0 {
        return fewest;
    }
    let share = (f64::from(failures) / telling as f64).min(0.5);
    let tests = (CHANCE / log.nodes.len() as f64).ln() / share.ln();
    (tests.ceil() as u32).clamp(fewest, MAX_TESTS.max(fewest))
}

/// Condemns nodes that never passed, and failed with enough good ones.
fn condemn(log: &CheckLog, racks: &Racks, needed: u32, slow_confirmations: u32, nodes: &mut [NodeFacts]) {
    let fewest = log.policy.confirm.max(1);
    let good: BTreeSet<u32> =
        (0_u32..).zip(&*nodes).filter(|(_, node)| node.good).map(|(number, _)| number).collect();
    for (number, node) in (0_u32..).zip(&mut *nodes).filter(|(_, node)| !node.has_passed) {
        let evidence = count(node.evidence.iter());
        let fails = count(node.evidence.iter().filter(|test_evidence| test_evidence.is_fail));
        node.slow = fails < fewest && fails < evidence;
        // In a small cluster there are no more partners.
        let is_all = || {
            good.iter().all(|other| node.evidence.iter().any(|test_evidence| test_evidence.partner == *other))
        };
        let needed = if node.slow { fewest.max(slow_confirmations) } else { needed };
        let is_enough = evidence >= needed || evidence >= fewest && !node.slow && is_all();
        if !is_enough {
            node.is_undecided = racks.is_leaf_dead(log.rack(number)) && !node.is_gone;
            continue;
        }
        if racks.is_alone(log, number) || racks.is_leaf_dead(log.rack(number)) {
            node.is_undecided = !node.is_gone;
        } else if racks.is_in_doubt(log, number, &node.evidence) {
            node.is_held = true;
        } else {
            node.condemned = true;
        }
    }
}
