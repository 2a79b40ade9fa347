//! The check on a simulated cluster: nodes, links and switches break as configured, and time is a number.
//!
//! [`Cluster`] says what is broken; `simulated_nodes` is how nodes behave; random clusters are in `kinds`.

mod cluster;
mod cluster_rng;
mod kinds;
mod simulated_nodes;

use std::{cmp::Reverse, collections::BinaryHeap};

use self::simulated_nodes::{ScheduledEvent, SimulatedNodes};
pub use self::{
    cluster::Cluster,
    cluster_rng::{ClusterRng, seed_of_run},
    kinds::{ELEMENT_KINDS, ElementKind, random_cluster},
};
use super::{Effect, Event, NetworkCheck, Outcome, Policy};
use crate::moment::Moment;

/// Runs a check on this cluster to its end.
#[must_use]
pub fn rehearse(cluster: &Cluster, policy: Policy) -> Outcome {
    rehearse_observed(cluster, policy, |_| {})
}

/// An event of the simulation, and the answer of the check to it.
#[derive(Debug)]
pub struct SimulationStep<'a> {
    pub now: Moment,
    /// The check after it.
    pub check: &'a NetworkCheck,
    /// The event; `None` at the beginning.
    pub event: Option<&'a Event>,
    pub effects: &'a [Effect],
}

/// The same with an observer.
pub fn rehearse_observed(
    cluster: &Cluster,
    policy: Policy,
    mut observer: impl FnMut(&SimulationStep<'_>),
) -> Outcome {
    let mut nodes = SimulatedNodes::new(cluster);
    let mut now = Moment::START;
    let (mut check, mut effects) = NetworkCheck::new(policy, now, nodes.subjects());
    observer(&SimulationStep { now, check: &check, event: None, effects: &effects });
    let mut queue: BinaryHeap<Reverse<(Moment, ScheduledEvent)>> =
        nodes.first_events().into_iter().map(Reverse).collect();
    loop {
        for effect in &effects {
            match effect {
                Effect::Start { round, groups, compute_again } => {
                    queue.extend(nodes.on_start(now, *round, groups, compute_again).into_iter().map(Reverse));
                }
                Effect::Cancel { round: _, nodes: cancelled } => {
                    queue.extend(nodes.on_cancel(now, cancelled).into_iter().map(Reverse));
                }
                Effect::Finish(outcome) => return (**outcome).clone(),
            }
        }
        let deadline = check.deadline();
        let event = match queue.peek() {
            Some(Reverse((at, _))) if deadline.is_none_or(|deadline| *at < deadline) => {
                let Some(Reverse((at, scheduled))) = queue.pop() else { continue };
                now = now.max(at);
                match nodes.deliver(now, scheduled) {
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
        observer(&SimulationStep { now, check: &check, event: Some(&event), effects: &effects });
    }
}
