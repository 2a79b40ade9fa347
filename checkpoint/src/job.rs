//! The job's side: which steps count, what a round restores, which node writes the manifest. The job alone knows all
//! shards; savers only report. It is a part of the job's state machine, so it is kept in the journal.
//!
//! ```text
//! states of all nodes ---> order: persist ---> reports of all shards ---> order: commit ---> committed
//!                                                      \--- a failure, or save_timeout ---> failed
//! ```
//!
//! Every message may come twice, late, or from a node that lies: none of them can make a step count without a report of
//! each of its shards, and what is kept is bounded.

mod ending;
mod folder;
mod holders;
mod order;
mod replicas;
mod reports;
mod round;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use order::{Effect, Note, Order};

use crate::{
    Moment,
    message::{Dir, MAX_STEPS, MAX_TEXT, MAX_WORLD, RestorePoint, ShardState},
};
use folder::{JobFolder, Save};

/// Checkpoint directories of a job at most.
const MAX_DIRS: usize = 256;

/// Shards that a node may hold.
const MAX_SHARDS: usize = 256;

/// How long the shards of a step may take to be on disk together, in milliseconds, unless set.
pub const SAVE_TIMEOUT_MS: u64 = 600_000;

/// A node of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "CheckpointMember")]
pub struct Member<N> {
    pub node: N,
    pub first_rank: u32,
    pub local_world_size: u32,
    /// Where other nodes reach it.
    pub address: String,
    /// What it has in memory of shards that are not replicated belongs to other ranks than its own.
    pub is_void: bool,
}

impl<N> Member<N> {
    /// Whether a rank is one of this node.
    pub(crate) const fn has(&self, rank: u32) -> bool {
        rank >= self.first_rank && rank < self.first_rank.saturating_add(self.local_world_size)
    }
}

/// The checkpoints of a job. `N` is the id of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub struct JobCheckpoints<N: Ord> {
    save_timeout_ms: u64,
    saves_at_breakpoint: bool,
    round: u32,
    /// Of the round that runs, or ran last, in the order of their ranks.
    members: Vec<Member<N>>,
    points: Vec<RestorePoint>,
    /// The members of the last round with their first ranks, also those that are gone since.
    before: Vec<(N, u32)>,
    /// After a failure: the members that have not said yet what they have in memory.
    awaited: Option<BTreeSet<N>>,
    dirs: BTreeMap<Dir, JobFolder<N>>,
}

impl<N: Ord + Clone> JobCheckpoints<N> {
    /// No checkpoint is known. With `saves_at_breakpoint`, the newest step in memory goes to disk when a round fails.
    #[must_use]
    pub const fn new(save_timeout_ms: u64, saves_at_breakpoint: bool) -> Self {
        Self {
            save_timeout_ms,
            saves_at_breakpoint,
            round: 0,
            members: Vec::new(),
            points: Vec::new(),
            before: Vec::new(),
            awaited: None,
            dirs: BTreeMap::new(),
        }
    }

    /// A node says what it has in memory, all of it: as it joins, and whenever its saver says so.
    pub fn on_state(&mut self, now: Moment, node: &N, shards: Vec<ShardState>) -> Vec<Effect<N>> {
        self.forget_state(node);
        let mut touched = BTreeSet::new();
        for mut state in shards.into_iter().take(MAX_SHARDS).filter_map(bounded) {
            let dir = state.dir.clone();
            if !self.dirs.contains_key(&dir) && !self.has_room() {
                continue;
            }
            self.forget_what_goes(node, &mut state);
            let knows_course = !self.before.is_empty();
            let folder = self.dirs.entry(dir.clone()).or_default();
            folder.hold(node, state, knows_course);
            touched.insert(dir);
        }
        if let Some(awaited) = &mut self.awaited {
            awaited.remove(node);
            let mut effects = self.break_all(now);
            // What a node that leaves the job wants on disk: it does not stay until the next round.
            for dir in &touched {
                effects.extend(self.coordinate(now, dir));
            }
            return effects;
        }
        let mut effects = self.note_fetched(now, node);
        for dir in &touched {
            effects.extend(self.coordinate(now, dir));
            effects.extend(self.spread(now, dir));
            effects.extend(self.answer_late_wishes(node, dir));
        }
        effects
    }

    /// Takes out of a late state what its node gives up when it hears of the round, or of what that restores.
    fn forget_what_goes(&self, node: &N, state: &mut ShardState) {
        // A node that is lost may come back without having heard of the round.
        let Some((_, first_rank)) = self.before.iter().find(|(member, _)| member == node) else {
            // It hears nothing. What it has is of an earlier course of the training.
            if state.round < Some(self.round) {
                state.steps.clear();
            }
            return;
        };
        let point = self.points.iter().find(|point| point.dir == state.dir);
        let last = if state.round < Some(self.round) {
            point.and_then(|point| point.newest_in_memory(Some(*first_rank)))
        } else if let Some(point) = point.filter(|_| state.awaits_fetches && state.round == Some(self.round))
        {
            point.newest_in_memory(None)
        } else {
            // Also if this job master has not begun the round: then it does not know what was to be restored.
            return;
        };
        state.steps.retain(|step| Some(*step) <= last);
        if self.awaited.is_none() {
            state.wishes.retain(|step| Some(*step) <= last);
        }
    }

    /// A node is gone, and its memory with it.
    pub fn on_gone(&mut self, now: Moment, node: &N) -> Vec<Effect<N>> {
        self.members.retain(|member| member.node != *node);
        self.on_saver_gone(now, node)
    }

    /// The saver of a node is gone, and its memory with it. The node may have another one later in this round.
    pub fn on_saver_gone(&mut self, now: Moment, node: &N) -> Vec<Effect<N>> {
        self.forget_state(node);
        let mut effects = self.fetches_lost(now, node);
        effects.extend(self.fail_lost(now, node));
        effects.extend(self.replace_committer(now, node));
        if let Some(awaited) = &mut self.awaited {
            awaited.remove(node);
            effects.extend(self.break_all(now));
        }
        effects
    }

    /// When to call [`JobCheckpoints::on_deadline`] if nothing happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let saves = self.dirs.values().flat_map(|folder| folder.saves.values()).map(|save| save.until);
        saves.chain(self.dirs.values().filter_map(JobFolder::fetch_deadline)).min()
    }

    /// Gives up steps and fetches that took too long. A manifest is waited for as long as its node lives, and
    /// ordered again: it may be written at any time, so its files must stay.
    pub fn on_deadline(&mut self, now: Moment) -> Vec<Effect<N>> {
        let (seconds, until) = (self.save_timeout_ms / 1000, now.plus(self.save_timeout_ms));
        let (mut effects, mut late) = (self.end_late_fetches(now), Vec::new());
        for (dir, folder) in &mut self.dirs {
            if folder.is_restoring() {
                // Nothing counts before it is decided what is restored.
                folder.saves.values_mut().for_each(|save| save.until = save.until.max(until));
            }
            for (step, save) in folder.saves.iter_mut().filter(|(_, save)| save.until <= now) {
                if let (Some(node), Some(manifest)) = (save.committer.clone(), save.manifest(*step)) {
                    save.until = until;
                    let order = Order::Commit { dir: dir.clone(), step: *step, manifest: Box::new(manifest) };
                    effects.push(Effect::Send { node, order });
                    continue;
                }
                let (done, of) = (save.files.len(), save.n_shards);
                let reason = if save.is_complete() {
                    "its manifest was not written, because the nodes that wrote its shards left or were lost, \
                     or their savers exited"
                        .to_owned()
                } else {
                    format!(
                        "shards on disk after {seconds} s: {done} of {of}; check the disks of the nodes whose shards are \
                         missing"
                    )
                };
                late.push((dir.clone(), *step, reason));
            }
        }
        for (dir, step, reason) in late {
            effects.extend(self.fail(now, &dir, step, &reason));
        }
        effects
    }

    /// A node may have missed what it was told: its link, or the job master, was away. What the node may have to say
    /// itself it says by `report`.
    #[must_use]
    pub fn repeat(&self, node: &N) -> Vec<Effect<N>> {
        let mut orders = Vec::new();
        for (dir, folder) in &self.dirs {
            let dir = || dir.clone();
            orders.extend(folder.committed_by_this_run().map(|step| Order::Committed { dir: dir(), step }));
            for (step, save) in &folder.saves {
                let step = *step;
                let is_missing = |(shard, of): (&u32, &N)| of == node && !save.files.contains_key(shard);
                if save.ordered.iter().any(is_missing) {
                    orders.push(persist(folder, &dir(), step, node, save));
                }
                if let Some(manifest) = save.manifest(step).filter(|_| save.committer.as_ref() == Some(node))
                {
                    orders.push(Order::Commit { dir: dir(), step, manifest: Box::new(manifest) });
                }
            }
        }
        orders.extend(self.repeat_fetches(node));
        for point in &self.points {
            let (Some(step), Some(folder)) = (point.pending, self.dirs.get(&point.dir)) else { continue };
            orders.extend(folder.failed.get(step).map(|failure| failure.order(&point.dir, step)));
        }
        orders.into_iter().map(|order| Effect::Send { node: node.clone(), order }).collect()
    }

    /// The newest step of a directory that counts, as far as the job knows.
    #[must_use]
    pub fn committed(&self, dir: &Dir) -> Option<u64> {
        self.dirs.get(dir).and_then(|folder| folder.committed)
    }

    /// Steps that are on their way to disk: directory, step, shards that are there, shards in all.
    pub fn under_way(&self) -> impl Iterator<Item = (&Dir, u64, u32, u32)> {
        self.all_saves().map(|(dir, step, save)| {
            (dir, step, u32::try_from(save.files.len()).unwrap_or(u32::MAX), save.n_shards)
        })
    }

    fn all_saves(&self) -> impl Iterator<Item = (&Dir, u64, &Save<N>)> {
        self.dirs
            .iter()
            .flat_map(|(dir, folder)| folder.saves.iter().map(move |(step, save)| (dir, *step, save)))
    }

    fn forget_state(&mut self, node: &N) {
        self.dirs.values_mut().for_each(|folder| folder.holders.remove(node));
    }

    /// Whether one more directory can be known. One without shards and saves is forgotten first.
    fn has_room(&mut self) -> bool {
        if self.dirs.len() >= MAX_DIRS {
            self.dirs.retain(|_, folder| !folder.is_idle());
        }
        self.dirs.len() < MAX_DIRS
    }

    fn to_all(&self, others: impl IntoIterator<Item = N>, order: &Order) -> Vec<Effect<N>> {
        let mut nodes: BTreeSet<N> = self.members.iter().map(|member| member.node.clone()).collect();
        nodes.extend(others);
        nodes.into_iter().map(|node| Effect::Send { node, order: order.clone() }).collect()
    }
}

/// The order to a node to write its shards of a step.
fn persist<N: Ord + Clone>(folder: &JobFolder<N>, dir: &Dir, step: u64, node: &N, save: &Save<N>) -> Order {
    let is_replica = |shard: &u32| folder.holders.state(node, *shard).is_some_and(|state| state.is_replica);
    let own = save.ordered.iter().filter(|(_, of)| *of == node).map(|(shard, _)| *shard);
    Order::Persist { dir: dir.clone(), step, replicas: own.filter(is_replica).collect() }
}

/// A state whose numbers fit together, with as many steps as there can be.
fn bounded(mut state: ShardState) -> Option<ShardState> {
    let counts = 1..=MAX_WORLD;
    let holds = counts.contains(&state.n_shards)
        && counts.contains(&state.world)
        && state.shard < state.n_shards
        && state.rank < state.world
        && state.endpoint.as_ref().is_none_or(|it| it.ticket.len() <= MAX_TEXT);
    for steps in [&mut state.steps, &mut state.wishes] {
        steps.retain(|step| *step <= crate::message::MAX_STEP);
        steps.sort_unstable();
        steps.dedup();
        let excess = steps.len().saturating_sub(MAX_STEPS);
        steps.drain(..excess);
    }
    holds.then_some(state)
}
