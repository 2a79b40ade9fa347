//! What it all comes to: a verdict for each node, with what speaks for it.

use std::time::Duration;

use super::{
    Guard, NodeFinding, NodeVerdict, Outcome, Tainting,
    compute::{self, Pace},
    evidence::{comm_ratios, evidence, listed},
    facts::{Facts, Standing},
    known::Known,
    links, ratio,
};

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
                    NodeVerdict::Unreachable
                        | NodeVerdict::Lost { .. }
                        | NodeVerdict::LocalFault(_)
                        | NodeVerdict::Flaky
                ),
            compute_permille: pace.map(|pace| ratio::permille(pace.lowest)),
            compute: compute::finding(known, number, pace),
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
            test.usual = judged.usual;
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
        leaves: Vec::new(),
        pods: Vec::new(),
        partial_uplinks: Vec::new(),
        ambiguous: Vec::new(),
        cut: None,
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
        NodeVerdict::Lost { .. } => {
            known.node(number).is_some_and(|node| !node.has_left) && is_confirmed(known, number)
        }
        NodeVerdict::Flaky => is_confirmed(known, number),
        NodeVerdict::StragglerCompute | NodeVerdict::StragglerNetwork => known.policy.exclude_straggler,
        NodeVerdict::Healthy | NodeVerdict::Unreachable | NodeVerdict::Inconclusive => false,
    }
}

/// What may pass by itself is tainted when the policy says so.
fn is_confirmed(known: &Known, number: u32) -> bool {
    match known.policy.taint_flaky {
        Tainting::Now => true,
        Tainting::Confirmed => known.node(number).is_some_and(|node| node.seen_before),
        Tainting::Never => false,
    }
}

fn guard(known: &Known, nodes: &[NodeFinding]) -> Guard {
    let taints = u32::try_from(nodes.iter().filter(|node| node.tainted).count()).unwrap_or(u32::MAX);
    let share = (nodes.len() as u64).saturating_mul(u64::from(known.policy.taint_guard_permille)) / 1000;
    let limit = u32::try_from(share).unwrap_or(u32::MAX).max(ALWAYS_ALLOWED);
    Guard { taints, limit, mass_failure: taints > limit }
}
