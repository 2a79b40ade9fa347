//! Checkpoint directories: what is known of their documents, what is written there, and what is deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Saver,
    api::Effect,
    client::{Loading, Pending},
    shard::{Disk, Slot},
    wishes::Fate,
};
use crate::{
    manifest::{Folder, Manifest, Tracker},
    message::{Dir, FromSaver, Keep, Level, cut},
    recent::Recent,
    retention,
};

/// Directories that a saver knows at most.
pub(super) const MAX_DIRS: usize = 256;

/// Manifests of a directory that wait to be written.
const MAX_COMMITS: usize = 8;

/// Steps whose end is remembered for loads and waits.
const REMEMBERED: usize = 256;

/// What is known of a directory.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// As it was read last, and changed by this saver since.
    pub(super) folder: Option<Folder>,
    /// Readings that were started, and that have ended.
    pub(super) started: u64,
    pub(super) ended: u64,
    /// Why the last one failed.
    pub(super) error: Option<String>,
    pub(super) keep: Option<Keep>,
    /// The manifest that is being written, and those that wait for that.
    committing: Option<Box<Manifest>>,
    commits: BTreeMap<u64, Box<Manifest>>,
    /// The one that this saver has written last, as it was ordered.
    written: Option<Box<Manifest>>,
    /// Steps whose files are to be removed, and the reading of the directory that ends after that.
    removed: Recent<Option<u64>, REMEMBERED>,
    /// Of steps that the job has decided.
    fates: Recent<Decision, REMEMBERED>,
    /// The newest step that a worker has written by itself.
    alone: Option<Alone>,
}

/// A step that a worker has written by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Alone {
    /// The round of the worker. Steps of a later one may have lower numbers, and are newer.
    round: u32,
    step: u64,
}

/// What the job has decided of a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Decision {
    /// It counts. That was said in this round.
    Counts { said_in: u32 },
    /// It does not, unless it was saved after round `saved_in`. It was given up so often.
    Failed { said_in: u32, saved_in: Option<u32>, given_up: u32 },
}

impl Known {
    /// This manifest was written last, and is still there.
    fn has_written(&self, manifest: &Manifest) -> bool {
        let step = manifest.step;
        let is_there = self.folder.as_ref().is_some_and(|folder| folder.manifests.contains_key(&step));
        self.written.as_deref() == Some(manifest) && is_there && self.removed.get(step).is_none()
    }

    /// A worker has written a newer step by itself than this one, which was saved in round `saved_in`.
    fn is_behind(&self, step: u64, saved_in: u32) -> bool {
        self.alone.is_some_and(|alone| alone > Alone { round: saved_in, step })
    }

    /// The newest step that counts.
    pub(super) fn step(&self) -> Option<u64> {
        self.folder.as_ref().and_then(Folder::step)
    }

    /// Whether a step counts that was saved in a round; `None`: it is not decided. Steps of a course of the training
    /// that was given up have the same numbers.
    pub(super) fn fate_of_save(&self, step: u64, round: u32) -> Option<bool> {
        match *self.fates.get(step)? {
            Decision::Counts { said_in } => (said_in >= round).then_some(true),
            Decision::Failed { said_in, saved_in, .. } => {
                (saved_in.unwrap_or(said_in) >= round).then_some(false)
            }
        }
    }

    /// How often the job had given a step up before it was saved here: a copy that is late, or comes from
    /// another node, has missed what was told.
    pub(super) fn given_up(&self, step: u64, round: u32) -> u32 {
        match self.fates.get(step) {
            Some(Decision::Failed { said_in, saved_in, given_up })
                if saved_in.unwrap_or(*said_in) >= round =>
            {
                *given_up
            }
            _ => 0,
        }
    }

    /// Whether a step counts that was on its way to disk when the round began, and had been given up so often before;
    /// `None`: it is not decided. The decision may have been told before the round.
    pub(super) fn fate_of_pending(&self, step: u64, given_up_before: u32) -> Option<bool> {
        match *self.fates.get(step)? {
            Decision::Counts { .. } => Some(true),
            Decision::Failed { given_up, .. } => (given_up > given_up_before).then_some(false),
        }
    }

    /// The newest step before another that the job has said to count.
    pub(super) fn newest_before(&self, step: u64) -> Option<u64> {
        let counts = |decision: &Decision| matches!(decision, Decision::Counts { .. });
        self.fates.iter().rev().find(|(of, decision)| *of < step && counts(decision)).map(|(of, _)| of)
    }

    /// The step counts, as far as is known.
    pub(super) fn has(&self, step: u64) -> bool {
        let is_tracked = self.step() == Some(step);
        let has_manifest = self.folder.as_ref().is_some_and(|folder| folder.manifests.contains_key(&step));
        is_tracked || has_manifest || matches!(self.fates.get(step), Some(Decision::Counts { .. }))
    }

    pub(super) fn begin_round(&mut self, round: u32) {
        self.keep = None;
        for decision in self.fates.values_mut() {
            let (Decision::Counts { said_in } | Decision::Failed { said_in, .. }) = decision;
            *said_in = round.min(*said_in);
        }
    }

    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some() || !self.commits.is_empty()
    }
}

impl Saver {
    /// Whether one more directory can be known. What nothing refers to is forgotten first.
    pub(super) fn has_room_for_folder(&mut self) -> bool {
        if self.dirs.len() < MAX_DIRS {
            return true;
        }
        let mut used: BTreeSet<Dir> = self.shards.keys().map(|id| id.dir.clone()).collect();
        for client in self.clients.values() {
            used.extend(client.identity.as_ref().map(|identity| identity.shard.dir.clone()));
            if let Some(Pending::Hello { hello, .. }) = &client.pending {
                used.insert(hello.dir.clone());
            }
        }
        self.dirs.retain(|dir, known| used.contains(dir) || known.is_committing());
        self.dirs.len() < MAX_DIRS
    }

    /// Has the directory read, and returns the number of the reading, which begins after this moment.
    pub(super) fn read_folder(&mut self, dir: &Dir) -> u64 {
        let known = self.dirs.entry(dir.clone()).or_default();
        if known.started > known.ended {
            // The one that runs may have begun before what must be seen; the next one starts when it ends.
            return known.started + 1;
        }
        known.started += 1;
        let sweep = known.started == 1;
        let reading = known.started;
        self.effects.push(Effect::ReadFolder { dir: dir.clone(), sweep });
        reading
    }

    pub(super) fn on_folder_read(&mut self, dir: &Dir, result: Result<Folder, String>) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        if known.started == known.ended {
            return;
        }
        known.ended += 1;
        match result {
            Ok(folder) => (known.folder, known.error) = (Some(folder), None),
            Err(error) => {
                known.error = Some(cut(&error));
                self.warn(format!("the checkpoint directory {dir} cannot be read: {error}"));
            }
        }
        let ended = self.dirs.get(dir).map_or(0, |known| known.ended);
        let wants_next = |pending: &Pending| match pending {
            Pending::Hello { hello, reading: Some(reading), .. } => hello.dir == *dir && *reading > ended,
            Pending::Load { loading: Loading::Folder { reading, .. }, .. } => *reading > ended,
            _ => false,
        };
        let is_of_dir = |client: &super::client::Client| {
            client.identity.as_ref().is_none_or(|identity| identity.shard.dir == *dir)
        };
        let is_wanted = self
            .clients
            .values()
            .any(|client| is_of_dir(client) && client.pending.as_ref().is_some_and(wants_next));
        let is_awaited = |reading: &u64| *reading > ended;
        let is_barrier =
            |known: &Known| known.removed.iter().filter_map(|(_, reading)| reading.as_ref()).any(is_awaited);
        if is_wanted || self.dirs.get(dir).is_some_and(is_barrier) {
            self.read_folder(dir);
        }
    }

    /// All shards of a step are on disk.
    pub(super) fn on_commit(&mut self, dir: Dir, step: u64, manifest: Box<Manifest>) {
        let problem = match manifest.check() {
            Err(error) => Some(error.to_string()),
            Ok(()) if manifest.step != step => Some(format!("it is for step {}", manifest.step)),
            Ok(()) => None,
        };
        if let Some(problem) = problem {
            self.fail_commit(dir, step, format!("the manifest is invalid: {problem}"));
            return;
        }
        let known = self.dirs.entry(dir.clone()).or_default();
        if known.committing.as_ref().is_some_and(|manifest| manifest.step == step) {
            return;
        }
        if known.has_written(&manifest) {
            // The order came twice. Another node may have committed a newer step since: the tracker must not go back.
            self.tell(FromSaver::Committed { dir, step });
            return;
        }
        if known.commits.len() >= MAX_COMMITS && !known.commits.contains_key(&step) {
            self.fail_commit(dir, step, format!("{MAX_COMMITS} other manifests are waiting to be written"));
            return;
        }
        known.commits.insert(step, manifest);
        self.next_commit(&dir);
    }

    fn fail_commit(&mut self, dir: Dir, step: u64, reason: String) {
        let reason = cut(&reason);
        self.tell(FromSaver::Failed { dir, step, shard: None, saved_in: None, reason });
    }

    fn next_commit(&mut self, dir: &Dir) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        if known.committing.is_some() {
            return;
        }
        let Some((_, manifest)) = known.commits.pop_first() else { return };
        known.committing = Some(manifest.clone());
        let sets_tracker = !self.is_behind(dir, manifest.step, manifest.saved_in);
        self.effects.push(Effect::WriteManifest { dir: dir.clone(), manifest, sets_tracker });
    }

    pub(super) fn on_manifest_written(&mut self, dir: &Dir, step: u64, result: Result<(), String>) {
        let is_it = |manifest: &mut Box<Manifest>| manifest.step == step;
        let Some(known) = self.dirs.get_mut(dir) else { return };
        let Some(manifest) = known.committing.take_if(is_it) else { return };
        match result {
            Ok(()) => {
                known.written = Some(manifest.clone());
                if let Some(folder) = &mut known.folder {
                    folder.manifests.insert(step, *manifest);
                    folder.unusable.remove(&step);
                }
                self.tell(FromSaver::Committed { dir: dir.clone(), step });
                self.on_committed(dir, step);
                self.delete_old(dir, step);
            }
            Err(error) => {
                self.warn(format!("step {step} in {dir} is not complete on disk: {error}"));
                self.fail_commit(dir.clone(), step, error);
            }
        }
        self.next_commit(dir);
    }

    /// Whether a worker has written a newer step by itself, while this one was on its way: the tracker names that one,
    /// and must not go back.
    fn is_behind(&self, dir: &Dir, step: u64, saved_in: Option<u32>) -> bool {
        let shards = self.shards.iter().filter(|(id, _)| id.dir == *dir).map(|(_, shard)| shard);
        let mut reports = shards.flat_map(|shard| &shard.reports).filter(|report| report.step == step);
        let saved_in = saved_in.or_else(|| Some(reports.next()?.saved_in)).unwrap_or_else(|| self.round());
        self.dirs.get(dir).is_some_and(|known| known.is_behind(step, saved_in))
    }

    /// A worker of this node has written a step by itself: without memory, or while the saver before this one was gone.
    /// The job must know, so that the next round restores nothing older.
    pub(super) fn on_written_alone(&mut self, dir: &Dir, step: u64) {
        let round = self.round();
        let known = self.dirs.entry(dir.clone()).or_default();
        known.alone = known.alone.max(Some(Alone { round, step }));
        self.tell(FromSaver::WrittenAlone { dir: dir.clone(), step, round });
        self.on_committed(dir, step);
        // Its manifest names files that must not be removed.
        self.read_folder(dir);
    }

    /// The step counts: it is what a load without memory takes from now on.
    pub(super) fn on_committed(&mut self, dir: &Dir, step: u64) {
        let said_in = self.round();
        let is_behind = self.is_behind(dir, step, None);
        let known = self.dirs.entry(dir.clone()).or_default();
        known.fates.set(step, Decision::Counts { said_in });
        if let Some(folder) = known.folder.as_mut().filter(|_| !is_behind) {
            folder.tracker = Tracker::Step(step);
        }
        self.tell_what_is_newer(dir, step);
        let shards = self.shards.iter_mut().filter(|(id, _)| id.dir == *dir);
        for (_, shard) in shards {
            shard.error = None;
            shard.reports.retain(|report| report.step != step);
            shard.wishes.settle(step, Fate::OnDisk);
            // Saved again while it was written: the job orders it no more.
            for slot in &mut shard.slots {
                let is_it = |held: &&mut super::shard::Held| held.step == step && held.disk == Disk::Wished;
                if let Some(held) = slot.held_mut().filter(is_it) {
                    held.disk = Disk::No;
                }
            }
            // What is older and not on its way was left out: a newer step is there.
            for older in shard.wishes.open_steps().into_iter().filter(|older| *older < step) {
                let disk = shard.of_step(older).map_or(Disk::No, Slot::disk);
                let is_reported = shard.reports.iter().any(|report| report.step == older);
                if is_reported || matches!(disk, Disk::Running(_) | Disk::Ordered { .. }) {
                    continue;
                }
                shard.wishes.settle(older, Fate::Superseded);
                for slot in &mut shard.slots {
                    if let Some(held) = slot.held_mut().filter(|held| held.step == older) {
                        held.disk = Disk::No;
                    }
                }
            }
        }
    }

    /// The job decides next which step goes to disk: it must know what was saved while it had no reason to ask. A save
    /// that took the place of another may be the only one that is to go there.
    pub(super) fn tell_what_is_newer(&mut self, dir: &Dir, step: u64) {
        if self.is_between_rounds {
            return;
        }
        let is_newer = |slot: &Slot| slot.held().is_some_and(|held| !held.is_stale && held.step > step);
        let mut shards =
            self.shards.iter().filter(|(id, shard)| id.dir == *dir && shard.facts.is_coordinated());
        self.must_tell_state |= shards.any(|(_, shard)| shard.slots.iter().any(is_newer));
    }

    /// The step will not count, unless it was saved after round `saved_in`.
    pub(super) fn remember_failure(&mut self, dir: &Dir, step: u64, saved_in: Option<u32>, given_up: u32) {
        let said_in = self.round();
        // Of a directory that no client has named yet too: one that will may wait for just this.
        let known = self.dirs.entry(dir.clone()).or_default();
        let before = match known.fates.get(step) {
            Some(Decision::Failed { given_up, .. }) => *given_up,
            _ => 0,
        };
        // The answer to a report that came again has no number of its own.
        let given_up = given_up.max(before);
        known.fates.set(step, Decision::Failed { said_in, saved_in, given_up });
    }

    fn delete_old(&mut self, dir: &Dir, committed: u64) {
        let busy = self.busy_steps(dir);
        let Some(known) = self.dirs.get_mut(dir) else { return };
        let (Some(keep), Some(folder)) = (known.keep, &mut known.folder) else { return };
        let deletions = retention::deletions(dir, &folder.manifests, committed, &busy, keep);
        deletions.iter().for_each(|deletion| drop(folder.manifests.remove(&deletion.step)));
        for retention::Deletion { step, files } in deletions {
            self.push_remove(dir, step, true, files, Vec::new());
        }
    }

    pub(super) fn push_remove(
        &mut self,
        dir: &Dir,
        step: u64,
        manifest: bool,
        files: Vec<String>,
        staged: Vec<String>,
    ) {
        let removed = &mut self.dirs.entry(dir.clone()).or_default().removed;
        removed.set(step, None);
        self.effects.push(Effect::Remove { dir: dir.clone(), step, manifest, files, staged });
    }

    /// Whether files of a step are about to be removed: what is written there now could be hit.
    pub(super) fn is_being_removed(&mut self, dir: &Dir, step: u64) -> bool {
        let Some(known) = self.dirs.get_mut(dir) else { return false };
        let reading = match known.removed.get(step) {
            None => return false,
            // A reading of the directory ends after what was to be done there before.
            Some(None) => self.read_folder(dir),
            Some(Some(reading)) => *reading,
        };
        let Some(known) = self.dirs.get_mut(dir) else { return false };
        if known.ended >= reading {
            known.removed.remove(step);
            return false;
        }
        known.removed.set(step, Some(reading));
        true
    }

    /// Steps of a directory that are written, loaded or waited for.
    fn busy_steps(&self, dir: &Dir) -> BTreeSet<u64> {
        let shards = || self.shards.iter().filter(|(id, _)| id.dir == *dir).map(|(_, shard)| shard);
        let written = shards().flat_map(|shard| shard.on_their_way().map(|held| held.step));
        let reported = shards().flat_map(|shard| shard.reports.iter().map(|report| report.step));
        let loaded = self.clients.values().filter_map(|client| match &client.pending {
            Some(Pending::Load { loading: Loading::Files { left, .. }, .. }) => {
                left.front().map(|candidate| candidate.step)
            }
            _ => None,
        });
        let waiting = self.dirs.get(dir).into_iter().flat_map(|known| known.commits.keys().copied());
        written.chain(reported).chain(loaded).chain(waiting).collect()
    }

    pub(super) fn warn(&mut self, text: String) {
        self.log(Level::Warn, &text);
    }

    pub(super) fn log(&mut self, level: Level, text: &str) {
        let text = cut(text);
        self.tell(FromSaver::Log { level, text });
    }

    pub(super) fn tell(&mut self, message: FromSaver) {
        self.effects.push(Effect::Tell(message));
    }
}
