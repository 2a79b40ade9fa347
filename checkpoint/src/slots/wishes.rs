//! What became of the steps that were to go to disk: what a wait asks for.

use crate::recent::Recent;

/// Steps of a shard that are remembered.
const REMEMBERED: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    OnDisk,
    Superseded,
    Failed(String),
}

#[derive(Debug, Default)]
pub(super) struct Wishes {
    fates: Recent<Fate, REMEMBERED>,
    /// The newest.
    last: Option<u64>,
}

impl Wishes {
    /// A client wants a step on disk.
    pub(super) fn open(&mut self, step: u64) {
        self.order(step);
        self.last = Some(step);
    }

    /// The job wants a step on disk, which no client waits for unless it names it.
    pub(super) fn order(&mut self, step: u64) {
        self.fates.set(step, Fate::Open);
    }

    /// Says what became of a step, if it was to go to disk.
    pub(super) fn settle(&mut self, step: u64, fate: Fate) {
        if let Some(known) = self.fates.get_mut(step) {
            *known = fate;
        }
    }

    /// Like [`Wishes::settle`], of a step that nothing is known of yet.
    pub(super) fn settle_open(&mut self, step: u64, fate: Fate) {
        if self.fate(step) == Some(&Fate::Open) {
            self.settle(step, fate);
        }
    }

    pub(super) fn fate(&self, step: u64) -> Option<&Fate> {
        self.fates.get(step)
    }

    /// A new round: what is settled is of no interest to its workers, and what is open and not on its way will not come.
    pub(super) fn begin_round(&mut self, is_on_its_way: impl Fn(u64) -> bool, reason: &str) {
        for step in self.open_steps().into_iter().filter(|step| !is_on_its_way(*step)) {
            self.settle(step, Fate::Failed(reason.to_owned()));
        }
        if self.last.is_some_and(|last| self.fate(last) != Some(&Fate::Open)) {
            self.last = None;
        }
    }

    pub(super) const fn last(&self) -> Option<u64> {
        self.last
    }

    /// Steps that are not settled.
    pub(super) fn open_steps(&self) -> Vec<u64> {
        self.fates.iter().filter(|(_, fate)| **fate == Fate::Open).map(|(step, _)| step).collect()
    }
}
