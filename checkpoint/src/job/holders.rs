//! Which node has which shard of a directory in memory.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::message::ShardState;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub(super) struct Holders<N: Ord> {
    shards: BTreeMap<u32, BTreeMap<N, ShardState>>,
    /// The shards of each node: thousands of nodes say anew what they have with every save.
    nodes: BTreeMap<N, BTreeSet<u32>>,
    /// How many shards are to write a step.
    wishes: BTreeMap<u64, u32>,
}

impl<N: Ord> Default for Holders<N> {
    fn default() -> Self {
        Self { shards: BTreeMap::new(), nodes: BTreeMap::new(), wishes: BTreeMap::new() }
    }
}

/// What the shards of a directory are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) n_shards: u32,
    pub(super) replicated: bool,
    pub(super) world: u32,
}

impl<N: Ord + Clone> Holders<N> {
    pub(super) fn insert(&mut self, node: &N, state: ShardState) {
        self.remove_shard(node, state.shard);
        for step in &state.wishes {
            *self.wishes.entry(*step).or_default() += 1;
        }
        self.nodes.entry(node.clone()).or_default().insert(state.shard);
        self.shards.entry(state.shard).or_default().insert(node.clone(), state);
    }

    pub(super) fn remove(&mut self, node: &N) {
        for shard in self.nodes.remove(node).unwrap_or_default() {
            self.remove_shard(node, shard);
        }
    }

    fn remove_shard(&mut self, node: &N, shard: u32) {
        let Some(holders) = self.shards.get_mut(&shard) else { return };
        let state = holders.remove(node);
        if holders.is_empty() {
            self.shards.remove(&shard);
        }
        for step in state.into_iter().flat_map(|state| state.wishes) {
            if let Some(count) = self.wishes.get_mut(&step) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.wishes.remove(&step);
                }
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&N) -> bool) {
        let gone: Vec<N> = self.nodes.keys().filter(|node| !stays(node)).cloned().collect();
        gone.iter().for_each(|node| self.remove(node));
    }

    /// Savers give up what is newer than what is restored.
    pub(super) fn keep_up_to(&mut self, last: Option<u64>) {
        for (shard, node) in self.states().map(|(shard, node, _)| (shard, node.clone())).collect::<Vec<_>>() {
            let Some(mut state) = self.state(&node, shard).cloned() else { continue };
            state.steps.retain(|step| Some(*step) <= last);
            state.wishes.retain(|step| Some(*step) <= last);
            self.insert(&node, state);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    pub(super) fn state(&self, node: &N, shard: u32) -> Option<&ShardState> {
        self.shards.get(&shard)?.get(node)
    }

    /// What nodes have of a shard.
    pub(super) fn of_shard(&self, shard: u32) -> impl Iterator<Item = (&N, &ShardState)> {
        self.shards.get(&shard).into_iter().flatten()
    }

    /// Whether a shard has replicas, as the first of them says: a job has one number for all.
    pub(super) fn has_replicas(&self) -> bool {
        let first = self.shards.values().next().into_iter().flat_map(BTreeMap::values);
        first.map(|state| state.replicas).max() > Some(0)
    }

    pub(super) fn states(&self) -> impl Iterator<Item = (u32, &N, &ShardState)> {
        let shards = self.shards.iter();
        shards.flat_map(|(shard, holders)| holders.iter().map(|(node, state)| (*shard, node, state)))
    }

    /// Steps that a shard is to write, oldest first.
    pub(super) fn wishes(&self) -> impl Iterator<Item = u64> {
        self.wishes.keys().copied()
    }

    /// Steps of several shards that nodes are to write when the job says so, with those nodes.
    pub(super) fn wishing_nodes(&self) -> BTreeMap<u64, BTreeSet<N>> {
        let mut wishes: BTreeMap<u64, BTreeSet<N>> = BTreeMap::new();
        for (_, node, state) in self.states().filter(|(_, _, state)| state.n_shards > 1) {
            for step in &state.wishes {
                wishes.entry(*step).or_default().insert(node.clone());
            }
        }
        wishes
    }

    /// Steps of several shards that a node is to write when the job says so, as it says in this round.
    pub(super) fn wishes_of(&self, node: &N, round: u32) -> BTreeSet<u64> {
        let shards = self.nodes.get(node).into_iter().flatten();
        let states = shards.filter_map(|shard| self.state(node, *shard));
        let coordinated = states.filter(|state| state.n_shards > 1 && state.round == Some(round));
        coordinated.flat_map(|state| state.wishes.iter().copied()).collect()
    }

    pub(super) fn is_wished(&self, step: u64) -> bool {
        self.wishes.contains_key(&step)
    }

    /// What the shards are; `None`: one of them is missing.
    pub(super) fn facts(&self) -> Option<Facts> {
        let first = self.shards.values().next()?.values().next()?;
        let facts = Facts { n_shards: first.n_shards, replicated: first.replicated, world: first.world };
        (self.shards.len() as u64 == u64::from(facts.n_shards)).then_some(facts)
    }

    /// Whether all nodes mean the same shards.
    pub(super) fn agree(&self, facts: Facts) -> bool {
        let agrees = |state: &ShardState| {
            (state.n_shards, state.replicated) == (facts.n_shards, facts.replicated)
                && (facts.replicated || state.world == facts.world)
        };
        self.shards.values().flat_map(BTreeMap::values).all(agrees)
    }

    /// Whether every shard has a step in memory. Most steps that are asked for lack a shard that comes early.
    pub(super) fn is_common(&self, step: u64) -> bool {
        self.shards.values().all(|holders| holders.values().any(|state| state.steps.contains(&step)))
    }

    /// Steps that may be common, newest first: those of the first shard.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = u64> {
        let first = self.shards.values().next().into_iter().flat_map(BTreeMap::values);
        let steps: BTreeSet<u64> = first.flat_map(|state| state.steps.iter().copied()).collect();
        steps.into_iter().rev()
    }

    /// The newest step that every shard has in memory, when the nodes agree on what the shards are.
    pub(super) fn newest_common(&self) -> Option<u64> {
        self.facts().filter(|facts| self.agree(*facts))?;
        self.newest_first().find(|step| self.is_common(*step))
    }

    /// For each shard the node that is to write a step: one whose rank has saved it, the lowest.
    pub(super) fn writers(&self, step: u64) -> BTreeMap<u32, N> {
        let writer = |holders: &BTreeMap<N, ShardState>| {
            let able = holders.iter().filter(|(_, state)| state.steps.contains(&step));
            able.min_by_key(|(node, state)| (state.is_replica, state.rank, *node))
                .map(|(node, _)| node.clone())
        };
        self.shards.iter().filter_map(|(shard, holders)| Some((*shard, writer(holders)?))).collect()
    }
}
