//! The verdict on each node, with the evidence.

use std::time::Duration;

use super::{
    NodeFinding, NodeVerdict, OnBadPath, Outcome, PartialUplink, RackPairFault, TaintGuard, Tainting,
    ambiguity,
    check_log::CheckLog,
    compute::{self, ComputeRatio},
    cut,
    evidence::{comm_ratios, evidence, listed},
    fabric::FabricElement,
    facts::{Facts, NodeFacts},
    links, partial_uplinks, ratio,
};

/// Taints that are allowed in any cluster, however small.
const ALWAYS_ALLOWED: u32 = 2;

/// The outcome by the present facts.
pub(super) fn outcome(log: &CheckLog, took: Duration) -> Outcome {
    let facts = Facts::of(log);
    let compute_ratios = compute::compute_ratios(log);
    let compute_confirmations = compute_ratios.iter().flatten().map(|ratio| ratio.needed).max().unwrap_or(0);
    let lists = listed(log, &facts);
    let comm = comm_ratios(log, &facts);
    let is_untested = log.rounds.is_empty() || is_left_alone(log, &facts);
    let partial = partial_uplinks::uplinks(log, &facts);
    let links = links::faults(log, &facts, &partial);
    let mut verdicts = Vec::with_capacity(log.nodes.len());
    for (number, node) in (0_u32..).zip(&facts.nodes) {
        let ratio = compute_ratios.get(number as usize).copied().flatten();
        verdicts.push(verdict(log, number, node, ratio, is_untested));
    }
    let takes_part: Vec<u32> = (0..)
        .zip(&verdicts)
        .filter(|(_, verdict)| !is_excluded(log, verdict) && **verdict != NodeVerdict::Inconclusive)
        .map(|(number, _)| number)
        .collect();
    let cut = cut::cut(log, &facts, &links, &partial, &takes_part);
    if let Some(cut) = cut.as_ref().filter(|_| log.policy.on_bad_path == OnBadPath::Exclude) {
        for node in &cut.left_out {
            if let Some(verdict) = verdicts.get_mut(*node as usize) {
                *verdict = NodeVerdict::Unreachable;
            }
        }
    }
    let mut nodes = Vec::with_capacity(log.nodes.len());
    for (number, verdict) in (0_u32..).zip(verdicts) {
        let index = number as usize;
        let ratio = compute_ratios.get(index).copied().flatten();
        let tests = lists.get(index).map_or(&[][..], |tests| tests);
        let why = cut.as_ref().filter(|cut| cut.left_out.binary_search(&number).is_ok());
        nodes.push(NodeFinding {
            evidence: evidence(log, &facts, number, &verdict, tests, ratio, why),
            tainted: deserves_taint(log, number, &verdict),
            excluded: is_excluded(log, &verdict),
            compute_permille: ratio.map(|ratio| ratio::permille(ratio.lowest)),
            compute: compute::finding(log, number, ratio),
            comm_permille: comm.get(index).copied().flatten().map(ratio::permille),
            verdict,
        });
    }
    let taint_guard = taint_guard(log, &nodes);
    if taint_guard.mass_failure {
        nodes.iter_mut().for_each(|node| node.tainted = false);
    }
    let mut rounds = log.rounds.clone();
    for (round, judged) in rounds.iter_mut().zip(&facts.judged) {
        for (test, judged) in round.tests.iter_mut().zip(judged) {
            test.result = judged.result;
            test.ratio_permille = judged.ratio.map(ratio::permille);
            test.baseline = judged.baseline;
        }
    }
    let rack = |rack: u32| log.racks.get(rack as usize).copied().unwrap_or(rack);
    let pod = |pod: u32| log.pods.get(pod as usize).copied().unwrap_or(pod);
    let blamed = || {
        facts.fabric.blamed.iter().filter(|it| !partial.iter().any(|partial| partial.replaces(it.element)))
    };
    let rack_pairs = blamed().filter_map(|blamed| match blamed.element {
        FabricElement::Path(a, b) => {
            Some(RackPairFault { racks: (rack(a), rack(b)), pairs: blamed.pairs.iter().copied().collect() })
        }
        _ => None,
    });
    let uplinks = blamed().filter_map(|blamed| match blamed.element {
        FabricElement::Uplink(of) => Some(rack(of)),
        _ => None,
    });
    let pods = blamed().filter_map(|blamed| match blamed.element {
        FabricElement::PodOut(of) | FabricElement::PodSwitch(of) => Some(pod(of)),
        _ => None,
    });
    let mut uplinks: Vec<u32> = uplinks.collect();
    let (mut pods, mut rack_pairs): (Vec<u32>, Vec<RackPairFault>) = (pods.collect(), rack_pairs.collect());
    uplinks.sort_unstable();
    pods.sort_unstable();
    pods.dedup();
    rack_pairs.sort_by_key(|pair| pair.racks);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Outcome {
        seed: log.policy.seed,
        network_untested: is_untested,
        rounds,
        nodes,
        rack_pairs,
        uplinks,
        leaves: (0..)
            .zip(&log.racks)
            .filter(|(at, _)| facts.racks.is_leaf_dead(*at))
            .map(|(_, it)| *it)
            .collect(),
        pods,
        partial_uplinks: partial
            .iter()
            .map(|it| PartialUplink {
                rack: rack(it.rack),
                dead: count(it.dead.len()),
                tested: count(it.tested),
            })
            .collect(),
        ambiguous: ambiguity::all(log, &facts, &links, &partial),
        links,
        cut,
        slow_confirmations: facts.slow_confirmations.max(compute_confirmations),
        guard: taint_guard,
        took,
    }
}

/// Whether it takes no part in the job.
fn is_excluded(log: &CheckLog, verdict: &NodeVerdict) -> bool {
    match verdict {
        NodeVerdict::Healthy | NodeVerdict::Inconclusive => false,
        NodeVerdict::StragglerCompute | NodeVerdict::StragglerNetwork => log.policy.exclude_straggler,
        NodeVerdict::Fault
        | NodeVerdict::LocalFault(_)
        | NodeVerdict::Lost { .. }
        | NodeVerdict::Unreachable
        | NodeVerdict::Flaky => true,
    }
}

/// The verdict on a node. A fault that it found itself comes first, then what others proved, then that it is lost: a
/// node that was condemned and then lost is a fault.
fn verdict(
    log: &CheckLog,
    number: u32,
    facts: &NodeFacts,
    ratio: Option<ComputeRatio>,
    is_untested: bool,
) -> NodeVerdict {
    let Some(node) = log.node(number) else { return NodeVerdict::Inconclusive };
    if let Some(fault) = &node.local.fault {
        return NodeVerdict::LocalFault(fault.clone());
    }
    if facts.condemned && !facts.slow {
        return NodeVerdict::Fault;
    }
    if let Some((_, reason)) = &node.lost {
        return NodeVerdict::Lost { reason: reason.clone() };
    }
    let is_slow_computing = ratio.is_some_and(|ratio| ratio.is_straggler);
    if facts.is_undecided || facts.is_held || facts.is_out_of_reach {
        NodeVerdict::Unreachable
    } else if facts.flaky {
        NodeVerdict::Flaky
    } else if is_slow_computing && (facts.good || log.policy.exclude_straggler) {
        // A node that computes slowly also sends slowly, and not the other way round.
        NodeVerdict::StragglerCompute
    } else if facts.condemned {
        NodeVerdict::StragglerNetwork
    } else if facts.good || is_untested {
        NodeVerdict::Healthy
    } else {
        NodeVerdict::Inconclusive
    }
}

/// Whether all others went away before a test passed: the remaining node is as healthy as a node that was alone from
/// the start, for a test with a lost node is no evidence.
fn is_left_alone(log: &CheckLog, facts: &Facts) -> bool {
    log.live().count() == 1 && !facts.nodes.iter().any(|node| node.good)
}

fn deserves_taint(log: &CheckLog, number: u32, verdict: &NodeVerdict) -> bool {
    match verdict {
        NodeVerdict::LocalFault(fault) => !fault.component.is_nothing_broken(),
        NodeVerdict::Fault => true,
        NodeVerdict::Lost { .. } => {
            log.node(number).is_some_and(|node| !node.has_left) && is_confirmed(log, number)
        }
        NodeVerdict::Flaky => is_confirmed(log, number),
        NodeVerdict::StragglerCompute | NodeVerdict::StragglerNetwork => log.policy.exclude_straggler,
        NodeVerdict::Healthy | NodeVerdict::Unreachable | NodeVerdict::Inconclusive => false,
    }
}

/// Whether a fault that may be temporary is tainted by the policy.
fn is_confirmed(log: &CheckLog, number: u32) -> bool {
    match log.policy.taint_flaky {
        Tainting::Now => true,
        Tainting::Confirmed => log.node(number).is_some_and(|node| node.seen_before),
        Tainting::Never => false,
    }
}

fn taint_guard(log: &CheckLog, nodes: &[NodeFinding]) -> TaintGuard {
    let taints = u32::try_from(nodes.iter().filter(|node| node.tainted).count()).unwrap_or(u32::MAX);
    let share = (nodes.len() as u64).saturating_mul(u64::from(log.policy.taint_guard_permille)) / 1000;
    let limit = u32::try_from(share).unwrap_or(u32::MAX).max(ALWAYS_ALLOWED);
    TaintGuard { taints, limit, mass_failure: taints > limit }
}
