//! The network check: which node, link or switch is at fault, found before workers start, by tests of pairs.
//!
//! Nodes are numbers here, 0 to N - 1: their places in the list that the check began with.
//!
//! Read first: [`NetworkCheck`], the state machine; then `facts`, what tests prove, and `plan`, which nodes are tested next.
//! Only the log of closed tests (`check_log`) is kept: every verdict is computed from it anew.
//!
//! | question | file |
//! |---|---|
//! | the pairs of the first round | `first_round` |
//! | the pairs of later rounds | `plan`, `witness`, `suspect_pairs` |
//! | when a test is cut short | `running`, `policy` |
//! | the result of a test | `record` |
//! | which node is good, bad, flaky, died in the check | `facts`, `links` |
//! | which link | `links` |
//! | which path between racks, uplink, switch, pod: the smallest explanation | `fabric`, `racks`, `partial_uplinks` |
//! | which tests distinguish explanations | `paths` |
//! | ambiguous explanations | `ambiguity` |
//! | which nodes can train together | `cut` |
//! | which node is slow | `judged`, `ratio`, `baseline`, `compute` |
//! | the evidence, and which nodes are tainted | `findings`, `evidence` |

mod ambiguity;
mod baseline;
mod check_log;
mod component;
mod compute;
mod compute_time;
mod cut;
mod event;
mod evidence;
mod fabric;
mod facts;
mod findings;
mod first_round;
mod judged;
mod links;
mod partial_uplinks;
mod paths;
mod plan;
mod policy;
mod racks;
mod ratio;
mod record;
pub mod rehearsal;
mod running;
mod suspect_pairs;
mod verdict;
mod witness;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::{check_log::CheckLog, facts::Facts, running::Running};
pub use self::{
    component::Component,
    compute_time::{ComputeKind, ComputeTime},
    event::{
        Deadlines, Effect, Event, FabricNames, Group, Kind, LocalCheck, LocalFault, OnBadPath, Policy,
        Probed, Subject, Tainting,
    },
    record::CHECK_COMMAND,
    verdict::{
        Ambiguity, Baseline, ComputeFinding, Cut, Evidence, LinkFault, LinkKind, NetworkElement, NodeFinding,
        NodeVerdict, Outcome, PartialUplink, RackPairFault, RoundRecord, TaintGuard, TestRecord, TestResult,
    },
};
use crate::moment::Moment;

/// One check of one set of nodes, from its first round to its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCheck {
    log: CheckLog,
    began: Moment,
    /// `None` once the check is over.
    running: Option<Running>,
    outcome: Option<Box<Outcome>>,
}

impl NetworkCheck {
    /// Begins the first round. Fewer than two nodes without a fault of their own cannot be tested: then the check is over
    /// at once, with no rounds and `network_untested`.
    #[must_use]
    pub fn new(policy: Policy, now: Moment, subjects: Vec<Subject>) -> (Self, Vec<Effect>) {
        let log = CheckLog::new(policy, subjects);
        let mut check = Self { log, began: now, running: None, outcome: None };
        let effects = match plan::first_round(&check.log) {
            Some(groups) => {
                let again = compute::suspects(&check.log);
                vec![check.start(now, groups, again, None)]
            }
            None => vec![check.finish(now)],
        };
        (check, effects)
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`] if nothing happens first. `None` once it is over.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        self.running.as_ref().and_then(Running::deadline)
    }

    /// Handles `event` and returns what to do, in order.
    #[must_use]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        match event {
            Event::Reported { node, round, probed, compute } => {
                if round == running.number {
                    if let Some(times) = compute.filter(|_| running.on_computed(node))
                        && let Some(own) = self.log.nodes.get_mut(node as usize)
                    {
                        let times = compute::alike(own.local.compute.as_ref(), times);
                        own.compute_again.extend(times.take(running.rechecks(node) as usize));
                    }
                    if !running.has_reported(node) {
                        running.on_reported(now, node, probed);
                    }
                }
            }
            Event::Progressed { node, round, probed } => {
                if round == running.number {
                    running.on_progressed(node, probed);
                }
            }
            Event::NodeLost { node, reason, is_announced } => {
                let round = running.number;
                if let Some(own) = self.log.nodes.get_mut(node as usize).filter(|own| !own.is_gone()) {
                    own.lost = Some((round, record::shorten(reason)));
                    own.has_left = is_announced;
                    running.on_lost(now, node);
                }
            }
            Event::Deadline => {}
        }
        let mut effects = running.on_time(now);
        if running.is_over() {
            effects.extend(self.close(now));
        }
        effects
    }

    /// A lost node turns out to have left without a fault of its machine.
    pub fn excuse(&mut self, node: u32, reason: &str) {
        if let Some(own) = self.log.nodes.get_mut(node as usize)
            && let Some((_, why)) = &mut own.lost
            && !own.has_left
        {
            *why = record::shorten(reason.to_owned());
            own.has_left = true;
        }
    }

    /// The outcome; `None` while the check runs.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_deref()
    }

    /// The current round, counted from 0; once the check is over, the number of rounds.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.log.round()
    }

    /// The group of a node in the current round; `None` for one that takes no part, and once it is over.
    #[must_use]
    pub fn group_of(&self, node: u32) -> Option<&Group> {
        self.running.as_ref()?.group_of(node)
    }

    /// Whether a node's probe of the current round has ended.
    #[must_use]
    pub fn has_reported(&self, node: u32) -> bool {
        self.running.as_ref().is_some_and(|running| running.has_reported(node))
    }

    /// How often a node measures its compute time again in the current round.
    #[must_use]
    pub fn rechecks(&self, node: u32) -> u32 {
        self.running.as_ref().map_or(0, |running| running.rechecks(node))
    }

    fn start(
        &mut self,
        now: Moment,
        groups: Vec<Group>,
        compute_again: Vec<(u32, u32)>,
        earlier: Option<Duration>,
    ) -> Effect {
        let running = Running::new(now, &self.log, groups.clone(), &compute_again, earlier);
        let round = running.number;
        self.running = Some(running);
        Effect::Start { round, groups, compute_again }
    }

    /// The current round is over: begins another one, or ends the check.
    fn close(&mut self, now: Moment) -> Option<Effect> {
        let running = self.running.take()?;
        let earlier = running.median();
        let record = running.close(now, self.began, &self.log);
        self.log.rounds.push(record);
        let facts = Facts::of(&self.log);
        let next = plan::next(&mut self.log, &facts);
        Some(match next {
            Some(groups) => self.start(now, groups, Vec::new(), earlier),
            None => self.finish(now),
        })
    }

    fn finish(&mut self, now: Moment) -> Effect {
        let outcome = Box::new(findings::outcome(&self.log, now - self.began));
        self.outcome = Some(outcome.clone());
        Effect::Finish(outcome)
    }
}

#[cfg(test)]
mod tests;
