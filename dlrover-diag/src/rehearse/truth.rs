//! Compares the outcome of a check with the simulated faults, which the check itself never learns.
//!
//! | question | file |
//! |---|---|
//! | what was put in and not found | `missed`, `seen` |
//! | which healthy nodes are tainted or excluded | `blamed` |
//! | what is named and works | `wrong`, `named` |
//! | how many rounds are allowed | `bound` |

mod blamed;
mod bound;
mod missed;
mod named;
mod seen;
#[cfg(test)]
mod tests;
mod wrong;

use std::collections::{BTreeMap, BTreeSet};

use diagnosis::network_check::{NetworkElement, NodeVerdict, Outcome, TestResult, rehearsal::Cluster};

pub(super) use self::{
    blamed::{Blamed, word},
    missed::{Missed, Reason},
};
use super::{job::Job, settings::Settings};

/// A check, judged.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) missed: Vec<Missed>,
    pub(super) blamed: Vec<Blamed>,
    /// What is named and is not broken: an element, or an ambiguity of which no candidate is.
    pub(super) wrong: Vec<Vec<NetworkElement>>,
    /// Pairs of nodes of the job that the simulated fabric cuts, as the check knows.
    pub(super) over_cut: usize,
    /// The most rounds; `None`: as many as are needed.
    pub(super) bound: Option<u32>,
    pub(super) rounds: u32,
    /// Some node is inconclusive.
    pub(super) is_undecided: bool,
}

impl Truth {
    pub(super) fn of(settings: &Settings, outcome: &Outcome) -> Self {
        let job = Job::after(&settings.policy, outcome);
        let is_undecided = outcome.nodes.iter().any(|node| node.verdict == NodeVerdict::Inconclusive);
        Self {
            missed: missed::missed(settings, outcome),
            blamed: blamed::blamed(settings, outcome),
            wrong: wrong::wrong(settings, outcome),
            over_cut: if job.starts() { over_cut(&settings.cluster, outcome) } else { 0 },
            bound: bound::most_rounds(settings),
            rounds: u32::try_from(outcome.rounds.len()).unwrap_or(u32::MAX),
            is_undecided,
        }
    }

    /// Healthy nodes that are tainted.
    pub(super) fn healthy_tainted(&self) -> usize {
        self.blamed.iter().filter(|node| node.tainted).count()
    }

    /// Healthy nodes that are excluded though the simulated fabric reaches them.
    pub(super) fn healthy_excluded(&self) -> usize {
        self.blamed.iter().filter(|node| node.excluded && !node.cut_off).count()
    }

    /// Healthy nodes that are excluded, for the simulated fabric cuts them off.
    pub(super) fn cut_off(&self) -> usize {
        self.blamed.iter().filter(|node| node.cut_off && !node.tainted).count()
    }

    /// Faults that tests showed and that are not named.
    pub(super) fn missed_though_shown(&self) -> usize {
        self.missed.iter().filter(|it| it.reason == Reason::Shown).count()
    }

    pub(super) fn is_over_bound(&self) -> bool {
        self.bound.is_some_and(|bound| self.rounds > bound)
    }
}

/// Whether nothing is broken in the node itself.
fn is_healthy(settings: &Settings, node: u32) -> bool {
    !settings.cluster.is_broken(node, settings.policy.exclude_straggler)
}

/// The number of the round that was the last.
fn last_round(outcome: &Outcome) -> u32 {
    u32::try_from(outcome.rounds.len().saturating_sub(1)).unwrap_or(u32::MAX)
}

/// Whether the simulated fabric keeps the node from a node that stays.
fn is_cut_off(cluster: &Cluster, outcome: &Outcome, node: u32) -> bool {
    let last = last_round(outcome);
    staying(outcome).iter().any(|other| *other != node && cluster.is_cut_in(last, node, *other))
}

/// The nodes that are not excluded.
fn staying(outcome: &Outcome) -> Vec<u32> {
    let nodes = (0..).zip(&outcome.nodes);
    nodes.filter(|(_, node)| !node.excluded).map(|(number, _)| number).collect()
}

/// The result of the last test that a pair made alone, by pair, the lower first.
fn last_tests(outcome: &Outcome) -> BTreeMap<(u32, u32), TestResult> {
    let tests = outcome.rounds.iter().flat_map(|round| &round.tests);
    let pairs = tests.filter_map(|test| match *test.members.as_slice() {
        [a, b] => Some(((a.min(b), a.max(b)), test.result)),
        _ => None,
    });
    pairs.collect()
}

/// Pairs of nodes that stay and that the simulated fabric cuts, and the check knows: their last test failed, or the way
/// is named as dead.
fn over_cut(cluster: &Cluster, outcome: &Outcome) -> usize {
    let last = last_round(outcome);
    let stays = |node: u32| outcome.nodes.get(node as usize).is_some_and(|it| !it.excluded);
    let is_cut = |(a, b): &(u32, u32)| stays(*a) && stays(*b) && cluster.is_cut_in(last, *a, *b);
    let failed = last_tests(outcome).into_iter().filter(|(_, result)| *result == TestResult::Fail);
    let mut known: BTreeSet<(u32, u32)> = failed.map(|(pair, _)| pair).filter(is_cut).collect();
    let mut by_rack: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for node in staying(outcome) {
        by_rack.entry(cluster.rack(node)).or_default().push(node);
    }
    let named = named::Named::sure(cluster, outcome);
    let racks: Vec<u32> = by_rack.keys().copied().collect();
    for (a, b) in named.dead_between(&racks) {
        let (Some(ones), Some(others)) = (by_rack.get(&a), by_rack.get(&b)) else { continue };
        let pairs = ones.iter().flat_map(|one| others.iter().map(|other| (*one.min(other), *one.max(other))));
        known.extend(pairs.filter(is_cut));
    }
    known.len()
}
