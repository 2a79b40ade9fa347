//! The check on a simulated cluster: nodes, links and switches break as configured, and time is a number.
//!
//! [`Cluster`] says what is broken; `faults` is how nodes behave; random clusters are in `kinds`.

mod chance;
mod cluster;
mod faults;
mod kinds;

use std::{cmp::Reverse, collections::BinaryHeap};

use self::faults::{Cue, Faults};
pub use self::{
    chance::{Chance, seed_of_run},
    cluster::Cluster,
    kinds::{ELEMENT_KINDS, ElementKind, imagine},
};
use super::{Effect, Event, NetworkCheck, Outcome, Policy};
use crate::moment::Moment;

/// Runs a check on this cluster to its end.
#[must_use]
pub fn rehearse(cluster: &Cluster, policy: Policy) -> Outcome {
    watch(cluster, policy, |_| {})
}

/// An event of the simulation, and the answer of the check.
#[derive(Debug)]
pub struct Scene<'a> {
    pub now: Moment,
    /// The check after it.
    pub check: &'a NetworkCheck,
    /// The event; `None` at the beginning.
    pub event: Option<&'a Event>,
    pub effects: &'a [Effect],
}

/// The same with an observer.
pub fn watch(cluster: &Cluster, policy: Policy, mut onlooker: impl FnMut(&Scene<'_>)) -> Outcome {
    let mut faults = Faults::new(cluster);
    let mut now = Moment::START;
    let (mut check, mut effects) = NetworkCheck::new(policy, now, faults.subjects());
    onlooker(&Scene { now, check: &check, event: None, effects: &effects });
    let mut cues: BinaryHeap<Reverse<(Moment, Cue)>> = faults.first_cues().into_iter().map(Reverse).collect();
    loop {
        for effect in &effects {
            match effect {
                Effect::Start { round, groups, compute_again } => {
                    cues.extend(faults.on_start(now, *round, groups, compute_again).into_iter().map(Reverse));
                }
                Effect::Cancel { round: _, nodes } => {
                    cues.extend(faults.on_cancel(now, nodes).into_iter().map(Reverse));
                }
                Effect::Finish(outcome) => return (**outcome).clone(),
            }
        }
        let deadline = check.deadline();
        let event = match cues.peek() {
            Some(Reverse((at, _))) if deadline.is_none_or(|deadline| *at < deadline) => {
                let Some(Reverse((at, cue))) = cues.pop() else { continue };
                now = now.max(at);
                match faults.play(now, cue) {
                    Some(event) => event,
                    None => {
                        effects.clear();
                        continue;
                    }
                }
            }
            Some(_) | None => {
                now = now.max(deadline.unwrap_or(now));
                Event::Deadline
            }
        };
        effects = check.handle(now, event.clone());
        onlooker(&Scene { now, check: &check, event: Some(&event), effects: &effects });
    }
}
