//! What it all comes to: a verdict for each node, with what speaks for it.

use std::time::Duration;

use super::{
    ComputeKind, Evidence, Guard, NodeFinding, NodeVerdict, Outcome, TestRecord, TestResult,
    compute::{self, Pace},
    facts::{Facts, Judged, Piece, Standing, tests},
    known::Known,
    links, ratio,
    record::seconds,
};

/// Tests that are listed for one node; what came first tells enough.
const MOST_LISTED: usize = 8;

/// Taints that are given in any cluster, however small.
const ALWAYS_ALLOWED: u32 = 2;

/// The outcome, of all that is known now.
pub(super) fn outcome(known: &Known, took: Duration) -> Outcome {
    let facts = Facts::of(known);
    let paces = compute::paces(known);
    let compute_confirmations = paces.iter().flatten().map(|pace| pace.needed).max().unwrap_or(0);
    let lists = listed(known, &facts);
    let comm = comm_ratios(known, &facts);
    let is_untested = known.rounds.is_empty() || is_left_alone(known, &facts);
    let mut nodes = Vec::with_capacity(known.nodes.len());
    for (number, standing) in (0_u32..).zip(&facts.nodes) {
        let index = number as usize;
        let pace = paces.get(index).copied().flatten();
        let verdict = verdict(known, &facts, number, standing, pace, is_untested);
        let deserves = deserves_taint(known, number, &verdict);
        let tests = lists.get(index).map_or(&[][..], |tests| tests);
        nodes.push(NodeFinding {
            evidence: evidence(known, &facts, number, &verdict, tests, pace),
            tainted: deserves,
            excluded: deserves
                || matches!(
                    verdict,
                    NodeVerdict::Unreachable | NodeVerdict::Lost { .. } | NodeVerdict::LocalFault(_)
                ),
            compute_permille: pace.map(|pace| ratio::permille(pace.lowest)),
            comm_permille: comm.get(index).copied().flatten().map(ratio::permille),
            verdict,
        });
    }
    let guard = guard(known, &nodes);
    if guard.mass_failure {
        nodes.iter_mut().for_each(|node| node.tainted = false);
    }
    let (links, rack_pairs) = links::faults(known, &facts);
    let name = |rack: u32| known.racks.get(rack as usize).copied().unwrap_or(rack);
    let uplinks = facts.uplinks.suspects().filter(|rack| facts.uplinks.is_dead(*rack)).map(name).collect();
    let mut rounds = known.rounds.clone();
    for (round, judged) in rounds.iter_mut().zip(&facts.judged) {
        for (test, judged) in round.tests.iter_mut().zip(judged) {
            test.result = judged.result;
            test.ratio_permille = judged.ratio.map(ratio::permille);
        }
    }
    Outcome {
        seed: known.policy.seed,
        network_untested: is_untested,
        rounds,
        nodes,
        links,
        rack_pairs,
        uplinks,
        slow_confirmations: facts.slow_confirmations.max(compute_confirmations),
        guard,
        took,
    }
}

/// What a node is. A fault that it found itself says most, then what others proved, then that it went away: a node that
/// was condemned and went is a fault.
fn verdict(
    known: &Known,
    facts: &Facts,
    number: u32,
    standing: &Standing,
    pace: Option<Pace>,
    is_untested: bool,
) -> NodeVerdict {
    let Some(node) = known.node(number) else { return NodeVerdict::Inconclusive };
    if let Some(fault) = &node.local.fault {
        return NodeVerdict::LocalFault(fault.clone());
    }
    let rack = known.rack(number);
    let is_cut_off = facts.uplinks.is_dead(rack);
    let failed_inside = facts.uplinks.failed_inside.get(number as usize).map_or(0, Vec::len);
    let passed_inside = facts.uplinks.passed_inside.get(number as usize).is_some_and(|passed| *passed);
    let is_broken_inside = !passed_inside && failed_inside >= known.policy.confirm.max(1) as usize;
    if standing.condemned && !standing.slow && (!is_cut_off || is_broken_inside) {
        return NodeVerdict::Fault;
    }
    if let Some((_, reason)) = &node.lost {
        return NodeVerdict::Lost { reason: reason.clone() };
    }
    let is_slow_computing = pace.is_some_and(|pace| pace.is_straggler);
    if is_cut_off {
        NodeVerdict::Unreachable
    } else if standing.flaky {
        NodeVerdict::Flaky
    } else if is_slow_computing && (standing.good || known.policy.exclude_straggler) {
        // Who computes slowly also sends slowly, and not the other way round.
        NodeVerdict::StragglerCompute
    } else if standing.condemned {
        NodeVerdict::StragglerNetwork
    } else if standing.good || is_untested {
        NodeVerdict::Healthy
    } else {
        NodeVerdict::Inconclusive
    }
}

/// All others went away before a test passed with anybody: whoever is left is as fit as a node that was alone from the
/// start, for a test with one that went says nothing of it.
fn is_left_alone(known: &Known, facts: &Facts) -> bool {
    known.live().count() == 1 && !facts.nodes.iter().any(|node| node.good)
}

fn deserves_taint(known: &Known, number: u32, verdict: &NodeVerdict) -> bool {
    match verdict {
        NodeVerdict::LocalFault(fault) => !fault.is_nothing_broken(),
        NodeVerdict::Fault => true,
        NodeVerdict::Lost { .. } => known.node(number).is_some_and(|node| !node.has_left),
        NodeVerdict::Flaky => known.policy.taint_flaky,
        NodeVerdict::StragglerCompute | NodeVerdict::StragglerNetwork => known.policy.exclude_straggler,
        NodeVerdict::Healthy | NodeVerdict::Unreachable | NodeVerdict::Inconclusive => false,
    }
}

fn guard(known: &Known, nodes: &[NodeFinding]) -> Guard {
    let taints = u32::try_from(nodes.iter().filter(|node| node.tainted).count()).unwrap_or(u32::MAX);
    let share = (nodes.len() as u64).saturating_mul(u64::from(known.policy.taint_guard_permille)) / 1000;
    let limit = u32::try_from(share).unwrap_or(u32::MAX).max(ALWAYS_ALLOWED);
    Guard { taints, limit, mass_failure: taints > limit }
}

/// A test of a node, and where it is.
type Listed<'a> = (usize, &'a TestRecord, Judged);

/// The tests of each node.
fn listed<'a>(known: &'a Known, facts: &'a Facts) -> Vec<Vec<Listed<'a>>> {
    let mut lists = vec![Vec::new(); known.nodes.len()];
    for (round, _, test, judged) in tests(&known.rounds, &facts.judged) {
        for member in &test.members {
            if let Some(list) = lists.get_mut(*member as usize) {
                list.push((round, test, judged));
            }
        }
    }
    lists
}

/// The lowest ratio of each node's tests.
fn comm_ratios(known: &Known, facts: &Facts) -> Vec<Option<f64>> {
    let mut lowest: Vec<Option<f64>> = vec![None; known.nodes.len()];
    for (_, _, test, judged) in tests(&known.rounds, &facts.judged) {
        let Some(ratio) = judged.ratio else { continue };
        for member in &test.members {
            if let Some(own) = lowest.get_mut(*member as usize) {
                *own = Some(own.map_or(ratio, |own| own.min(ratio)));
            }
        }
    }
    lowest
}

fn index(round: usize) -> Option<u32> {
    u32::try_from(round).ok()
}

fn evidence(
    known: &Known,
    facts: &Facts,
    number: u32,
    verdict: &NodeVerdict,
    tests: &[Listed<'_>],
    pace: Option<Pace>,
) -> Vec<Evidence> {
    match verdict {
        NodeVerdict::Healthy => Vec::new(),
        NodeVerdict::LocalFault(fault) => {
            let words = format!("{}: {}", fault.component, fault.reason);
            vec![Evidence { round: None, partners: Vec::new(), words }]
        }
        NodeVerdict::Lost { reason } => {
            let round = known.node(number).and_then(|node| Some(node.lost.as_ref()?.0));
            let partners = tests.iter().filter(|(at, ..)| index(*at) == round);
            let partners = partners.flat_map(|(_, test, _)| others(test, number)).collect();
            vec![Evidence { round, partners, words: format!("lost: {reason}") }]
        }
        NodeVerdict::StragglerCompute => {
            let Some(Pace { lowest, own, others, samples, .. }) = pace else { return Vec::new() };
            let words = format!(
                "{lowest:.2} times the mean compute time of the others in {samples} of {samples} samples: {} \
                 and they {}{}",
                millis(own),
                millis(others),
                timed(known, number)
            );
            vec![Evidence { round: known.rounds.first().map(|_| 0), partners: Vec::new(), words }]
        }
        NodeVerdict::Fault | NodeVerdict::StragglerNetwork | NodeVerdict::Flaky => {
            let pieces = facts.node(number).map_or(&[][..], |node| &node.evidence);
            let mut evidence: Vec<Evidence> = pieces
                .iter()
                .filter(|piece| piece.is_fail || *verdict != NodeVerdict::Flaky)
                .filter_map(|piece| with_good_partner(known, facts, number, piece))
                .collect();
            if *verdict == NodeVerdict::Flaky {
                evidence.extend(passes(number, tests));
            }
            evidence
        }
        NodeVerdict::Unreachable => {
            let rack = known.racks.get(known.rack(number) as usize).copied().unwrap_or(0);
            let failed = tests.iter().filter(|(_, test, judged)| {
                judged.result == TestResult::Fail
                    && others(test, number).any(|it| known.rack(it) != known.rack(number))
            });
            let tell = |(round, test, _): &Listed<'_>| {
                let partners: Vec<u32> = others(test, number).collect();
                let words = format!(
                    "failed with {} outside rack {rack}, whose nodes reach each other and nobody else: {}",
                    names(&partners),
                    reason(test, number)
                );
                Evidence { round: index(*round), partners, words }
            };
            failed.take(MOST_LISTED).map(tell).collect()
        }
        NodeVerdict::Inconclusive => inconclusive(facts, number, tests),
    }
}

/// `failed with node 4, which is proven good: connection timed out after 2.0 s`.
fn with_good_partner(known: &Known, facts: &Facts, number: u32, piece: &Piece) -> Option<Evidence> {
    let test = known.rounds.get(piece.round)?.tests.get(piece.test)?;
    let partner = format!("node {}, which is proven good", piece.partner);
    let words = if piece.is_fail {
        format!("failed with {partner}: {}", reason(test, number))
    } else {
        let judged = facts.judged.get(piece.round)?.get(piece.test)?;
        slow_words(number, &partner, test, *judged)
    };
    Some(Evidence { round: index(piece.round), partners: vec![piece.partner], words })
}

fn slow_words(number: u32, partner: &str, test: &TestRecord, judged: Judged) -> String {
    let took = test.comm.map_or_else(String::new, seconds);
    let ratio = judged.ratio.unwrap_or(1.0);
    let cut =
        if test.result == TestResult::Slow { format!("; {}", reason(test, number)) } else { String::new() };
    format!("took {took} with {partner}: {ratio:.2} times the mean of the other tests{cut}")
}

/// The flaky node's other face.
fn passes(number: u32, tests: &[Listed<'_>]) -> Option<Evidence> {
    let mut passed = tests.iter().filter(|(_, _, judged)| judged.works);
    let (round, test, _) = passed.next()?;
    let partners: Vec<u32> = others(test, number).collect();
    let further = passed.count();
    let words = format!("passed with {} all the same, and in {further} further tests", names(&partners));
    Some(Evidence { round: index(*round), partners, words })
}

fn inconclusive(facts: &Facts, number: u32, tests: &[Listed<'_>]) -> Vec<Evidence> {
    if tests.is_empty() {
        let words = "was not tested with anybody: nobody else was left".to_owned();
        return vec![Evidence { round: None, partners: Vec::new(), words }];
    }
    let tell = |(round, test, judged): &Listed<'_>| {
        let partners: Vec<u32> = others(test, number).collect();
        let doubt = match &partners[..] {
            [partner] if facts.is(*partner, |it| it.good) => {
                "which is proven good, and one such test is not enough"
            }
            [partner] if facts.is(*partner, |it| it.is_gone) => "which is gone",
            [_] => "which is not proven good either",
            _ => "any two of whom may be at fault",
        };
        let who = format!("{}, {doubt}", names(&partners));
        let words = match judged.result {
            TestResult::Fail => format!("failed with {who}: {}", reason(test, number)),
            TestResult::Pass | TestResult::Slow => slow_words(number, &who, test, *judged),
        };
        Evidence { round: index(*round), partners, words }
    };
    tests.iter().take(MOST_LISTED).map(tell).collect()
}

fn others(test: &TestRecord, number: u32) -> impl Iterator<Item = u32> {
    test.members.iter().copied().filter(move |member| *member != number)
}

/// `node 4 and node 7`.
fn names(nodes: &[u32]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| format!("node {node}")).collect();
    names.join(" and ")
}

/// Why a test did not pass, in the words of this member, who knows most of itself; else in another's.
fn reason(test: &TestRecord, number: u32) -> String {
    let own = test.reasons.iter().find(|(node, _)| *node == number);
    match own.or_else(|| test.reasons.first()) {
        Some((node, reason)) if *node == number => reason.clone(),
        Some((node, reason)) => format!("node {node} says: {reason}"),
        None => "no reason was given".to_owned(),
    }
}

/// What an accelerator did in that time; nothing of processors, which all do the same.
fn timed(known: &Known, number: u32) -> String {
    let compute = known.node(number).and_then(|node| node.local.compute.as_ref());
    match compute.map(|compute| &compute.kind) {
        Some(kind @ (ComputeKind::OwnKernel { .. } | ComputeKind::Cublas { .. })) => format!(", for {kind}"),
        Some(ComputeKind::Processor | ComputeKind::Untold) | None => String::new(),
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
