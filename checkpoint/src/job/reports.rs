//! What nodes report of writes to disk, and what follows.

use super::{
    Effect, JobCheckpoints, Note, Order,
    folder::{Failure, Save, weight},
};
use crate::{
    Moment,
    manifest::check_shard,
    message::{Dir, MAX_STEP, ShardFile, cut},
};

/// Steps of a directory that are on their way at the same time.
const MAX_SAVES: usize = 16;

/// Nodes that are asked for a manifest in the place of one that is gone, and cannot write it: so many do not have the
/// directory, and the round waits for the answer.
const MAX_REFUSALS: u32 = 4;

/// Bytes of memory that the reports of all steps may take together.
const MAX_WEIGHT: usize = 256 << 20;

impl<N: Ord + Clone> JobCheckpoints<N> {
    /// A shard of a step is on disk. It was saved in round `saved_in`, and given up `given_up` times since. After the
    /// last one a node is told to write the manifest.
    pub fn on_persisted(
        &mut self,
        now: Moment,
        node: &N,
        dir: &Dir,
        step: u64,
        (saved_in, given_up): (u32, u32),
        file: ShardFile,
    ) -> Vec<Effect<N>> {
        let refuse = |reason: String| {
            let order = Order::Fail { dir: dir.clone(), step, saved_in, given_up, reason: cut(&reason) };
            vec![Effect::Send { node: node.clone(), order }]
        };
        if let Err((field, value, expected)) = check_shard(&file) {
            return refuse(format!(
                "the report of a shard is invalid: {field} is {value}; expected {expected}"
            ));
        }
        if step > MAX_STEP {
            return refuse(format!("the step is {step}; expected at most {MAX_STEP}"));
        }
        if !self.dirs.contains_key(dir) && !self.has_room() {
            return refuse(format!(
                "the job has checkpoints in {} directories, the maximum; use one of them",
                super::MAX_DIRS
            ));
        }
        let total = self.dirs.values().map(super::JobFolder::weight).fold(0, usize::saturating_add);
        if total.saturating_add(weight(&file)) > MAX_WEIGHT {
            return refuse(format!(
                "the reports of steps whose shards are not all on disk need more than {MAX_WEIGHT} bytes, the maximum"
            ));
        }
        let until = now.plus(self.save_timeout_ms);
        let is_left_behind = self.is_left_behind(dir, step, saved_in);
        let folder = self.dirs.entry(dir.clone()).or_default();
        let is_it = |failure: &&Failure| saved_in <= failure.saved_in && given_up < failure.count;
        if let Some(failure) = folder.failed.get(step).filter(is_it) {
            // While it is tried again, the node has yet to hear that it was given up.
            if folder.saves.contains_key(&step) {
                return Vec::new();
            }
            return vec![Effect::Send { node: node.clone(), order: failure.order(dir, step) }];
        }
        if !folder.saves.contains_key(&step) {
            if folder.is_behind(step, saved_in) {
                // Said again, since the acknowledgement was lost; or a newer step counts, which is as good.
                return vec![Effect::Send { node: node.clone(), order: self.outcome(dir, step, saved_in) }];
            }
            if is_left_behind {
                return refuse("training continues from an older step".to_owned());
            }
            if folder.saves.len() >= MAX_SAVES {
                return refuse(format!("{MAX_SAVES} steps of {dir} are being written to disk, the maximum"));
            }
        }
        let save = folder.saves.entry(step).or_insert_with(|| Save::new(file.n_shards, until));
        let is_older = save.saved_in.is_some_and(|known| saved_in < known);
        if is_older || save.committer.is_some() {
            // Of a course of the training that was given up; or it is all there.
            return Vec::new();
        }
        if save.saved_in != Some(saved_in) {
            save.files.clear();
            save.saved_in = Some(saved_in);
        }
        // It is there after all.
        save.unable.remove(node);
        if save.n_shards != file.n_shards {
            let reason = format!(
                "shard {} belongs to a state with n_shards={}, the other shards of the step to one with n_shards={}",
                file.shard, file.n_shards, save.n_shards
            );
            return self.fail(now, dir, step, &reason);
        }
        save.files.insert(file.shard, (node.clone(), file));
        self.commit_next(now, dir)
    }

    /// The round that runs restores an older step, and its ranks were told so before the job heard of this one: it
    /// must not count after that.
    fn is_left_behind(&self, dir: &Dir, step: u64, saved_in: u32) -> bool {
        let point = self.points.iter().find(|point| point.dir == *dir);
        let is_newer = point.is_some_and(|point| {
            let fetched = point.fetched.as_ref().map(|fetched| fetched.step);
            step > point.step && Some(step) > point.pending && Some(step) > fetched
        });
        self.awaited.is_none() && saved_in < self.round && is_newer
    }

    /// What a node is to do with a shard of a step that is decided.
    fn outcome(&self, dir: &Dir, step: u64, saved_in: u32) -> Order {
        if self.committed(dir) == Some(step) {
            return Order::Committed { dir: dir.clone(), step };
        }
        let reason = "a newer step is on disk".to_owned();
        Order::Fail { dir: dir.clone(), step, saved_in, given_up: 0, reason }
    }

    /// What a node still wants on disk in this round, and the job orders no more, since that step or a newer one
    /// counts.
    pub(super) fn answer_late_wishes(&self, node: &N, dir: &Dir) -> Vec<Effect<N>> {
        let Some((folder, floor)) = self.dirs.get(dir).and_then(|folder| Some((folder, folder.floor?)))
        else {
            return Vec::new();
        };
        let wishes = folder.holders.wishes_of(node, self.round).into_iter();
        let late = wishes.filter(|step| *step <= floor && !folder.saves.contains_key(step));
        let answer = |step| Effect::Send { node: node.clone(), order: self.outcome(dir, step, self.round) };
        late.map(answer).collect()
    }

    /// Has the newest complete step committed, one at a time: the tracker must not go back.
    pub(super) fn commit_next(&mut self, now: Moment, dir: &Dir) -> Vec<Effect<N>> {
        let until = now.plus(self.save_timeout_ms);
        let Some(folder) = self.dirs.get_mut(dir) else { return Vec::new() };
        if folder.saves.values().any(|save| save.committer.is_some()) || folder.is_restoring() {
            return Vec::new();
        }
        let complete = folder.saves.iter_mut().rev().find(|(_, save)| save.is_complete());
        let Some((step, save)) = complete else { return Vec::new() };
        let (step, saved_in, Some(manifest)) = (*step, save.saved_in, save.manifest(*step)) else {
            return Vec::new();
        };
        if let Err(error) = manifest.check() {
            return self.fail(now, dir, step, &format!("its shards do not form one step: {error}"));
        }
        // The node that was to write the manifest is gone, and a worker has written a newer step since.
        if saved_in.is_some_and(|saved_in| folder.is_outdone(step, saved_in)) {
            return self.fail(now, dir, step, "a newer step is on disk");
        }
        let Some(save) = folder.saves.get_mut(&step) else { return Vec::new() };
        let Some(node) = save.next_committer(&self.members) else {
            if self.members.is_empty() {
                // The next round has nodes that may have the directory.
                return Vec::new();
            }
            let reason = "its manifest was not written, because the nodes that wrote its shards left or were \
                          lost, or their savers exited";
            return self.fail(now, dir, step, reason);
        };
        save.committer = Some(node.clone());
        save.until = until;
        let order = Order::Commit { dir: dir.clone(), step, manifest: Box::new(manifest) };
        vec![Effect::Send { node, order }]
    }

    /// A node has written manifest and tracker of a step.
    pub fn on_committed(&mut self, now: Moment, node: &N, dir: &Dir, step: u64) -> Vec<Effect<N>> {
        if !self.dirs.contains_key(dir) && !self.has_room() {
            return Vec::new();
        }
        let round = self.round;
        let folder = self.dirs.entry(dir.clone()).or_default();
        let save = match folder.saves.get(&step) {
            // Only the node that was told to: no other one has the manifest.
            Some(save) if save.committer.as_ref() != Some(node) => return Vec::new(),
            Some(_) => {
                folder.postponed.remove(&step);
                folder.saves.remove(&step)
            }
            None if folder.committed == Some(step) || folder.floor.is_some_and(|floor| step <= floor) => {
                return Vec::new();
            }
            // An order that came late: another node has done it, and newer steps have come since.
            None if folder.knows_newer(step) => return Vec::new(),
            // The master that gave the order had no journal.
            None => None,
        };
        folder.commit(step, save.as_ref().and_then(|save| save.saved_in).unwrap_or(round));
        let shards = save.as_ref().map_or(0, |save| save.n_shards);
        let nodes = save.map(|save| save.nodes()).unwrap_or_default();
        let order = Order::Committed { dir: dir.clone(), step };
        let mut effects = vec![Effect::Note(Note::Committed { dir: dir.clone(), step, shards })];
        effects.extend(self.to_all(nodes, &order));
        // A worker has written another one by itself meanwhile.
        if let Some(counts) = self.committed(dir).filter(|counts| *counts != step) {
            effects.extend(self.to_all([], &Order::Committed { dir: dir.clone(), step: counts }));
        }
        effects.extend(self.give_up_older(dir, step));
        effects.extend(self.go_on(now, dir));
        effects
    }

    /// What is older than a step that counts, and incomplete, is no longer waited for.
    fn give_up_older(&mut self, dir: &Dir, step: u64) -> Vec<Effect<N>> {
        let older = self.dirs.get(dir).into_iter().flat_map(|folder| folder.saves.range(..step));
        let older: Vec<u64> =
            older.filter(|(_, save)| save.committer.is_none()).map(|(step, _)| *step).collect();
        older
            .into_iter()
            .flat_map(|older| self.give_up(dir, older, None, "a newer step is on disk"))
            .collect()
    }

    /// A worker has written a step by itself, in this round: files, manifest and tracker. Its node says so before it
    /// joins the next round, so what that restores is not older.
    pub fn on_written_alone(&mut self, now: Moment, dir: &Dir, step: u64, round: u32) -> Vec<Effect<N>> {
        // Of an earlier round it comes too late: the training has gone on from another step.
        if round < self.round || step > MAX_STEP || !self.dirs.contains_key(dir) && !self.has_room() {
            return Vec::new();
        }
        let folder = self.dirs.entry(dir.clone()).or_default();
        if folder.has_committed(step, round) || folder.is_outdone(step, round) {
            return Vec::new();
        }
        folder.commit(step, round);
        let mut effects = vec![Effect::Note(Note::Committed { dir: dir.clone(), step, shards: 0 })];
        effects.extend(self.give_up_older(dir, step));
        effects.extend(self.to_all([], &Order::Committed { dir: dir.clone(), step }));
        effects.extend(self.go_on(now, dir));
        effects
    }

    /// A node cannot do its part of a step: its shard, or with `shard` `None` the manifest.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub fn on_failed(
        &mut self,
        now: Moment,
        node: &N,
        dir: &Dir,
        step: u64,
        shard: Option<u32>,
        saved_in: Option<u32>,
        reason: &str,
    ) -> Vec<Effect<N>> {
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let concerns = match folder.saves.get(&step) {
            // The only shard of a step, which the job had not heard of yet.
            None => saved_in.is_some_and(|saved_in| {
                let known = folder.failed.get(step).is_some_and(|failure| saved_in <= failure.saved_in);
                !known && !folder.is_behind(step, saved_in) && step <= MAX_STEP
            }),
            Some(save) => {
                let is_older = saved_in.zip(save.saved_in).is_some_and(|(of, known)| of < known);
                let is_its_part = match (&save.committer, shard) {
                    (Some(committer), None) => committer == node,
                    // All shards are on disk.
                    (Some(_), Some(_)) => false,
                    (None, _) => true,
                };
                is_its_part && !is_older
            }
        };
        if !concerns {
            return Vec::new();
        }
        if shard.is_none() && self.pass_commit_on(node, dir, step) {
            return self.commit_next(now, dir);
        }
        let is_pending = self.points.iter().any(|point| point.dir == *dir && point.pending == Some(step));
        let folder = self.dirs.get_mut(dir).filter(|folder| folder.commits_before(step));
        if let Some(folder) = folder.filter(|_| is_pending && self.awaited.is_none()) {
            folder.postponed.entry(step).or_insert_with(|| (saved_in, cut(reason)));
            return Vec::new();
        }
        let mut effects = self.give_up(dir, step, saved_in, reason);
        effects.extend(self.go_on(now, dir));
        effects
    }

    pub(super) fn fail(&mut self, now: Moment, dir: &Dir, step: u64, reason: &str) -> Vec<Effect<N>> {
        let mut effects = self.give_up(dir, step, None, reason);
        effects.extend(self.go_on(now, dir));
        effects
    }

    /// What a step that is decided has held up.
    fn go_on(&mut self, now: Moment, dir: &Dir) -> Vec<Effect<N>> {
        let is_over = self
            .dirs
            .get(dir)
            .is_none_or(|folder| folder.postponed.keys().all(|step| !folder.commits_before(*step)));
        let mut effects = if is_over { self.tell_postponed(dir) } else { Vec::new() };
        effects.extend(self.commit_next(now, dir));
        effects.extend(self.coordinate(now, dir));
        effects
    }

    /// Tells of the failures that waited for the end of an older step.
    pub(super) fn tell_postponed(&mut self, dir: &Dir) -> Vec<Effect<N>> {
        let postponed = self.dirs.get_mut(dir).map(|folder| std::mem::take(&mut folder.postponed));
        let postponed = postponed.unwrap_or_default().into_iter();
        postponed.flat_map(|(step, (saved_in, reason))| self.give_up(dir, step, saved_in, &reason)).collect()
    }

    pub(super) fn give_up(
        &mut self,
        dir: &Dir,
        step: u64,
        saved_in: Option<u32>,
        reason: &str,
    ) -> Vec<Effect<N>> {
        let reason = cut(reason);
        let round = self.round;
        let Some(folder) = self.dirs.get_mut(dir) else { return Vec::new() };
        let save = folder.saves.remove(&step);
        folder.postponed.remove(&step);
        let saved_in = save.as_ref().and_then(|save| save.saved_in).or(saved_in);
        let failure = folder.remember_failure(step, round, saved_in, reason.clone());
        let nodes = save.map(|save| save.nodes()).unwrap_or_default();
        let dir = dir.clone();
        let order = failure.order(&dir, step);
        let mut effects = vec![Effect::Note(Note::Failed { dir, step, reason })];
        effects.extend(self.to_all(nodes, &order));
        effects
    }

    /// Steps that a node was to write a shard of, which was lost with the memory of the node or its saver.
    pub(super) fn fail_lost(&mut self, now: Moment, node: &N) -> Vec<Effect<N>> {
        let mut lost = Vec::new();
        for (dir, folder) in &self.dirs {
            for (step, save) in &folder.saves {
                let is_lost = |(shard, of): (&u32, &N)| {
                    of == node && !save.files.contains_key(shard) && !folder.has(node, *shard, *step)
                };
                if let Some((shard, _)) = save.ordered.iter().find(|(shard, of)| is_lost((shard, of))) {
                    let reason = format!(
                        "the saver that had shard {shard} in memory exited, or its node was lost, before the \
                         shard was on disk"
                    );
                    lost.push((dir.clone(), *step, reason));
                }
            }
        }
        lost.into_iter().flat_map(|(dir, step, reason)| self.fail(now, &dir, step, &reason)).collect()
    }

    /// A node is gone: what it was to commit is committed by another one. Whether the manifest was written already is
    /// not known, and does not matter: it would be the same.
    pub(super) fn replace_committer(&mut self, now: Moment, node: &N) -> Vec<Effect<N>> {
        let mut orphaned = Vec::new();
        for (dir, folder) in &mut self.dirs {
            for save in folder.saves.values_mut() {
                let is_committer = save.committer.as_ref() == Some(node);
                if is_committer || save.files.values().any(|(of, _)| of == node) {
                    save.unable.insert(node.clone());
                }
                if is_committer {
                    save.committer = None;
                    orphaned.push(dir.clone());
                }
            }
        }
        orphaned.into_iter().flat_map(|dir| self.commit_next(now, &dir)).collect()
    }

    /// The node that was to write the manifest in the place of another one cannot. Returns whether the next one is
    /// asked.
    fn pass_commit_on(&mut self, node: &N, dir: &Dir, step: u64) -> bool {
        let save = self.dirs.get_mut(dir).and_then(|folder| folder.saves.get_mut(&step));
        let Some(save) = save.filter(|save| save.committer.as_ref() == Some(node)) else { return false };
        // The first one has written to the directory, so that no other can do better.
        if save.unable.is_empty() && save.files.values().any(|(of, _)| of == node) {
            return false;
        }
        save.unable.insert(node.clone());
        save.refusals = save.refusals.saturating_add(1);
        if save.refusals >= MAX_REFUSALS || save.next_committer(&self.members).is_none() {
            return false;
        }
        save.committer = None;
        true
    }
}
