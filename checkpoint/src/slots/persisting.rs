//! Writes to disk: one at a time for each shard, two at a time in all, in the order in which they were asked for.

use std::collections::BTreeSet;

use super::{
    Saver,
    api::{Effect, Persist, PersistId, SlotId, Written},
    shard::{Disk, Held, Report, Shard, SlotState},
    wishes::Fate,
};
use crate::{
    manifest::{check_shard, relative},
    message::{Dir, FileSum, Format, FromSaver, Progress, ShardFile, ShardId, cut},
};

/// Writes at the same time: one alone leaves a disk idle between two files, and more compete for it with training.
const MAX_RUNNING: usize = 2;

/// Steps of a shard that wait for the job's acknowledgement.
const MAX_REPORTS: usize = 8;

/// A write that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) shard: ShardId,
    pub(super) slot: SlotId,
    pub(super) step: u64,
    /// Why the step fails, whatever becomes of the file.
    pub(super) failed: Option<String>,
    /// After that it is to be written again.
    pub(super) again: bool,
}

/// Where a step goes: what the client has named, or the default.
fn target(dir: &Dir, format: Format, held: &Held) -> String {
    if !held.path.is_empty() {
        return held.path.clone();
    }
    match format {
        Format::Pt => dir.join(&format!("{}/rank_{}.pt", held.step, held.rank)),
        Format::Dcp | Format::Safetensors => dir.join(&held.step.to_string()),
    }
}

impl Saver {
    /// Starts what has its turn.
    pub(super) fn start_persists(&mut self) {
        if self.ending.as_ref().is_some_and(super::ending::Ending::is_abandoned) {
            return;
        }
        let mut held_back = BTreeSet::new();
        while self.running.len() < MAX_RUNNING {
            let first = |shard: &Shard| {
                let turn = |slot: &super::shard::Slot| match slot.disk() {
                    Disk::Ordered { turn } => Some((turn, slot.id)),
                    _ => None,
                };
                shard.slots.iter().filter_map(turn).min()
            };
            let ready = self
                .shards
                .iter()
                .filter(|(id, shard)| shard.running().is_none() && !held_back.contains(*id));
            let next = ready.filter_map(|(id, shard)| Some((first(shard)?, id.clone()))).min();
            let Some(((_, slot), id)) = next else { return };
            let held = self.shards.get(&id).and_then(|shard| shard.slot(slot)?.held());
            let (step, waits) =
                held.map_or((None, false), |held| (Some(held.step), self.awaits_its_place(&id, held)));
            if waits || step.is_some_and(|step| self.is_being_removed(&id.dir, step)) {
                held_back.insert(id);
            } else {
                self.start_persist(id, slot);
            }
        }
    }

    /// An earlier step at the same path of the user's is on disk, and the job has yet to say whether it counts. What waits
    /// for that name must not be replaced before.
    fn awaits_its_place(&self, id: &ShardId, held: &Held) -> bool {
        let Some(shard) = self.shards.get(id).filter(|_| !held.path.is_empty()) else { return false };
        shard.reports.iter().any(|report| report.step != held.step && report.path == held.path)
    }

    fn start_persist(&mut self, shard_id: ShardId, slot: SlotId) {
        let id = PersistId(self.next());
        let Some(shard) = self.shards.get_mut(&shard_id) else { return };
        let facts = shard.facts.clone();
        let Some(slot) = shard.slot_mut(slot) else { return };
        let (slot_id, layout_id) = (slot.id, slot.layout.id);
        let Some(held) = slot.held_mut() else { return };
        held.disk = Disk::Running(id);
        let persist = Persist {
            id,
            slot: slot_id,
            step: held.step,
            shard: shard_id.clone(),
            n_shards: facts.n_shards,
            rank: held.rank,
            world: held.world,
            replicated: facts.replicated,
            layout_id,
            format: facts.format,
            target: target(&shard_id.dir, facts.format, held),
        };
        self.running.insert(
            id,
            Running { shard: shard_id.clone(), slot: slot_id, step: held.step, failed: None, again: false },
        );
        self.effects.push(Effect::Persist(Box::new(persist)));
        self.fill_slots(&shard_id);
    }

    pub(super) fn on_progressed(&mut self, persist: PersistId, bytes: u64, of: u64) {
        let Some(running) = self.running.get(&persist) else { return };
        let progress = Progress { id: running.shard.clone(), step: running.step, bytes, of };
        self.tell(FromSaver::Progress(progress));
    }

    pub(super) fn on_persist_ended(&mut self, persist: PersistId, result: Result<Written, String>) {
        let turn = self.next();
        let Some(ended) = self.running.remove(&persist) else { return };
        let Running { shard: id, slot, step, failed, again } = ended;
        let Some(shard) = self.shards.get_mut(&id) else { return };
        let facts = shard.facts.clone();
        let Some(slot) = shard.slot_mut(slot) else { return };
        let Some(held) = slot
            .held_mut()
            .filter(|held| matches!(held.disk, Disk::Running(id) | Disk::Cancelled(id) if id == persist))
        else {
            return;
        };
        held.disk = if again { Disk::Ordered { turn } } else { Disk::No };
        let held = held.clone();
        if held.is_stale && !again {
            slot.state = SlotState::Empty;
        }
        let report = result.and_then(|written| Ok((written.millis, report(&id, &facts, &held, written)?)));
        let (millis, report) = match (report, failed) {
            (Ok(report), None) => report,
            (result, Some(reason)) => {
                if let Ok((_, report)) = result {
                    self.remove(&id.dir, step, &report);
                }
                if !again {
                    self.persist_failed(id, &held, reason, false);
                }
                return;
            }
            (Err(reason), None) => return self.persist_failed(id, &held, reason, true),
        };
        let bytes: u64 = report.file.sums().map(|sum| sum.bytes).fold(0, u64::saturating_add);
        self.bytes_per_second = Some(bytes.saturating_mul(1000) / millis.max(1));
        let shard_file = Box::new(report.file.clone());
        let (dir, saved_in, given_up) = (id.dir.clone(), held.saved_in, held.given_up);
        if let Some(shard) = self.shards.get_mut(&id) {
            shard.reports.retain(|known| known.step != step);
            shard.reports.push(report);
            if shard.reports.len() > MAX_REPORTS {
                shard.reports.remove(0);
            }
        }
        self.tell(FromSaver::Persisted { dir, step, saved_in, given_up, shard: shard_file });
    }

    /// The slot stays whole; the next step that is to go to disk tries again.
    fn persist_failed(&mut self, id: ShardId, held: &Held, reason: String, is_news: bool) {
        let reason = cut(&reason);
        if let Some(shard) = self.shards.get_mut(&id) {
            shard.wishes.settle_open(held.step, Fate::Failed(reason.clone()));
            shard.error = Some(reason.clone());
        }
        if is_news {
            let (step, saved_in) = (held.step, Some(held.saved_in));
            self.tell(FromSaver::Failed { dir: id.dir, step, shard: Some(id.shard), saved_in, reason });
        }
    }

    /// The job wants a step on disk.
    pub(super) fn on_persist_order(&mut self, dir: &Dir, step: u64, replicas: &[u32]) {
        let is_written = |(id, shard): &(&ShardId, &Shard)| {
            id.dir == *dir && (!shard.is_replica || replicas.contains(&id.shard))
        };
        let ids: Vec<ShardId> = self.shards.iter().filter(is_written).map(|(id, _)| id.clone()).collect();
        if ids.is_empty() {
            let reason = format!("this node has no checkpoint of {dir} in memory");
            self.tell(FromSaver::Failed { dir: dir.clone(), step, shard: None, saved_in: None, reason });
        }
        for id in ids {
            let turn = self.next();
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            let held = shard.of_step(step).map(|slot| slot.id);
            let held = held.and_then(|slot| shard.slot_mut(slot)).and_then(super::shard::Slot::held_mut);
            // What is void and given up is of an earlier course of the training, whose steps have the same numbers.
            let counts = |held: &&mut super::shard::Held| {
                !held.is_stale || !matches!(held.disk, Disk::No | Disk::Cancelled(_))
            };
            if let Some(held) = held.filter(counts) {
                if let Disk::Cancelled(persist) = held.disk {
                    held.disk = Disk::Running(persist);
                    shard.wishes.order(step);
                    if let Some(running) = self.running.get_mut(&persist) {
                        running.again = true;
                    }
                    continue;
                }
                if matches!(held.disk, Disk::No | Disk::Wished) {
                    held.disk = Disk::Ordered { turn };
                    if shard.wishes.fate(step) != Some(&Fate::Open) {
                        shard.wishes.order(step);
                    }
                }
                continue;
            }
            let message = match shard.reported(&id).find(|(of, _)| *of == step) {
                Some((_, message)) => message,
                None => FromSaver::Failed {
                    dir: dir.clone(),
                    step,
                    shard: Some(id.shard),
                    saved_in: None,
                    reason: format!("step {step} of shard {} is no longer in memory", id.shard),
                },
            };
            self.tell(message);
        }
    }

    /// The job has given a step up.
    pub(super) fn on_fail(
        &mut self,
        dir: &Dir,
        step: u64,
        (saved_in, given_up): (Option<u32>, u32),
        reason: &str,
    ) {
        let reason = cut(reason);
        self.remember_failure(dir, step, saved_in, given_up);
        // One of an earlier run is no reason: this one's is another course of the training.
        let is_behind = self.newest_counted(dir).is_some_and(|newest| step < newest);
        let fate = if is_behind { Fate::Superseded } else { Fate::Failed(reason.clone()) };
        let (mut removed, mut is_news) = (Vec::new(), false);
        for (id, shard) in self.shards.iter_mut().filter(|(id, _)| id.dir == *dir) {
            let newest = shard.of_step(step).and_then(super::shard::Slot::held);
            if newest.is_some_and(|held| saved_in.is_some_and(|saved_in| held.saved_in > saved_in)) {
                continue;
            }
            is_news = true;
            shard.wishes.settle_open(step, fate.clone());
            for slot in &mut shard.slots {
                let SlotState::Whole(held) = &mut slot.state else { continue };
                if held.step != step {
                    continue;
                }
                held.given_up = held.given_up.max(given_up);
                match held.disk {
                    Disk::Running(persist) | Disk::Cancelled(persist) => {
                        held.disk = Disk::Cancelled(persist);
                        if let Some(running) = self.running.get_mut(&persist) {
                            running.failed.get_or_insert_with(|| reason.clone());
                            // Also when it was to be tried again meanwhile.
                            running.again = false;
                            self.effects.push(Effect::CancelPersist { persist });
                        }
                        continue;
                    }
                    Disk::Wished | Disk::Ordered { .. } => held.disk = Disk::No,
                    Disk::No => {}
                }
                if held.is_stale {
                    slot.state = SlotState::Empty;
                }
            }
            let (of_step, others) = shard.reports.drain(..).partition(|report| report.step == step);
            shard.reports = others;
            removed.extend(of_step.into_iter().map(|report: Report| (id.dir.clone(), report)));
        }
        for (dir, report) in removed {
            self.remove(&dir, step, &report);
        }
        // Else the job has said it because of what this saver had told, and would again.
        if is_news {
            self.tell_what_is_newer(dir, step);
        }
    }

    /// A step counts whose manifest this saver has found, not written: what it has written of that step since waits for a
    /// name in vain.
    pub(super) fn remove_obsolete(&mut self, dir: &Dir, step: u64) {
        let folder = self.dirs.get(dir).and_then(|known| known.folder.as_ref());
        if !folder.is_some_and(|folder| folder.manifests.contains_key(&step)) {
            return;
        }
        let reports =
            self.shards.iter().filter(|(id, _)| id.dir == *dir).flat_map(|(_, shard)| &shard.reports);
        let obsolete: Vec<Report> = reports.filter(|report| report.step == step).cloned().collect();
        obsolete.iter().for_each(|report| self.remove(dir, step, report));
    }

    /// Removes files of a step that does not count. A file at a place of the user's own may be one that counted before:
    /// it stays, and so does one that a step names that counts.
    fn remove(&mut self, dir: &Dir, step: u64, report: &Report) {
        let folder = self.dirs.get(dir).and_then(|known| known.folder.as_ref());
        let counts: Vec<String> = folder
            .into_iter()
            .flat_map(|folder| folder.manifests.values())
            .flat_map(|manifest| manifest.paths(dir).map(|file| file.path))
            .collect();
        let files: Vec<String> =
            report.removable.iter().filter(|file| !counts.contains(file)).cloned().collect();
        let absolute = |sum: FileSum| match sum.file.starts_with('/') {
            true => sum.file,
            false => dir.join(&sum.file),
        };
        let staged = report.file.sums().map(absolute).collect();
        self.push_remove(dir, step, false, files, staged);
    }
}

/// What the job is told of files that were written.
fn report(
    id: &ShardId,
    facts: &super::shard::Facts,
    held: &Held,
    written: Written,
) -> Result<Report, String> {
    let default = id.dir.join(&held.step.to_string());
    let is_removable = |file: &&FileSum| {
        held.path.is_empty()
            && file.file.strip_prefix(default.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    let removable = written.files.iter().filter(is_removable).map(|file| file.file.clone()).collect();
    let named = |sum: FileSum| FileSum { file: relative(&id.dir, &sum.file), ..sum };
    let mut files = written.files.into_iter().map(named);
    let FileSum { file, bytes, chunk_bytes, crc32 } = files.next().ok_or("no file was written")?;
    let file = ShardFile {
        shard: id.shard,
        rank: held.rank,
        n_shards: facts.n_shards,
        world: held.world,
        replicated: facts.replicated,
        format: facts.format,
        file,
        bytes,
        chunk_bytes,
        crc32,
        also: files.collect(),
    };
    match check_shard(&file) {
        Ok(()) => {
            let Held { step, saved_in, given_up, .. } = *held;
            let path = held.path.clone();
            Ok(Report { step, saved_in, given_up, file, path, removable })
        }
        Err((field, value, expected)) => Err(format!("{field} of the file is {value}; expected {expected}")),
    }
}
