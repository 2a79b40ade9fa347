//! No node is verified: suspects meet suspects until two of them pass.
//!
//! In the first round's order, step t pairs place i with place i XOR t. After the steps 1 to 2^b - 1 all blocks of
//! 2^b places are complete, so two good nodes in one block have met. No other order of as many rounds does better
//! (Turan), up to rounding.

use super::{Kind, check_log::CheckLog, facts::Facts, plan::Draft};

/// The next step that tests anything new.
pub(super) fn by_step(log: &mut CheckLog, facts: &Facts, suspects: &[u32], draft: &mut Draft) {
    let mut places = vec![None; log.nodes.len()];
    for (place, node) in log.order.iter().enumerate() {
        if let Some(position) = places.get_mut(*node as usize) {
            *position = Some(place);
        }
    }
    let steps = u32::try_from(log.order.len().next_power_of_two()).unwrap_or(u32::MAX);
    while log.suspect_step.saturating_add(1) < steps {
        log.suspect_step += 1;
        for node in suspects {
            let place = places.get(*node as usize).copied().flatten();
            let other = place.and_then(|place| log.order.get(place ^ log.suspect_step as usize)).copied();
            let Some(other) = other.filter(|other| draft.is_free(*other) && draft.is_free(*node)) else {
                continue;
            };
            if facts.is(other, |it| it.is_suspect()) && !facts.have_met(*node, other) {
                draft.add(Kind::Suspects, &[*node, other]);
            }
        }
        if !draft.groups.is_empty() {
            return;
        }
    }
}

/// Suspects without a partner left meet each other, as far as they have not.
pub(super) fn leftovers(facts: &Facts, suspects: &[u32], draft: &mut Draft) {
    let left: Vec<u32> = suspects.iter().copied().filter(|node| draft.is_free(*node)).collect();
    for (at, a) in left.iter().enumerate() {
        if !draft.is_free(*a) {
            continue;
        }
        let others = left.iter().skip(at + 1);
        if let Some(b) = others.copied().find(|b| draft.is_free(*b) && !facts.have_met(*a, *b)) {
            draft.add(Kind::Suspects, &[*a, b]);
        }
    }
}
