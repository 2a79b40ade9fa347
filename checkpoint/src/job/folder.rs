//! What the job knows of one checkpoint directory.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Member, Order,
    holders::Holders,
    replicas::{Replica, Restoring},
};
use crate::{
    Moment,
    manifest::{Manifest, VERSION},
    message::{Dir, ShardFile, ShardState},
    recent::Recent,
};

/// Steps whose failure is remembered.
const MAX_FAILED: usize = 64;

/// A step on its way to disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub(super) struct Save<N: Ord> {
    /// The round in which it was saved, once a shard has said it: shards of different rounds are not one step.
    pub(super) saved_in: Option<u32>,
    pub(super) n_shards: u32,
    /// Shards that are on disk, and where that was done.
    pub(super) files: BTreeMap<u32, (N, ShardFile)>,
    /// The node that was told to write a shard.
    pub(super) ordered: BTreeMap<u32, N>,
    /// The node that writes the manifest.
    pub(super) committer: Option<N>,
    /// Nodes that cannot write the manifest: they are gone, or have said so.
    pub(super) unable: BTreeSet<N>,
    /// How many have said so.
    pub(super) refusals: u32,
    pub(super) until: Moment,
}

impl<N: Ord + Clone> Save<N> {
    pub(super) const fn new(n_shards: u32, until: Moment) -> Self {
        Self {
            saved_in: None,
            n_shards,
            files: BTreeMap::new(),
            ordered: BTreeMap::new(),
            committer: None,
            unable: BTreeSet::new(),
            refusals: 0,
            until,
        }
    }

    /// All shards are on disk.
    pub(super) fn is_complete(&self) -> bool {
        self.files.len() as u64 == u64::from(self.n_shards)
    }

    /// The manifest, once all shards are there.
    pub(super) fn manifest(&self, step: u64) -> Option<Manifest> {
        if !self.is_complete() {
            return None;
        }
        let (_, first) = self.files.values().next()?;
        Some(Manifest {
            version: VERSION,
            step,
            world: first.world,
            n_shards: self.n_shards,
            replicated: first.replicated,
            format: first.format,
            time: None,
            saved_in: self.saved_in,
            shards: self.files.values().map(|(_, file)| file.clone()).collect(),
        })
    }

    /// The node that is to write the manifest: the one with the first shard, while it is there; else any that has
    /// written a shard; else any member, which may have the directory too.
    pub(super) fn next_committer(&self, members: &[Member<N>]) -> Option<N> {
        let is_able = |node: &&N| !self.unable.contains(node);
        let is_member = |node: &&N| members.iter().any(|member| member.node == **node);
        let reporters = || self.files.values().map(|(node, _)| node).filter(is_able);
        let members = || members.iter().map(|member| &member.node).find(is_able);
        reporters().find(is_member).or_else(|| reporters().next()).or_else(members).cloned()
    }

    /// All nodes that had a part in it.
    pub(super) fn nodes(&self) -> BTreeSet<N> {
        let reporters = self.files.values().map(|(node, _)| node);
        reporters.chain(self.ordered.values()).chain(&self.committer).cloned().collect()
    }
}

/// A step that does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    /// The round that ran.
    pub(super) round: u32,
    /// The round in which it was saved, or a later one before it was saved again: a later save is another step.
    pub(super) saved_in: u32,
    /// How often it has failed.
    pub(super) count: u32,
    pub(super) reason: String,
}

impl Failure {
    pub(super) fn order(&self, dir: &Dir, step: u64) -> Order {
        let Self { saved_in, count, reason, .. } = self.clone();
        Order::Fail { dir: dir.clone(), step, saved_in, given_up: count, reason }
    }
}

/// Where the step on disk comes from that a node was the first to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Found {
    /// No node has said yet what is there.
    Unknown,
    /// From an earlier run: nothing has been saved in this one. The newest that a node has found; one that a file server is
    /// late for may come.
    SoFar(Option<u64>),
    /// From an earlier run: that was the newest one when the first step of this run was saved.
    Earlier(Option<u64>),
    /// Maybe from this run, which had another job master before.
    ThisRun,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub(super) struct JobFolder<N: Ord> {
    pub(super) holders: Holders<N>,
    /// The step that counts, as the job knows.
    pub(super) committed: Option<u64>,
    /// The round in which it was saved, if this job has committed it: it was not only found on disk by a node.
    committed_in: Option<u32>,
    /// What nodes have found on disk before this job has saved anything there.
    found: Found,
    /// The newest step that was committed in the round that runs: older wishes are void.
    pub(super) floor: Option<u64>,
    pub(super) saves: BTreeMap<u64, Save<N>>,
    /// Saves that all ranks wait for and that have failed. That is told when the manifest of an older one is decided: a
    /// rank that hears of a failure restores the newest step that counts by then, so all must have heard of that
    /// before.
    pub(super) postponed: BTreeMap<u64, (Option<u32>, String)>,
    pub(super) failed: Recent<Failure, MAX_FAILED>,
    /// The step that the round restores, if nodes fetch it from others.
    pub(super) restoring: Option<Restoring<N>>,
    /// Replicas that are on their way, and the step of the newest.
    pub(super) replicas: Vec<Replica<N>>,
    pub(super) spread: Option<u64>,
    /// A replica waits for the end of the one before.
    pub(super) is_behind: bool,
}

impl<N: Ord> Default for JobFolder<N> {
    fn default() -> Self {
        Self {
            holders: Holders::default(),
            committed: None,
            committed_in: None,
            found: Found::Unknown,
            floor: None,
            saves: BTreeMap::new(),
            postponed: BTreeMap::new(),
            failed: Recent::default(),
            restoring: None,
            replicas: Vec::new(),
            spread: None,
            is_behind: false,
        }
    }
}

impl<N: Ord + Clone> JobFolder<N> {
    /// Takes what a node says of a shard. `knows_course`: this job master has begun a round, so that it has heard of all
    /// that was committed since.
    pub(super) fn hold(&mut self, node: &N, state: ShardState, knows_course: bool) {
        let has_saved = !state.steps.is_empty() || !state.wishes.is_empty();
        self.found = match self.found {
            Found::Unknown if !knows_course => Found::ThisRun,
            Found::Unknown if has_saved => Found::Earlier(state.disk_step),
            Found::Unknown => Found::SoFar(state.disk_step),
            Found::SoFar(step) if has_saved => Found::Earlier(step),
            Found::SoFar(step) => Found::SoFar(step.max(state.disk_step)),
            known => known,
        };
        if self.committed_in.is_none() {
            // Another step than at first was written since: by a worker that could not say so.
            let is_earlier = |step: &u64| self.is_of_an_earlier_run(*step);
            let steps = || [self.committed, state.disk_step].into_iter().flatten();
            let written = steps().filter(|step| !is_earlier(step)).max();
            self.committed = written.or_else(|| steps().max());
        }
        self.holders.insert(node, state);
    }

    fn is_of_an_earlier_run(&self, step: u64) -> bool {
        self.committed_in.is_none()
            && matches!(self.found, Found::SoFar(Some(found)) | Found::Earlier(Some(found)) if found == step)
    }

    /// The step on disk that memory of this run must not be older than. What an earlier run has left there is of another
    /// course of the training: a rank that could not load it, or was not to, has trained on from another step.
    pub(super) fn committed_by_this_run(&self) -> Option<u64> {
        self.committed.filter(|step| !self.is_of_an_earlier_run(*step))
    }

    /// A step counts from now on. While it was on its way, a worker may have written a newer one by itself.
    pub(super) fn commit(&mut self, step: u64, saved_in: u32) {
        if !self.is_outdone(step, saved_in) {
            (self.committed, self.committed_in) = (Some(step), Some(saved_in));
        }
        self.floor = self.floor.max(Some(step));
        self.failed.remove(step);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.saves.is_empty()
    }

    /// Whether a node has a step of a shard in memory, or on its way to disk.
    pub(super) fn has(&self, node: &N, shard: u32, step: u64) -> bool {
        self.is_on_its_way(node, shard, step)
            || self.holders.state(node, shard).is_some_and(|state| state.steps.contains(&step))
    }

    /// Whether a step of a shard is to go to disk, as its node says.
    pub(super) fn is_on_its_way(&self, node: &N, shard: u32, step: u64) -> bool {
        self.holders.state(node, shard).is_some_and(|state| state.wishes.contains(&step))
    }

    /// A save counts already, or a newer one does.
    pub(super) fn is_behind(&self, step: u64, saved_in: u32) -> bool {
        let is_older = self.committed_in.is_none_or(|committed| saved_in <= committed);
        // What a node found on disk may be damaged or of another course, and steps be saved again.
        let is_known = self.committed_in.is_some() || self.committed_by_this_run() == Some(step);
        self.floor >= Some(step) || is_known && is_older && self.committed >= Some(step)
    }

    /// The step is the newest that counts, and this job knows that it was saved in this round.
    pub(super) fn has_committed(&self, step: u64, saved_in: u32) -> bool {
        (self.committed, self.committed_in) == (Some(step), Some(saved_in))
    }

    /// A step with a higher number counts, and this job knows it not only from a directory.
    pub(super) fn knows_newer(&self, step: u64) -> bool {
        self.committed_in.is_some() && self.committed > Some(step)
    }

    /// A newer step counts: of a later round, or of the same one.
    pub(super) fn is_outdone(&self, step: u64, saved_in: u32) -> bool {
        self.committed_in.is_some_and(|round| (round, self.committed) > (saved_in, Some(step)))
    }

    /// Whether the manifest of an older step is being written.
    pub(super) fn commits_before(&self, step: u64) -> bool {
        self.saves.range(..step).any(|(_, save)| save.committer.is_some())
    }

    /// The step has failed in this round.
    pub(super) fn has_failed(&self, step: u64, round: u32) -> bool {
        self.failed.get(step).is_some_and(|failure| failure.round == round)
    }

    /// What is in memory now has failed in this round: it was not saved since then.
    pub(super) fn has_failed_now(&self, step: u64, round: u32) -> bool {
        let failure = self.failed.get(step);
        failure.is_some_and(|failure| failure.round == round && failure.saved_in >= round)
    }

    /// Remembers that a step was given up, and returns what is known of it. `saved_in` is `None` when no node has said
    /// it.
    pub(super) fn remember_failure(
        &mut self,
        step: u64,
        round: u32,
        saved_in: Option<u32>,
        reason: String,
    ) -> Failure {
        let before = self.failed.get(step);
        // Of all steps of this number: a node may know of an earlier one.
        let count = before.map_or(0, |failure| failure.count).saturating_add(1);
        // Unknown, it is the step of any round so far.
        let saved_in = saved_in.unwrap_or(round).max(before.map_or(0, |failure| failure.saved_in));
        let failure = Failure { round, saved_in, count, reason };
        self.failed.set(step, failure.clone());
        failure
    }

    /// Bytes of memory, about, that reports of shards take.
    pub(super) fn weight(&self) -> usize {
        let files = self.saves.values().flat_map(|save| save.files.values());
        files.map(|(_, file)| weight(file)).fold(0, usize::saturating_add)
    }
}

/// Bytes of memory, about, that a report takes.
pub(super) fn weight(file: &ShardFile) -> usize {
    let also = file.also.iter().map(|sum| 64 + sum.file.len() + 4 * sum.crc32.len());
    also.fold(256 + file.file.len() + 4 * file.crc32.len(), usize::saturating_add)
}
