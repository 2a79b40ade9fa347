//! Nodes that write checkpoints to disk after the end of the job: it is not finished before.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Effect, FAREWELL, Job, Phase};
use crate::{ids::NodeId, worker_group::SAVE_TIMEOUT};
use diagnosis::moment::Moment;

/// How long the end of the job waits for them. Each has its own, shorter limit.
const LIMIT: Duration = SAVE_TIMEOUT.saturating_add(FAREWELL);

/// The nodes whose saver runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Savers {
    nodes: BTreeMap<NodeId, NodeSaver>,
    /// Until when the end of the job waits for them.
    until: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct NodeSaver {
    /// Since when the stream is broken, if it is.
    broken: Option<Moment>,
    /// Its workers are gone for good, and what it has in memory is known.
    has_said_last: bool,
}

impl Savers {
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.nodes.keys()
    }

    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node)
    }

    pub(super) fn remove(&mut self, node: &NodeId) {
        self.nodes.remove(node);
    }

    pub(super) fn connected(&mut self, node: &NodeId) {
        if let Some(saver) = self.nodes.get_mut(node) {
            saver.broken = None;
        }
    }

    pub(super) fn disconnected(&mut self, now: Moment, node: &NodeId) {
        if let Some(saver) = self.nodes.get_mut(node) {
            saver.broken.get_or_insert(now);
        }
    }

    /// The master was restarted: no stream is open.
    pub(super) fn all_disconnected(&mut self, now: Moment) {
        self.nodes.values_mut().for_each(|saver| saver.broken = Some(now));
    }

    pub(super) fn said_last(&mut self, node: &NodeId) {
        if let Some(saver) = self.nodes.get_mut(node) {
            saver.has_said_last = true;
        }
    }

    pub(super) fn have_said_last(&self) -> bool {
        self.nodes.values().all(|saver| saver.has_said_last)
    }

    /// The job ends. A launcher that is gone writes nothing.
    pub(super) fn job_ends(&mut self, now: Moment) {
        self.until = Some(now + LIMIT);
    }

    fn until(&self, saver: &NodeSaver) -> Option<Moment> {
        let until = self.until?;
        Some(saver.broken.map_or(until, |broken| until.min(broken + FAREWELL)))
    }

    /// The time at which the first of them is waited for no longer.
    fn due(&self) -> Option<Moment> {
        self.nodes.values().filter_map(|saver| self.until(saver)).min()
    }

    /// Takes out those that are waited for no longer.
    fn take_late(&mut self, now: Moment) -> Vec<NodeId> {
        let is_late = |saver: &NodeSaver| self.until(saver).is_some_and(|until| until <= now);
        let late = self.nodes.iter().filter(|(_, saver)| is_late(saver));
        let late: Vec<NodeId> = late.map(|(node, _)| node.clone()).collect();
        late.iter().for_each(|node| self.remove(node));
        late
    }
}

impl Job {
    /// A node of the job keeps checkpoints.
    pub(super) fn on_saver_started(&mut self, node: &NodeId) {
        // One that has left may still write what it has.
        if self.nodes.contains_key(node) {
            self.savers.nodes.entry(node.clone()).or_default();
        }
    }

    /// A node writes nothing any more.
    pub(super) fn on_saver_closed(&mut self, node: &NodeId) -> Vec<Effect> {
        self.savers.remove(node);
        self.on_end_acknowledged(node)
    }

    /// The stream of a node broke. One that has left the job has ended, unless the job has: then it may come back.
    pub(super) fn saver_disconnected(&mut self, now: Moment, node: &NodeId) -> Vec<Effect> {
        if !self.savers.contains(node) {
            return Vec::new();
        }
        if let Phase::Over { until, .. } = &mut self.phase {
            self.savers.disconnected(now, node);
            *until = until.map(|until| until.min(now + FAREWELL));
            return Vec::new();
        }
        if self.nodes.contains_key(node) {
            self.savers.disconnected(now, node);
            return Vec::new();
        }
        self.savers.remove(node);
        self.memory_gone(now, node)
    }

    /// Nodes that have not acknowledged the end by now find out by themselves; those that write checkpoints have more
    /// time.
    pub(super) fn on_farewell_over(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        for node in self.savers.take_late(now) {
            effects.extend(self.memory_gone(now, &node));
        }
        effects.extend(self.checkpoints_end(now));
        let due = self.savers.due();
        let Phase::Over { verdict, unaware, until, .. } = &mut self.phase else { return effects };
        unaware.retain(|node| self.savers.contains(node));
        *until = due.filter(|_| !unaware.is_empty());
        if until.is_none() {
            effects.push(Effect::Finish { verdict: verdict.clone() });
        }
        effects
    }
}
