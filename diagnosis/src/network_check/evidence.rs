//! The evidence for a verdict, as text with its numbers.

use std::time::Duration;

use super::{
    Baseline, ComputeKind, Cut, Evidence, FabricNames, NodeVerdict, TestRecord, TestResult,
    check_log::CheckLog,
    compute::{self, ComputeRatio},
    facts::{Facts, TestEvidence, tests},
    judged::Judged,
};
use crate::counted::{counted, named_and_more};

/// The most tests that are listed for one node, the first ones.
const MAX_LISTED: usize = 8;

/// A test of a node, and its round.
type Listed<'a> = (usize, &'a TestRecord, Judged);

/// The tests of each node.
pub(super) fn listed<'a>(log: &'a CheckLog, facts: &'a Facts) -> Vec<Vec<Listed<'a>>> {
    let mut lists = vec![Vec::new(); log.nodes.len()];
    for (round, _, test, judged) in tests(&log.rounds, &facts.judged) {
        for member in &test.members {
            if let Some(list) = lists.get_mut(*member as usize) {
                list.push((round, test, judged));
            }
        }
    }
    lists
}

/// The lowest ratio of each node's tests.
pub(super) fn comm_ratios(log: &CheckLog, facts: &Facts) -> Vec<Option<f64>> {
    let mut lowest: Vec<Option<f64>> = vec![None; log.nodes.len()];
    for (_, _, test, judged) in tests(&log.rounds, &facts.judged) {
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

pub(super) fn evidence(
    log: &CheckLog,
    facts: &Facts,
    number: u32,
    verdict: &NodeVerdict,
    tests: &[Listed<'_>],
    ratio: Option<ComputeRatio>,
    cut: Option<&Cut>,
) -> Vec<Evidence> {
    let names = &log.policy.names;
    match verdict {
        NodeVerdict::Healthy => Vec::new(),
        NodeVerdict::LocalFault(fault) => {
            let message = format!("{}: {}", fault.component, fault.reason);
            vec![Evidence { round: None, partners: Vec::new(), message }]
        }
        NodeVerdict::Lost { reason } => {
            let round = log.node(number).and_then(|node| Some(node.lost.as_ref()?.0));
            let partners = tests.iter().filter(|(at, ..)| index(*at) == round);
            let partners = partners.flat_map(|(_, test, _)| others(test, number)).collect();
            vec![Evidence { round, partners, message: format!("lost: {reason}") }]
        }
        NodeVerdict::StragglerCompute => {
            let message = ratio.map(|ratio| compute_message(log, number, ratio));
            let round = log.rounds.first().map(|_| 0);
            message.map(|message| Evidence { round, partners: Vec::new(), message }).into_iter().collect()
        }
        NodeVerdict::Fault | NodeVerdict::StragglerNetwork | NodeVerdict::Flaky => {
            let found = facts.node(number).map_or(&[][..], |node| &node.evidence);
            let mut evidence: Vec<Evidence> = found
                .iter()
                .filter(|test_evidence| test_evidence.is_fail || *verdict != NodeVerdict::Flaky)
                .filter_map(|test_evidence| with_good_partner(log, facts, number, test_evidence))
                .collect();
            if *verdict == NodeVerdict::Flaky {
                evidence.extend(passes(names, number, tests));
            }
            if *verdict == NodeVerdict::Fault {
                evidence.extend(died(names, number, tests));
            }
            evidence
        }
        NodeVerdict::Unreachable => unreachable(log, facts, number, tests, cut),
        NodeVerdict::Inconclusive => inconclusive(names, facts, number, tests),
    }
}

/// Why a node that may be healthy is excluded: what is down, and the tests over it.
fn unreachable(
    log: &CheckLog,
    facts: &Facts,
    number: u32,
    tests: &[Listed<'_>],
    cut: Option<&Cut>,
) -> Vec<Evidence> {
    let names = &log.policy.names;
    let rack = log.racks.get(log.rack(number) as usize).copied().unwrap_or(0);
    let rack = names.rack(rack);
    let why = match cut {
        Some(cut) => cut.message.clone(),
        None if facts.racks.is_leaf_dead(log.rack(number)) => {
            format!(
                "no node of {rack} passed a test, not even with another node of that rack: the switch of {rack} is \
                 down, or all of its nodes are broken"
            )
        }
        None => {
            format!(
                "either the node is broken or the uplink of {rack} is down; no test within the rack can tell which"
            )
        }
    };
    // Known once all was tested.
    let last = log.rounds.len().checked_sub(1).and_then(index);
    let mut listed = vec![Evidence { round: last, partners: Vec::new(), message: why }];
    let failed = tests.iter().filter(|(_, _, judged)| judged.result == TestResult::Fail);
    let tell = |(round, test, _): &Listed<'_>| {
        let partners: Vec<u32> = others(test, number).collect();
        let message = format!("failed with {}: {}", names.all_of(&partners), reason(names, test, number));
        Evidence { round: index(*round), partners, message }
    };
    listed.extend(failed.take(MAX_LISTED).map(tell));
    listed
}

/// `failed with node 4, which is verified: connection timed out after 2.0 s`.
fn with_good_partner(
    log: &CheckLog,
    facts: &Facts,
    number: u32,
    test_evidence: &TestEvidence,
) -> Option<Evidence> {
    let test = log.rounds.get(test_evidence.round)?.tests.get(test_evidence.test)?;
    let names = &log.policy.names;
    let partner = format!("{}, which is verified", names.node(test_evidence.partner));
    let message = if test_evidence.is_fail {
        format!("failed with {partner}: {}", reason(names, test, number))
    } else {
        let judged = facts.judged.get(test_evidence.round)?.get(test_evidence.test)?;
        slow_message(names, number, &partner, test, *judged)
    };
    Some(Evidence { round: index(test_evidence.round), partners: vec![test_evidence.partner], message })
}

/// `2.10 times the baseline compute time in each of 2 samples: at least 105.0 ms against
/// 50.0 ms, ...`.
fn compute_message(log: &CheckLog, number: u32, ratio: ComputeRatio) -> String {
    let ComputeRatio { shortest, others, lowest, samples, .. } = ratio;
    let mean = Duration::try_from_secs_f64(others.value).unwrap_or(Duration::MAX);
    let outliers = compute::outliers(log, number, others, MAX_LISTED);
    let named =
        outliers.iter().map(|(node, time)| format!("{} ({})", log.policy.names.node(*node), millis(*time)));
    let left_out = if outliers.is_empty() {
        String::new()
    } else {
        format!("; outliers left out: {}", named_and_more(named, others.left_out as usize))
    };
    let all = if samples == 1 { String::from("1 sample") } else { format!("each of {samples} samples") };
    format!(
        "{lowest:.2} times the baseline compute time in {all}: at least {} against \
         {}{}; the baseline is the mean of {} that ran the same computation{left_out}",
        millis(shortest),
        millis(mean),
        timed(log, number),
        counted(others.counted as usize, "node"),
    )
}

/// `took 400.0 ms with node 4, ...: 4.00 times the baseline between racks: 100.0 ms, the mean of 6 other
/// nodes`.
fn slow_message(
    names: &FabricNames,
    number: u32,
    partner: &str,
    test: &TestRecord,
    judged: Judged,
) -> String {
    let took = test.comm.map_or_else(String::new, millis);
    let against = match (judged.ratio, judged.baseline) {
        (Some(ratio), Some(Baseline { time, counted: nodes, left_out, of_all })) => {
            let class = match (of_all, test.across) {
                (true, _) => "in all tests",
                (false, true) => "between racks",
                (false, false) => "within racks",
            };
            let left_out = match left_out {
                0 => String::new(),
                left_out => format!(", outliers left out: {}", counted(left_out as usize, "node")),
            };
            format!(
                ": {ratio:.2} times the baseline {class}: {}, the mean of {}{left_out}",
                millis(time),
                counted(nodes as usize, "other node")
            )
        }
        _ => String::new(),
    };
    let cut = if test.result == TestResult::Slow {
        format!("; {}", reason(names, test, number))
    } else {
        String::new()
    };
    format!("took {took} with {partner}{against}{cut}")
}

/// A faulty node that passed tests before it failed.
fn died(names: &FabricNames, number: u32, tests: &[Listed<'_>]) -> Option<Evidence> {
    let (round, test, _) = tests.iter().rev().find(|(_, _, judged)| judged.works)?;
    let (_, failed, _) =
        tests.iter().find(|(at, _, judged)| at > round && judged.result == TestResult::Fail)?;
    let partners: Vec<u32> = others(test, number).collect();
    let message = format!(
        "passed with {} at {:.2} s, failed at {:.2} s and later",
        names.all_of(&partners),
        test.ended.as_secs_f64(),
        failed.ended.as_secs_f64()
    );
    Some(Evidence { round: index(*round), partners, message })
}

/// The passes of a flaky node.
fn passes(names: &FabricNames, number: u32, tests: &[Listed<'_>]) -> Option<Evidence> {
    let mut passed = tests.iter().filter(|(_, _, judged)| judged.works);
    let (round, test, _) = passed.next()?;
    let partners: Vec<u32> = others(test, number).collect();
    let further = match passed.count() {
        0 => String::new(),
        further => format!(", and in {}", counted(further, "further test")),
    };
    let message = format!("also passed with {}{further}", names.all_of(&partners));
    Some(Evidence { round: index(*round), partners, message })
}

/// Why a node is inconclusive: it was not tested, or what makes each of its tests too little evidence.
fn inconclusive(names: &FabricNames, facts: &Facts, number: u32, tests: &[Listed<'_>]) -> Vec<Evidence> {
    if tests.is_empty() {
        let message = "was not tested: no other node was left".to_owned();
        return vec![Evidence { round: None, partners: Vec::new(), message }];
    }
    let tell = |(round, test, judged): &Listed<'_>| {
        let partners: Vec<u32> = others(test, number).collect();
        let (doubt, doubt_after) = match &partners[..] {
            [partner] if facts.is(*partner, |it| it.good) => {
                (", which is verified", "; this test alone is not enough evidence")
            }
            [partner] if facts.is(*partner, |it| it.is_gone) => (", which was lost", ""),
            [_] => (", which is also unverified", ""),
            _ => ("", "; any of the three nodes may be at fault"),
        };
        let partner = format!("{}{doubt}", names.all_of(&partners));
        let message = match judged.result {
            TestResult::Fail => format!("failed with {partner}: {}", reason(names, test, number)),
            TestResult::Pass | TestResult::Slow => slow_message(names, number, &partner, test, *judged),
        };
        Evidence { round: index(*round), partners, message: message + doubt_after }
    };
    tests.iter().take(MAX_LISTED).map(tell).collect()
}

fn others(test: &TestRecord, number: u32) -> impl Iterator<Item = u32> {
    test.members.iter().copied().filter(move |member| *member != number)
}

/// Why a test did not pass: as this member reported it, which knows most of itself, else as another did.
fn reason(names: &FabricNames, test: &TestRecord, number: u32) -> String {
    let own = test.reasons.iter().find(|(node, _)| *node == number);
    match own.or_else(|| test.reasons.first()) {
        Some((node, reason)) if *node == number => reason.clone(),
        Some((node, reason)) => format!("{}: {reason}", names.node(*node)),
        None => "no reason was given".to_owned(),
    }
}

/// What an accelerator timed; empty for processors, which all time the same.
fn timed(log: &CheckLog, number: u32) -> String {
    let compute = log.node(number).and_then(|node| node.local.compute.as_ref());
    match compute.map(|compute| &compute.kind) {
        Some(kind @ (ComputeKind::OwnKernel { .. } | ComputeKind::Cublas { .. })) => format!(", for {kind}"),
        Some(ComputeKind::Processor | ComputeKind::Unspecified) | None => String::new(),
    }
}

/// `105.0 ms`; below a tenth of it in nanoseconds.
fn millis(time: Duration) -> String {
    let digits = if time < Duration::from_micros(100) { 6 } else { 1 };
    format!("{:.digits$} ms", time.as_secs_f64() * 1000.0)
}
