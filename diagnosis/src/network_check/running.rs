//! The current round: which nodes have reported, and how long the others are waited for.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Deadlines, Effect, Group, Kind, Probed, RoundRecord,
    check_log::CheckLog,
    record::{MemberReport, record},
};
use crate::moment::Moment;

/// How long a node may measure its compute time again. It has a limit of its own of at most a minute (with
/// accelerators), so this is for silent nodes.
const COMPUTE_TIMEOUT: Duration = Duration::from_secs(75);

/// The current round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) number: u32,
    since: Moment,
    deadlines: Deadlines,
    pub(super) groups: Vec<Group>,
    /// Index into `groups`, by node.
    group_indices: Vec<Option<u32>>,
    /// How often each measures its compute time meanwhile.
    again: BTreeMap<u32, u32>,
    /// Nodes that have not reported that. Their tests are over long before.
    computing: BTreeSet<u32>,
    /// By node.
    said: Vec<MemberReport>,
    settled: Vec<bool>,
    /// When each group was settled.
    ended: Vec<Option<Moment>>,
    cancelled: Vec<bool>,
    open: usize,
    /// The time until which the rest of each failed group is waited for.
    failing: Vec<Option<Moment>>,
    /// The same in order, of those that are open.
    due: BTreeSet<(Moment, u32)>,
    /// Of the groups that passed, ascending.
    passed: Vec<Duration>,
    /// So many must have passed before they determine the timeout of the others.
    quorum: usize,
    /// The median of an earlier round.
    earlier: Option<Duration>,
    /// Every test was cut short; reports are waited for until then.
    cut: Option<Moment>,
    /// When the last test was over. Compute times may take longer.
    tested: Option<Moment>,
}

impl Running {
    /// Begins a round.
    pub(super) fn new(
        now: Moment,
        log: &CheckLog,
        groups: Vec<Group>,
        again: &[(u32, u32)],
        earlier: Option<Duration>,
    ) -> Self {
        let mut group_indices = vec![None; log.nodes.len()];
        for (index, group) in (0..).zip(&groups) {
            for member in &group.members {
                if let Some(group_index) = group_indices.get_mut(*member as usize) {
                    *group_index = Some(index);
                }
            }
        }
        let deadlines = log.policy.deadlines.clone();
        let settled: Vec<bool> = groups.iter().map(|group| group.kind == Kind::Idle).collect();
        let open = settled.iter().filter(|settled| !**settled).count();
        let share = (open as u64).saturating_mul(u64::from(deadlines.quorum_permille)).div_ceil(1000);
        Self {
            number: log.round(),
            since: now,
            deadlines,
            group_indices,
            again: again.iter().copied().collect(),
            computing: again.iter().filter(|(_, times)| *times > 0).map(|(node, _)| *node).collect(),
            said: vec![MemberReport::default(); log.nodes.len()],
            ended: vec![None; groups.len()],
            cancelled: vec![false; groups.len()],
            failing: vec![None; groups.len()],
            groups,
            settled,
            open,
            due: BTreeSet::new(),
            passed: Vec::new(),
            quorum: usize::try_from(share).unwrap_or(usize::MAX).max(1),
            earlier,
            cut: None,
            tested: None,
        }
    }

    pub(super) fn group_of(&self, node: u32) -> Option<&Group> {
        let group_index = self.group_indices.get(node as usize).copied().flatten()?;
        self.groups.get(group_index as usize)
    }

    pub(super) fn has_reported(&self, node: u32) -> bool {
        self.said.get(node as usize).is_some_and(|said| said.last.is_some())
    }

    pub(super) fn rechecks(&self, node: u32) -> u32 {
        self.again.get(&node).copied().unwrap_or(0)
    }

    /// A node has measured its compute time again, or could not. Returns whether that was awaited.
    pub(super) fn on_computed(&mut self, node: u32) -> bool {
        self.computing.remove(&node)
    }

    /// A node's probe ended.
    pub(super) fn on_reported(&mut self, now: Moment, node: u32, probed: Probed) {
        let Some(group_index) = self.group_indices.get(node as usize).copied().flatten() else { return };
        let was_cut = self.cancelled.get(group_index as usize).copied().unwrap_or(false);
        if let Some(said) = self.said.get_mut(node as usize) {
            said.end(probed, was_cut);
        }
        self.settle(now, group_index);
    }

    /// A node's probe still runs.
    pub(super) fn on_progressed(&mut self, node: u32, probed: Probed) {
        if let Some(said) = self.said.get_mut(node as usize)
            && matches!(probed, Probed::Unfinished { .. })
        {
            said.progress = Some(probed);
        }
    }

    /// A node is gone: nothing more is expected of it.
    pub(super) fn on_lost(&mut self, now: Moment, node: u32) {
        if let Some(said) = self.said.get_mut(node as usize) {
            said.is_lost = true;
        }
        self.computing.remove(&node);
        if let Some(group_index) = self.group_indices.get(node as usize).copied().flatten() {
            self.settle(now, group_index);
        }
    }

    /// Ends a group without pending reports, and begins to wait for one that has failed.
    fn settle(&mut self, now: Moment, group_index: u32) {
        let index = group_index as usize;
        let Some(group) = self.groups.get(index) else { return };
        if self.settled.get(index).copied().unwrap_or(true) {
            return;
        }
        let said = |node: &u32| self.said.get(*node as usize);
        let members = || group.members.iter().filter_map(said);
        if members().all(|said| said.last.is_some() || said.is_lost) {
            if members().all(|said| matches!(said.last, Some(Probed::Passed { .. }))) {
                self.passed.push(now - self.since);
            }
            self.end(now, group_index);
        } else if members().any(MemberReport::has_failed)
            && let Some(failing @ None) = self.failing.get_mut(index)
        {
            let due = now + self.deadlines.kill_grace;
            *failing = Some(due);
            self.due.insert((due, group_index));
        }
    }

    fn end(&mut self, now: Moment, group_index: u32) {
        if let Some(ended @ None) = self.ended.get_mut(group_index as usize) {
            *ended = Some(now);
        }
        if let Some(settled) = self.settled.get_mut(group_index as usize).filter(|settled| !**settled) {
            *settled = true;
            self.open -= 1;
            if let Some(Some(due)) = self.failing.get(group_index as usize) {
                self.due.remove(&(*due, group_index));
            }
        }
    }

    /// The timeout of tests, as far as is known now.
    fn timeout(&self) -> Duration {
        let enough = self.passed.len() >= self.quorum;
        let median = if enough { self.passed.get(self.passed.len() / 2).copied() } else { self.earlier };
        self.deadlines.timeout(median)
    }

    /// The median by which later rounds are timed.
    pub(super) fn median(&self) -> Option<Duration> {
        self.passed.get(self.passed.len() / 2).copied().or(self.earlier)
    }

    pub(super) fn is_over(&self) -> bool {
        self.open == 0 && self.computing.is_empty()
    }

    /// When to call [`Self::on_time`]; `None` once it is over.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let of_all = self.cut.unwrap_or(self.since + self.timeout());
        let of_one = self.due.first().map(|(due, _)| *due);
        let of_tests = (self.open > 0).then(|| of_one.map_or(of_all, |due| due.min(of_all)));
        let of_computing = (!self.computing.is_empty()).then(|| self.since + COMPUTE_TIMEOUT);
        of_tests.into_iter().chain(of_computing).min()
    }

    fn is_open(&self, group_index: u32) -> bool {
        self.settled.get(group_index as usize).is_some_and(|settled| !settled)
    }

    /// Cuts short what takes too long.
    pub(super) fn on_time(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some((due, group_index)) = self.due.first().copied()
            && due <= now
        {
            self.cancel(group_index, &mut effects);
            self.end(now, group_index);
        }
        match self.cut {
            _ if self.open == 0 => {}
            None if self.since + self.timeout() <= now => {
                for group_index in (0..).take(self.groups.len()) {
                    if self.is_open(group_index) {
                        self.cancel(group_index, &mut effects);
                    }
                }
                self.cut = Some(now + self.deadlines.report_grace());
            }
            Some(cut) if cut <= now => self.open = 0,
            None | Some(_) => {}
        }
        if self.open == 0 {
            self.tested.get_or_insert(now);
        }
        if !self.computing.is_empty() && self.since + COMPUTE_TIMEOUT <= now {
            let nodes = std::mem::take(&mut self.computing).into_iter().collect();
            effects.push(Effect::Cancel { round: self.number, nodes });
        }
        effects
    }

    fn cancel(&mut self, group_index: u32, effects: &mut Vec<Effect>) {
        if let Some(cancelled) = self.cancelled.get_mut(group_index as usize).filter(|cancelled| !**cancelled)
        {
            *cancelled = true;
            let members = self.groups.get(group_index as usize).map_or(&[][..], |group| &group.members);
            let is_silent = |node: &&u32| {
                self.said.get(**node as usize).is_some_and(|said| said.last.is_none() && !said.is_lost)
            };
            let mut nodes: Vec<u32> = members.iter().filter(is_silent).copied().collect();
            nodes.sort_unstable();
            effects.push(Effect::Cancel { round: self.number, nodes });
        }
    }

    /// Ends the round and returns its record.
    pub(super) fn close(self, now: Moment, check_began: Moment, log: &CheckLog) -> RoundRecord {
        let tested = self.tested.unwrap_or(now);
        let (took, began) = (tested - self.since, self.since - check_began);
        let tests = self.groups.iter().zip(&self.ended).filter(|(group, _)| group.members.len() > 1);
        let tests = tests.map(|(group, ended)| {
            let ended = ended.unwrap_or(tested) - check_began;
            record(log, group, &self.said, took, ended)
        });
        RoundRecord { began, took, tests: tests.collect() }
    }
}
