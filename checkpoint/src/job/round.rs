//! What goes to disk while a round runs and when it fails, and what the next one restores.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Effect, JobCheckpoints, Member, Note,
    folder::{JobFolder, Save},
    holders::Facts,
    persist,
    replicas::FetchPlan,
};
use crate::{
    Moment,
    message::{Dir, RestorePoint, RestoreSource, ShardState},
};

impl<N: Ord + Clone> JobCheckpoints<N> {
    /// The round is over: its workers end, because something failed or another set of nodes is to run. What is in
    /// memory goes to disk as soon as the nodes have said what that is; until then nothing is known of their memory.
    pub fn end_round(&mut self) {
        for folder in self.dirs.values_mut() {
            folder.holders.clear();
            folder.forget_fetches();
        }
        self.awaited = Some(self.members.iter().map(|member| member.node.clone()).collect());
    }

    /// A round begins with these members, in the order of their ranks, which have said what is in their memory. Returns
    /// what all ranks restore, and what is to be written to disk before.
    pub fn begin_round(
        &mut self,
        now: Moment,
        round: u32,
        world: u32,
        mut members: Vec<Member<N>>,
    ) -> (Vec<RestorePoint>, Vec<Effect<N>>) {
        let returned = self.compare_with_before(&mut members);
        self.members = members;
        let is_member = |node: &N| self.members.iter().any(|member| member.node == *node);
        for folder in self.dirs.values_mut() {
            folder.holders.retain(is_member);
            returned.iter().for_each(|(node, _)| folder.holders.remove(node));
            folder.forget_fetches();
            // A saver that was gone may be there again.
            folder.saves.values_mut().for_each(|save| save.unable.retain(|node| !is_member(node)));
        }
        let was_broken = self.awaited.take().is_some() && self.saves_at_breakpoint;
        let mut effects = Vec::new();
        let mut points = Vec::new();
        let dirs: Vec<Dir> = self.dirs.keys().cloned().collect();
        for dir in &dirs {
            effects.extend(self.tell_postponed(dir));
            effects.extend(self.give_up_impossible(now, dir));
            self.adopt_wishes(now, dir);
            let disk = self.committed(dir);
            // What memory is compared with.
            let of_this_run = self.dirs.get(dir).and_then(JobFolder::committed_by_this_run);
            let memory = self.memory_step(dir, world).filter(|step| Some(*step) >= of_this_run);
            let plan = self.plan(dir, world, memory.max(of_this_run)).filter(|plan| Some(plan.step) > memory);
            // What is restored, if all nodes can have it.
            let best = plan.as_ref().map(|plan| plan.step).or(memory);
            if best.is_none() && was_broken {
                effects.extend(self.save_newest(now, dir));
            }
            let (pending, given_up) = self.choose_pending(dir, best, of_this_run);
            effects.extend(given_up);
            if let Some(step) = memory.filter(|_| was_broken && pending.is_none() && plan.is_none()) {
                effects.extend(self.save_at_breakpoint(now, dir, step));
            }
            let plan = plan.filter(|_| pending.is_none());
            if let Some(folder) = self.dirs.get_mut(dir) {
                folder.holders.keep_up_to(plan.as_ref().map(|plan| plan.step).or(memory));
            }
            let void: Vec<u32> = returned.iter().map(|(_, first_rank)| *first_rank).collect();
            let fetched =
                plan.and_then(|plan| self.start_restoring(now, dir, plan, memory, was_broken, void));
            let given_up = pending.and_then(|step| self.dirs.get(dir)?.failed.get(step));
            let given_up = given_up.map_or(0, |failure| failure.count);
            let (step, source) = match memory {
                Some(step) => (step, RestoreSource::Memory),
                None if disk.is_none() && pending.is_none() && fetched.is_none() => continue,
                None => (disk.unwrap_or(0), RestoreSource::Disk),
            };
            points.push(RestorePoint { dir: dir.clone(), step, source, pending, given_up, fetched });
        }
        self.points.clone_from(&points);
        self.round = round;
        // Steps of this round may have the numbers of earlier ones.
        self.dirs.values_mut().for_each(|folder| folder.floor = None);
        // Savers wait for the job's word about what they still have of earlier rounds.
        effects.extend(dirs.iter().flat_map(|dir| self.coordinate(now, dir)));
        (points, effects)
    }

    /// Compares the members of a round with those of the round before. What a node with other ranks than before has of
    /// shards, its agent has it give up. The memory of a node that has missed a round is of an earlier course of the
    /// training; returns those, with their first ranks.
    fn compare_with_before(&mut self, members: &mut [Member<N>]) -> Vec<(N, u32)> {
        let now = members.iter().map(|member| (member.node.clone(), member.first_rank)).collect();
        let before: BTreeMap<N, u32> = std::mem::replace(&mut self.before, now).into_iter().collect();
        let mut returned = Vec::new();
        for member in members {
            match before.get(&member.node) {
                Some(first_rank) => member.is_void |= *first_rank != member.first_rank,
                // Without memory of its own, the job cannot tell them from others.
                None if before.is_empty() => {}
                None => returned.push((member.node.clone(), member.first_rank)),
            }
        }
        returned
    }

    /// A newer step than `restored`, or that one, which nodes can fetch. Not while a newer step is about to count:
    /// that can no longer be held up.
    fn plan(&self, dir: &Dir, world: u32, restored: Option<u64>) -> Option<FetchPlan<N>> {
        let plan = self.fetchable(dir, world).filter(|plan| Some(plan.step) >= restored)?;
        let saves = &self.dirs.get(dir)?.saves;
        let counts_soon = |(step, save): (&u64, &Save<N>)| Some(*step) > restored && save.committer.is_some();
        (!saves.iter().any(counts_soon)).then_some(plan)
    }

    /// Steps that are on their way to disk and newer than the step that all ranks can restore at once: all ranks wait
    /// for at most one of them, and the others whose manifest is not ordered are given up. They must not count later,
    /// when the training has gone on from another step.
    ///
    /// What is complete but for its manifest can no longer be held up, so it is waited for; so is the newest step when
    /// it is not in memory everywhere.
    fn choose_pending(
        &mut self,
        dir: &Dir,
        memory: Option<u64>,
        disk: Option<u64>,
    ) -> (Option<u64>, Vec<Effect<N>>) {
        let Some(folder) = self.dirs.get(dir) else { return (None, Vec::new()) };
        let restored = memory.max(disk);
        let newer = || folder.saves.iter().filter(|(step, _)| Some(**step) > restored);
        let awaited = newer().filter(|(_, save)| memory.is_none() || save.committer.is_some());
        let pending = awaited.map(|(step, _)| *step).max();
        let given_up = newer().filter(|(step, save)| Some(**step) != pending && save.committer.is_none());
        let given_up: Vec<u64> = given_up.map(|(step, _)| *step).collect();
        let reason = "training continues from another step";
        let effects = given_up.into_iter().flat_map(|step| self.give_up(dir, step, None, reason)).collect();
        (pending, effects)
    }

    /// The newest step that every rank of the round would find in the memory of its node.
    fn memory_step(&self, dir: &Dir, world: u32) -> Option<u64> {
        let folder = self.dirs.get(dir)?;
        let facts = folder.holders.facts().filter(|facts| folder.holders.agree(*facts))?;
        let mut steps: Option<BTreeSet<u64>> = None;
        let mut also = |of: &[u64]| {
            let of: BTreeSet<u64> = of.iter().copied().collect();
            steps = Some(
                steps.as_ref().map_or_else(|| of.clone(), |all| all.intersection(&of).copied().collect()),
            );
        };
        let states: BTreeMap<(u32, &N), _> =
            folder.holders.states().map(|(shard, node, state)| ((shard, node), state)).collect();
        if facts.replicated {
            for shard in 0..facts.n_shards {
                for member in &self.members {
                    also(&states.get(&(shard, &member.node))?.steps);
                }
            }
        } else {
            // Ranks without a shard of their own read that of another one, which must be on their node.
            if facts.world != world || facts.n_shards != world && self.members.len() > 1 {
                return None;
            }
            for shard in 0..facts.n_shards {
                let is_at_its_rank = |member: &&Member<N>| {
                    let end = member.first_rank.saturating_add(member.local_world_size);
                    let state = states.get(&(shard, &member.node));
                    state.is_some_and(|state| (member.first_rank..end).contains(&state.rank))
                };
                let member = self.members.iter().find(is_at_its_rank)?;
                also(&states.get(&(shard, &member.node))?.steps);
            }
        }
        steps?.into_iter().next_back()
    }

    /// Steps that cannot become complete in this round: a shard is neither on disk nor on its way there.
    fn give_up_impossible(&mut self, now: Moment, dir: &Dir) -> Vec<Effect<N>> {
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let can_come = |step: u64, save: &Save<N>, shard: u32| {
            let writes = |member: &Member<N>| {
                let node = &member.node;
                let is_ordered = save.ordered.get(&shard) == Some(node);
                folder.is_on_its_way(node, shard, step) || is_ordered && folder.has(node, shard, step)
            };
            save.files.contains_key(&shard) || self.members.iter().any(writes)
        };
        let is_there = |node: &N| self.members.iter().any(|member| member.node == *node);
        let mut lost = Vec::new();
        for (step, save) in &folder.saves {
            match &save.committer {
                Some(committer) if is_there(committer) => {}
                Some(committer) => lost.push((*step, Ok(committer.clone()))),
                None => {
                    let missing = (0..save.n_shards).find(|shard| !can_come(*step, save, *shard));
                    lost.extend(missing.map(|shard| (*step, Err(shard))));
                }
            }
        }
        let mut effects = Vec::new();
        for (step, committer) in lost {
            effects.extend(match committer {
                Ok(committer) => self.replace_committer(now, &committer),
                Err(shard) => {
                    let reason =
                        format!("shard {shard} is not on disk, and no node of the new round will write it");
                    self.fail(now, dir, step, &reason)
                }
            });
        }
        // What is complete was left by a round whose nodes are all gone.
        effects.extend(self.commit_next(now, dir));
        effects
    }

    /// Steps that the only writer of a shard is about to write: they are waited for like those that the job has
    /// ordered.
    fn adopt_wishes(&mut self, now: Moment, dir: &Dir) {
        let until = now.plus(self.save_timeout_ms);
        let Some(folder) = self.dirs.get_mut(dir) else { return };
        let committed = folder.committed_by_this_run();
        if folder.holders.facts().is_none_or(|facts| facts.n_shards != 1) {
            return;
        }
        let mut adopted: BTreeMap<u64, BTreeMap<u32, N>> = BTreeMap::new();
        // What was given up in the round that last ran on its node that drops when it hears so, and says no more.
        let is_dropped = |step: u64, state: &ShardState| {
            let failure = folder.failed.get(step);
            failure.is_some_and(|failure| state.round.is_none_or(|round| failure.round >= round))
        };
        for (shard, node, state) in folder.holders.states() {
            let comes = |step: &&u64| Some(**step) > committed && !is_dropped(**step, state);
            for step in state.wishes.iter().filter(comes) {
                adopted.entry(*step).or_default().insert(shard, node.clone());
            }
        }
        for (step, ordered) in adopted {
            folder.saves.entry(step).or_insert_with(|| Save { ordered, ..Save::new(1, until) });
        }
    }

    /// After a failure: each directory whose shards are all known, and whose first writer is.
    pub(super) fn break_all(&mut self, now: Moment) -> Vec<Effect<N>> {
        let Some(awaited) = self.awaited.as_ref().filter(|_| self.saves_at_breakpoint) else {
            return Vec::new();
        };
        let all_are_here = awaited.is_empty();
        // One node writes a step that all have. That is the node of rank 0 while there is hope for it.
        let is_ready = |dir: &&Dir| {
            let Some(holders) = self.dirs.get(*dir).map(|folder| &folder.holders) else { return false };
            let has_first = || holders.states().any(|(_, _, state)| state.rank == 0);
            // Of a shard with replicas not all holders are known yet: the one that is missing may have a newer step.
            let is_known = |facts: Facts| match facts.n_shards {
                1 => has_first(),
                _ => !holders.has_replicas(),
            };
            holders.facts().is_some_and(|facts| all_are_here || is_known(facts))
        };
        let ready: Vec<Dir> = self.dirs.keys().filter(is_ready).cloned().collect();
        ready.iter().flat_map(|dir| self.save_newest(now, dir)).collect()
    }

    /// Has the newest step that all shards have in memory written, if it is newer than the one on disk.
    fn save_newest(&mut self, now: Moment, dir: &Dir) -> Vec<Effect<N>> {
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let Some(newest) = folder.holders.newest_common() else { return Vec::new() };
        self.save_at_breakpoint(now, dir, newest)
    }

    pub(super) fn save_at_breakpoint(&mut self, now: Moment, dir: &Dir, step: u64) -> Vec<Effect<N>> {
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let is_newer = Some(step) > folder.committed_by_this_run();
        if !is_newer || folder.saves.contains_key(&step) || folder.has_failed_now(step, self.round) {
            return Vec::new();
        }
        let mut effects = vec![Effect::Note(Note::SavedAtBreakpoint { dir: dir.clone(), step })];
        effects.extend(self.order(now, dir, step));
        effects
    }

    /// Whether what nodes have of a step has failed in this round. What is newer than what they have kept in memory was saved
    /// in this round, maybe again.
    pub(super) fn has_failed(&self, dir: &Dir, folder: &JobFolder<N>, step: u64) -> bool {
        let kept = match self.points.iter().find(|point| point.dir == *dir) {
            Some(point) => point.newest_in_memory(None),
            // The job master that told them what to restore is gone.
            None if self.points.is_empty() => return folder.has_failed(step, self.round),
            None => None,
        };
        if Some(step) > kept {
            folder.has_failed_now(step, self.round)
        } else {
            folder.has_failed(step, self.round)
        }
    }

    /// The next step of several shards goes to disk when the one before is decided, so that all shards write
    /// the same one.
    pub(super) fn coordinate(&mut self, now: Moment, dir: &Dir) -> Vec<Effect<N>> {
        let is_ordered = |save: &Save<N>| !save.ordered.is_empty() || save.committer.is_some();
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let holders = &folder.holders;
        let Some(facts) = holders.facts().filter(|facts| facts.n_shards > 1) else { return Vec::new() };
        let counts =
            |step: u64| folder.floor.is_none_or(|floor| step > floor) && !self.has_failed(dir, folder, step);
        let oldest_wish = holders.wishes().find(|step| counts(*step));
        let Some(oldest) = oldest_wish.filter(|_| !folder.saves.values().any(is_ordered)) else {
            return Vec::new();
        };
        // One that was asked for; else one that took the place of such a one somewhere.
        let candidates = || holders.newest_first().filter(|step| *step >= oldest && counts(*step));
        let asked_for = candidates().filter(|step| holders.is_wished(*step));
        let others = candidates().filter(|step| !holders.is_wished(*step));
        let found = asked_for.chain(others).find(|step| holders.is_common(*step) && holders.agree(facts));
        found.map_or_else(Vec::new, |step| self.order(now, dir, step))
    }

    fn order(&mut self, now: Moment, dir: &Dir, step: u64) -> Vec<Effect<N>> {
        let until = now.plus(self.save_timeout_ms);
        let Some(folder) = self.dirs.get_mut(dir) else { return Vec::new() };
        let Some(facts) = folder.holders.facts() else { return Vec::new() };
        let ordered = folder.holders.writers(step);
        let nodes: BTreeSet<N> = ordered.values().cloned().collect();
        // Reports that came without an order stay.
        let save = folder.saves.entry(step).or_insert_with(|| Save::new(facts.n_shards, until));
        save.ordered = ordered;
        let Some((folder, save)) = self.dirs.get(dir).and_then(|it| Some((it, it.saves.get(&step)?))) else {
            return Vec::new();
        };
        let order = |node: &N| persist(folder, dir, step, node, save);
        nodes.into_iter().map(|node| Effect::Send { order: order(&node), node }).collect()
    }
}
