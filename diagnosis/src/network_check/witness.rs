//! Suspects meet nodes that are verified: the pairs.

use std::collections::BTreeSet;

use super::{
    Kind,
    check_log::{CheckLog, pair},
    facts::Facts,
    plan::Draft,
};

/// Witnesses that are compared for one suspect. All of them would be N^2, and in a shuffled list so many have one of
/// every kind, where there are no more racks.
pub(super) const COMPARED: usize = 48;

/// Witnesses that are considered for one suspect, with unreachable ones: enough to meet one of its own rack where
/// racks have at least a hundredth of the nodes.
const LOOKED_AT: usize = 16 * COMPARED;

/// The best score of a witness: in the suspect's own rack, and over a path that others have passed, where no better
/// one is looked for.
const BEST: u32 = 5;
const GOOD_ENOUGH: u32 = 4;

/// How well a witness distinguishes the suspect from the paths to it: best inside its own rack, without a path
/// between racks; then over a path between racks that others have passed; and where the suspect was not tested yet.
/// `None`: no test gets through.
fn score(log: &CheckLog, facts: &Facts, suspect: u32, witness: u32) -> Option<u32> {
    let (own, other) = (log.rack(suspect), log.rack(witness));
    let path = pair(own, other);
    if facts.is_cut(log, pair(suspect, witness)) {
        return None;
    }
    if own != other && facts.suspect_paths.contains(&path) {
        return Some(0);
    }
    let has_met = facts.is(suspect, |node| node.met.iter().any(|met| log.rack(*met) == other));
    Some(match (own == other, facts.open_paths.contains(&path)) {
        (true, _) if !has_met && log.racks.len() > 1 => BEST,
        (false, true) if !has_met => GOOD_ENOUGH,
        (true, _) | (_, true) => 3,
        (false, false) if !has_met => 2,
        (false, false) => 1,
    })
}

/// Suspects that were not tested inside their racks meet a good node there first: it distinguishes them from their
/// racks' uplinks.
pub(super) fn assign_inside(log: &CheckLog, facts: &Facts, suspects: &[u32], draft: &mut Draft) {
    if log.racks.len() < 2 {
        return;
    }
    let mut free: Vec<Vec<u32>> = vec![Vec::new(); log.racks.len()];
    for node in log.live().filter(|node| draft.is_free(*node) && facts.is(*node, |it| it.is_witness())) {
        if let Some(free) = free.get_mut(log.rack(node) as usize) {
            free.push(node);
        }
    }
    for suspect in suspects.iter().copied() {
        if !draft.is_free(suspect) {
            continue;
        }
        let rack = log.rack(suspect);
        let has_met_its_rack =
            facts.is(suspect, |it| it.evidence.iter().any(|piece| log.rack(piece.partner) == rack));
        let Some(free) = free.get_mut(rack as usize).filter(|_| !has_met_its_rack) else { continue };
        if let Some(at) = free.iter().position(|witness| !facts.have_met(suspect, *witness)) {
            let witness = free.swap_remove(at);
            draft.add(Kind::Witness, &[suspect, witness]);
        }
    }
}

/// The best free witness that the suspect has not met. Those that are taken are dropped from the list on the way.
pub(super) fn best(
    log: &CheckLog,
    facts: &Facts,
    suspect: u32,
    witnesses: &mut Vec<u32>,
    draft: &Draft,
    suits: impl Fn(u32) -> bool,
) -> Option<u32> {
    let mut best: Option<(u32, u32)> = None;
    let (mut at, mut compared) = (0, 0);
    while let Some(witness) = witnesses.get(at).copied().filter(|_| at < LOOKED_AT) {
        if !draft.is_free(witness) {
            witnesses.swap_remove(at);
            continue;
        }
        at += 1;
        if witness == suspect || !suits(witness) || facts.have_met(suspect, witness) {
            continue;
        }
        let Some(score) = score(log, facts, suspect, witness) else { continue };
        if best.is_none_or(|(most, _)| score > most) {
            best = Some((score, witness));
        }
        compared += 1;
        if compared >= COMPARED || score >= GOOD_ENOUGH {
            break;
        }
    }
    best.map(|(_, witness)| witness)
}

/// Each suspect in turn takes its best witness; one that finds none asks another to change.
pub(super) fn assign(
    log: &CheckLog,
    facts: &Facts,
    suspects: &[u32],
    witnesses: &mut Vec<u32>,
    draft: &mut Draft,
) {
    let mut taken: Vec<(u32, u32)> = Vec::new();
    for suspect in suspects.iter().copied().filter(|node| draft.is_free(*node)) {
        if let Some(witness) = best(log, facts, suspect, witnesses, draft, |_| true) {
            take(witnesses, witness);
            taken.push((suspect, witness));
            continue;
        }
        // It has met the remaining ones or cannot reach them.
        let suits = |suspect: u32, witness: u32| {
            !facts.have_met(suspect, witness) && score(log, facts, suspect, witness).is_some()
        };
        let change = taken.iter().enumerate().take(LOOKED_AT).find_map(|(index, (other, witness))| {
            let free = witnesses.iter().copied().filter(|it| draft.is_free(*it)).take(COMPARED);
            let mut fresh = free.filter(|it| suits(*other, *it));
            if suits(suspect, *witness) { Some((index, fresh.next()?)) } else { None }
        });
        if let Some((index, fresh)) = change
            && let Some((_, witness)) = taken.get_mut(index)
        {
            let freed = std::mem::replace(witness, fresh);
            take(witnesses, fresh);
            taken.push((suspect, freed));
        }
    }
    for (suspect, witness) in taken {
        draft.add(Kind::Witness, &[suspect, witness]);
    }
}

/// Drops one. Order does not matter in a shuffled list.
fn take(witnesses: &mut Vec<u32>, witness: u32) {
    if let Some(at) = witnesses.iter().position(|it| *it == witness) {
        witnesses.swap_remove(at);
    }
}

/// Good nodes that are not needed test further paths meanwhile, best between racks that nothing is known of.
pub(super) fn cover(log: &CheckLog, facts: &Facts, witnesses: &[u32], draft: &mut Draft) {
    /// Partners that are compared for one node.
    const WINDOW: usize = 16;
    let mut tested: BTreeSet<(u32, u32)> = log
        .rounds
        .iter()
        .flat_map(|round| &round.tests)
        .filter_map(super::facts::ends)
        .map(|ends| log.racks_of(ends))
        .collect();
    let mut free: Vec<u32> = witnesses.iter().copied().filter(|node| draft.is_free(*node)).collect();
    while let Some(a) = free.pop() {
        let from = free.len().saturating_sub(WINDOW);
        let mut best: Option<(u32, usize)> = None;
        for (at, b) in free
            .iter()
            .enumerate()
            .skip(from)
            .filter(|(_, b)| !facts.have_met(a, **b) && !facts.is_cut(log, pair(a, **b)))
        {
            let racks = pair(log.rack(a), log.rack(*b));
            let score = 2 * u32::from(racks.0 != racks.1) + u32::from(!tested.contains(&racks));
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, at));
            }
        }
        if let Some((_, at)) = best {
            let b = free.swap_remove(at);
            tested.insert(log.racks_of((a, b)));
            draft.add(Kind::Coverage, &[a, b]);
        }
    }
}
