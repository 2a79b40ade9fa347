//! What savers would wait for in vain is given up; and a job master without memory of a round that runs already.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, JobCheckpoints, Member, Order};
use crate::{
    Moment,
    message::{Dir, ShardState},
};

impl<N: Ord + Clone> JobCheckpoints<N> {
    /// The round runs already, with these members in the order of their ranks, and its workers have restored what they
    /// were told to: the job master that told them is gone, with all that it knew. Nothing is given up, since members may
    /// have more to say.
    pub fn take_over(&mut self, round: u32, members: Vec<Member<N>>) {
        self.before = members.iter().map(|member| (member.node.clone(), member.first_rank)).collect();
        (self.round, self.members, self.awaited) = (round, members, None);
        self.points.clear();
        self.dirs.values_mut().for_each(super::JobFolder::forget_fetches);
    }

    /// The job has ended, and every node has reported what it has in memory for the last time: a step that lacks a shard
    /// will never be complete, so no node waits for it.
    pub fn end(&mut self, now: Moment) -> Vec<Effect<N>> {
        self.awaited = None;
        let dirs: Vec<Dir> = self.dirs.keys().cloned().collect();
        let mut effects = Vec::new();
        for dir in &dirs {
            if let Some(folder) = self.dirs.get_mut(dir) {
                folder.forget_fetches();
            }
            effects.extend(self.commit_next(now, dir));
            effects.extend(self.coordinate(now, dir));
            for (step, nodes) in self.vain_wishes(dir) {
                let reason = "not all nodes have it in memory at the end of the job";
                effects.extend(self.give_up(dir, step, None, reason));
                let members = &self.members;
                let others =
                    nodes.into_iter().filter(|node| members.iter().all(|member| member.node != *node));
                let failure = self.dirs.get(dir).and_then(|folder| folder.failed.get(step));
                if let Some(order) = failure.map(|failure| failure.order(dir, step)) {
                    effects.extend(others.map(|node| Effect::Send { node, order: order.clone() }));
                }
            }
        }
        effects
    }

    /// A node leaves the job, and ends when it has written what it is to write. The round that begins now does not have it:
    /// no step will be asked of it any more.
    #[must_use]
    pub fn leave_behind(&self, node: &N) -> Vec<Effect<N>> {
        let orders = self.dirs.iter().flat_map(|(dir, folder)| {
            let has_part =
                |step: &u64| folder.saves.get(step).is_some_and(|save| save.nodes().contains(node));
            let wishes = folder.holders.wishing_nodes().into_iter();
            let vain = wishes.filter(move |(step, nodes)| nodes.contains(node) && !has_part(step));
            vain.map(move |(step, _)| self.left_behind(dir, step, self.round))
        });
        orders.map(|order| Effect::Send { node: node.clone(), order }).collect()
    }

    /// A node has left the job, and was thought to have ended, since its stream was broken: it is not counted on any more, so
    /// that nothing it still wants on disk will count.
    #[must_use]
    pub fn refuse(&self, node: &N, shards: &[ShardState]) -> Vec<Effect<N>> {
        let mut wishes: BTreeMap<(&Dir, u64), u32> = BTreeMap::new();
        // The only shard of a step is written without a word of the job.
        for shard in shards.iter().filter(|shard| shard.n_shards > 1) {
            // This job master may have been started again, and not know the round yet.
            let round = self.round.max(shard.round.unwrap_or(0));
            wishes.extend(shard.wishes.iter().map(|step| ((&shard.dir, *step), round)));
        }
        let orders = wishes.into_iter().map(|((dir, step), round)| self.left_behind(dir, step, round));
        orders.map(|order| Effect::Send { node: node.clone(), order }).collect()
    }

    /// A node that has left the job, and ends when it has written what it is to write, is asked for no step any more.
    fn left_behind(&self, dir: &Dir, step: u64, round: u32) -> Order {
        let failure = self.dirs.get(dir).and_then(|folder| folder.failed.get(step));
        Order::Fail {
            dir: dir.clone(),
            step,
            saved_in: round,
            given_up: failure.map_or(0, |failure| failure.count),
            reason: "this node left the job before the step was written to disk".to_owned(),
        }
    }

    /// Steps that a node still wants on disk although they were given up in this round: its link was away when it was told.
    #[must_use]
    pub fn repeat_failures(&self, node: &N) -> Vec<Effect<N>> {
        let orders = self.dirs.iter().flat_map(|(dir, folder)| {
            let wishes = folder.holders.wishing_nodes().into_iter().filter(|(_, nodes)| nodes.contains(node));
            wishes.filter_map(move |(step, _)| {
                let failure = folder.failed.get(step).filter(|_| self.has_failed(dir, folder, step))?;
                Some(failure.order(dir, step))
            })
        });
        orders.map(|order| Effect::Send { node: node.clone(), order }).collect()
    }

    /// Steps of several shards that nodes want on disk and that are not on their way there, with those nodes. None is on
    /// its way while an older one is.
    fn vain_wishes(&self, dir: &Dir) -> BTreeMap<u64, BTreeSet<N>> {
        let Some(folder) = self.dirs.get(dir).filter(|folder| folder.saves.is_empty()) else {
            return BTreeMap::new();
        };
        let mut wishes = folder.holders.wishing_nodes();
        let is_void = |step: &u64| {
            folder.committed == Some(*step)
                || folder.floor.is_some_and(|floor| *step <= floor)
                || self.has_failed(dir, folder, *step)
        };
        wishes.retain(|step, _| !is_void(step));
        wishes
    }
}
