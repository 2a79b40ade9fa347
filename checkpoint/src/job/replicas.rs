//! Steps that nodes fetch from the memory of others: what a round restores and a node does not have, and replicas.
//!
//! A round that restores such a step has two phases: no rank loads it before all nodes have it, so that a fetch that
//! fails leads all of them to the same older step.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Effect, JobCheckpoints, Member, Note, Order, folder::JobFolder, holders::Facts};
use crate::{
    Moment,
    message::{Dir, Fetch, FetchSource, FetchedStep, MAX_REPLICAS, ShardState, cut},
};

/// Nodes that fetch a step from one node at most: each has four connections, and a saver sends to 16. For more, the disk
/// is the better place.
const MAX_READERS: usize = 4;

/// A shard that a node fetches as a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub(super) struct Replica<N> {
    node: N,
    shard: u32,
    step: u64,
    from: N,
    until: Moment,
}

/// A step that a round restores, and not all of its nodes have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub(super) struct Restoring<N: Ord> {
    step: u64,
    /// What is restored instead when a node cannot have it; `None`: what is on disk.
    memory: Option<u64>,
    missing: Vec<Missing<N>>,
    nodes: u32,
    until: Moment,
    /// It goes to disk as soon as it is decided.
    is_breakpoint: bool,
    decided: Option<Decided>,
}

/// Whether all nodes have the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Decided {
    Fetched,
    NotFetched { reason: String },
}

/// A shard that a node has yet to fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "N: Ord + Serialize + DeserializeOwned")]
pub(super) struct Missing<N: Ord> {
    node: N,
    first_rank: u32,
    shard: u32,
    from: N,
    /// Nodes that it could not be fetched from.
    tried: BTreeSet<N>,
}

/// A step that a round can restore when nodes fetch what they do not have.
#[derive(Debug)]
pub(super) struct FetchPlan<N: Ord> {
    pub(super) step: u64,
    missing: Vec<Missing<N>>,
}

impl<N: Ord> Restoring<N> {
    const fn is_open(&self) -> bool {
        self.decided.is_none()
    }
}

impl<N: Ord + Clone> JobFolder<N> {
    /// Nothing of the round that ran is under way any more.
    pub(super) fn forget_fetches(&mut self) {
        (self.restoring, self.spread, self.is_behind) = (None, None, false);
        self.replicas.clear();
    }

    /// Whether it is open which step the round restores: no step may come to count meanwhile.
    pub(super) fn is_restoring(&self) -> bool {
        self.restoring.as_ref().is_some_and(Restoring::is_open)
    }

    /// When something that is under way takes too long.
    pub(super) fn fetch_deadline(&self) -> Option<Moment> {
        let restoring = self.restoring.iter().filter(|it| it.is_open()).map(|it| it.until);
        self.replicas.iter().map(|it| it.until).chain(restoring).min()
    }

    fn holds(&self, node: &N, shard: u32, step: u64) -> bool {
        self.holders.state(node, shard).is_some_and(|state| state.steps.contains(&step))
    }
}

impl<N: Ord + Clone> JobCheckpoints<N> {
    /// The newest step that every rank of the round finds in memory, or whose node can fetch it.
    pub(super) fn fetchable(&self, dir: &Dir, world: u32) -> Option<FetchPlan<N>> {
        let folder = self.dirs.get(dir)?;
        let facts = folder.holders.facts().filter(|facts| folder.holders.agree(*facts))?;
        if self.members.len() < 2 || !facts.replicated && (facts.world != world || facts.n_shards != world) {
            return None;
        }
        let mut steps: Option<BTreeSet<u64>> = None;
        for shard in 0..facts.n_shards {
            let of_shard = self.members.iter().filter_map(|member| {
                let state = folder.holders.state(&member.node, shard)?;
                has_own(member, facts, state).then_some(state).or_else(|| self.source(member, facts, state))
            });
            let of_shard: BTreeSet<u64> = of_shard.flat_map(|state| state.steps.iter().copied()).collect();
            steps = Some(match steps {
                None => of_shard,
                Some(steps) => steps.intersection(&of_shard).copied().collect(),
            });
        }
        let step = steps?.into_iter().next_back()?;
        let mut readers: BTreeMap<N, BTreeSet<N>> = BTreeMap::new();
        let mut missing = Vec::new();
        for shard in 0..facts.n_shards {
            for member in self.needing(folder, facts, shard)? {
                let state = folder.holders.state(&member.node, shard);
                let own = state.filter(|state| has_own(member, facts, state));
                if own.is_some_and(|state| state.steps.contains(&step)) {
                    continue;
                }
                let from =
                    self.next_source(folder, facts, (shard, step), &member.node, &BTreeSet::new(), &readers)?;
                readers.entry(from.clone()).or_default().insert(member.node.clone());
                missing.push(Missing {
                    node: member.node.clone(),
                    first_rank: member.first_rank,
                    shard,
                    from,
                    tried: BTreeSet::new(),
                });
            }
        }
        Some(FetchPlan { step, missing })
    }

    /// The members whose ranks restore a shard; `None`: that is not known.
    fn needing(&self, folder: &JobFolder<N>, facts: Facts, shard: u32) -> Option<Vec<&Member<N>>> {
        if facts.replicated {
            return Some(self.members.iter().collect());
        }
        let mut ranks = folder.holders.of_shard(shard).map(|(_, state)| state.rank);
        let rank = ranks.next()?;
        if ranks.any(|other| other != rank) {
            return None;
        }
        self.members.iter().find(|member| member.has(rank)).map(|member| vec![member])
    }

    /// What a member has of a shard, if other nodes may fetch it: what its own ranks have saved or restored, and replicas.
    fn source<'a>(&self, member: &Member<N>, facts: Facts, state: &'a ShardState) -> Option<&'a ShardState> {
        let is_kept = facts.replicated || !member.is_void && (state.is_replica || member.has(state.rank));
        let is_reached = state.endpoint.is_some() && !member.address.is_empty() && state.bytes > 0;
        (is_kept && is_reached).then_some(state)
    }

    /// The member that the fewest others read a step from, for one more.
    fn next_source(
        &self,
        folder: &JobFolder<N>,
        facts: Facts,
        (shard, step): (u32, u64),
        to: &N,
        tried: &BTreeSet<N>,
        readers: &BTreeMap<N, BTreeSet<N>>,
    ) -> Option<N> {
        let can_give = |member: &&Member<N>| {
            let state = folder.holders.state(&member.node, shard);
            let state = state.and_then(|state| self.source(member, facts, state));
            state.is_some_and(|state| state.steps.contains(&step)) && !tried.contains(&member.node)
        };
        // One that it reads from already counts as free.
        let count = |member: &&Member<N>| {
            readers.get(&member.node).map_or(0, |nodes| if nodes.contains(to) { 0 } else { nodes.len() })
        };
        let able = self.members.iter().filter(can_give);
        able.filter(|member| count(member) < MAX_READERS).min_by_key(count).map(|it| it.node.clone())
    }

    /// What a node is told of a shard that it fetches.
    fn fetch(
        &self,
        folder: &JobFolder<N>,
        (shard, step): (u32, u64),
        from: &N,
        is_replica: bool,
    ) -> Option<Fetch> {
        let address = self.members.iter().find(|member| member.node == *from)?.address.clone();
        let ShardState { n_shards, replicated, layout_id, bytes, endpoint, .. } =
            folder.holders.state(from, shard)?.clone();
        let endpoint = endpoint?;
        let from = FetchSource { address, port: endpoint.port, ticket: endpoint.ticket };
        let given_up = folder.failed.get(step).map_or(0, |failure| failure.count);
        Some(Fetch { shard, n_shards, replicated, layout_id, bytes, is_replica, given_up, from })
    }

    fn fetch_order(&self, dir: &Dir, step: u64, to: &N, fetch: Option<Fetch>) -> Option<Effect<N>> {
        let (round, dir, fetch) = (self.round, dir.clone(), Box::new(fetch?));
        let order = Order::Fetch { round, dir, step, fetch };
        Some(Effect::Send { node: to.clone(), order })
    }

    /// The round restores what this plan says, once all nodes have it.
    pub(super) fn start_restoring(
        &mut self,
        now: Moment,
        dir: &Dir,
        plan: FetchPlan<N>,
        memory: Option<u64>,
        is_breakpoint: bool,
        void: Vec<u32>,
    ) -> Option<FetchedStep> {
        let FetchPlan { step, missing } = plan;
        let folder = self.dirs.get(dir)?;
        let wanted = missing
            .iter()
            .map(|it| Some((it.first_rank, self.fetch(folder, (it.shard, step), &it.from, false)?)));
        let fetches = wanted.collect::<Option<Vec<_>>>()?;
        let nodes: BTreeSet<&N> = missing.iter().map(|it| &it.node).collect();
        let nodes = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let until = now.plus(self.save_timeout_ms);
        let restoring = Restoring { step, memory, missing, nodes, until, is_breakpoint, decided: None };
        self.dirs.get_mut(dir)?.restoring = Some(restoring);
        Some(FetchedStep { step, fetches, void })
    }

    /// A node has said what it has in memory.
    pub(super) fn note_fetched(&mut self, now: Moment, node: &N) -> Vec<Effect<N>> {
        let mut complete = Vec::new();
        for (dir, folder) in &mut self.dirs {
            let JobFolder { holders, replicas, restoring, .. } = folder;
            let has = |shard: u32, step: u64| {
                holders.state(node, shard).is_some_and(|state| state.steps.contains(&step))
            };
            replicas.retain(|it| it.node != *node || !has(it.shard, it.step));
            if let Some(restoring) = restoring.as_mut().filter(|it| it.is_open()) {
                let step = restoring.step;
                restoring.missing.retain(|it| it.node != *node || !has(it.shard, step));
                if restoring.missing.is_empty() {
                    complete.push(dir.clone());
                }
            }
        }
        complete.into_iter().flat_map(|dir| self.decide(now, &dir, Decided::Fetched)).collect()
    }

    /// A node cannot fetch a shard of a step: from another node, if one has it.
    pub fn on_fetch_failed(
        &mut self,
        now: Moment,
        node: &N,
        dir: &Dir,
        step: u64,
        shard: u32,
        reason: &str,
    ) -> Vec<Effect<N>> {
        let Some(folder) = self.dirs.get_mut(dir) else { return Vec::new() };
        folder.replicas.retain(|it| (&it.node, it.shard, it.step) != (node, shard, step));
        let restoring = folder.restoring.as_mut().filter(|it| it.is_open() && it.step == step);
        let is_it = |it: &&mut Missing<N>| it.node == *node && it.shard == shard;
        let Some(missing) = restoring.and_then(|it| it.missing.iter_mut().find(is_it)) else {
            return Vec::new();
        };
        let last = missing.from.clone();
        missing.tried.insert(last);
        let tried = missing.tried.clone();
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let next = folder
            .holders
            .facts()
            .and_then(|facts| self.next_source(folder, facts, (shard, step), node, &tried, &BTreeMap::new()));
        let Some(next) = next else {
            let reason = format!("shard {shard} cannot be fetched: {reason}");
            return self.decide(now, dir, Decided::NotFetched { reason });
        };
        let order = self.fetch_order(dir, step, node, self.fetch(folder, (shard, step), &next, false));
        let restoring = self.dirs.get_mut(dir).and_then(|folder| folder.restoring.as_mut());
        if let Some(missing) = restoring.and_then(|it| it.missing.iter_mut().find(is_it)) {
            missing.from = next;
        }
        order.into_iter().collect()
    }

    /// The memory of a node was lost, with the node or its saver.
    pub(super) fn fetches_lost(&mut self, now: Moment, node: &N) -> Vec<Effect<N>> {
        let mut lost = Vec::new();
        let is_member = self.before.iter().any(|(member, _)| member == node);
        for (dir, folder) in &mut self.dirs {
            folder.replicas.retain(|it| it.node != *node);
            // The ranks of a member restore the step too, whether it has fetched anything or not.
            if is_member && folder.is_restoring() {
                lost.push(dir.clone());
            }
        }
        let reason = "a node left or was lost, or its saver exited";
        let decided = Decided::NotFetched { reason: reason.to_owned() };
        lost.into_iter().flat_map(|dir| self.decide(now, &dir, decided.clone())).collect()
    }

    /// Gives up fetches that take too long.
    pub(super) fn end_late_fetches(&mut self, now: Moment) -> Vec<Effect<N>> {
        let mut late = Vec::new();
        for (dir, folder) in &mut self.dirs {
            folder.replicas.retain(|it| it.until > now);
            if folder.restoring.as_ref().is_some_and(|it| it.is_open() && it.until <= now) {
                late.push(dir.clone());
            }
        }
        let reason = format!("it was not fetched within {} s", self.save_timeout_ms / 1000);
        let decided = Decided::NotFetched { reason };
        late.into_iter().flat_map(|dir| self.decide(now, &dir, decided.clone())).collect()
    }

    fn decide(&mut self, now: Moment, dir: &Dir, decided: Decided) -> Vec<Effect<N>> {
        let Some(folder) = self.dirs.get_mut(dir) else { return Vec::new() };
        let Some(restoring) = folder.restoring.as_mut().filter(|it| it.is_open()) else { return Vec::new() };
        restoring.decided = Some(decided.clone());
        let (step, nodes, memory) = (restoring.step, restoring.nodes, restoring.memory);
        let is_breakpoint = restoring.is_breakpoint;
        let (round, dir_of, mut effects) = (self.round, dir.clone(), Vec::new());
        match decided {
            Decided::Fetched => {
                effects.push(Effect::Note(Note::Fetched { dir: dir_of.clone(), step, nodes }));
                effects.extend(self.to_all([], &Order::Fetched { round, dir: dir_of, step }));
                if is_breakpoint {
                    effects.extend(self.save_at_breakpoint(now, dir, step));
                }
            }
            Decided::NotFetched { reason } => {
                let reason = cut(&reason);
                folder.holders.keep_up_to(memory);
                for point in self.points.iter_mut().filter(|point| point.dir == *dir) {
                    point.fetched = None;
                }
                let restored = memory.max(folder.committed_by_this_run());
                let newer = folder.saves.keys().copied().filter(|step| Some(*step) > restored);
                let newer: Vec<u64> = newer.collect();
                effects.push(Effect::Note(Note::NotFetched {
                    dir: dir_of.clone(),
                    step,
                    reason: reason.clone(),
                }));
                effects.extend(self.to_all([], &Order::NotFetched { round, dir: dir_of, step, reason }));
                let why = "training continues from an older step, which all ranks can restore";
                // Workers of this round save only now: their steps of these numbers are others.
                let saved_in = Some(round.saturating_sub(1));
                effects.extend(newer.into_iter().flat_map(|step| self.give_up(dir, step, saved_in, why)));
            }
        }
        effects.extend(self.commit_next(now, dir));
        effects.extend(self.coordinate(now, dir));
        effects
    }

    /// What a node may have missed.
    pub(super) fn repeat_fetches(&self, node: &N) -> Vec<Order> {
        let (round, mut orders) = (self.round, Vec::new());
        for (dir, folder) in &self.dirs {
            let mut order = |shard: u32, step: u64, from: &N, is_replica: bool| {
                let fetch = self.fetch(folder, (shard, step), from, is_replica).map(Box::new);
                orders.extend(fetch.map(|fetch| Order::Fetch { round, dir: dir.clone(), step, fetch }));
            };
            for it in folder.replicas.iter().filter(|it| it.node == *node) {
                order(it.shard, it.step, &it.from, true);
            }
            let Some(restoring) = &folder.restoring else { continue };
            let step = restoring.step;
            match &restoring.decided {
                None => {
                    let missing = restoring.missing.iter().filter(|it| it.node == *node);
                    missing.for_each(|it| order(it.shard, step, &it.from, false));
                }
                Some(Decided::Fetched) => orders.push(Order::Fetched { round, dir: dir.clone(), step }),
                Some(Decided::NotFetched { reason }) => {
                    let (dir, reason) = (dir.clone(), reason.clone());
                    orders.push(Order::NotFetched { round, dir, step, reason });
                }
            }
        }
        orders
    }

    /// While a round runs: the newest step that all shards have in memory is copied to the nodes after those that have it,
    /// so that what is left of a lost node is a step of all shards.
    pub(super) fn spread(&mut self, now: Moment, dir: &Dir) -> Vec<Effect<N>> {
        let until = now.plus(self.save_timeout_ms);
        let Some(folder) = self.dirs.get(dir) else { return Vec::new() };
        let count = self.members.len();
        if self.awaited.is_some() || count < 2 || folder.is_restoring() || !folder.holders.has_replicas() {
            return Vec::new();
        }
        let Some(facts) = folder.holders.facts().filter(|it| !it.replicated && it.n_shards > 1) else {
            return Vec::new();
        };
        let Some(step) = folder.holders.newest_common() else { return Vec::new() };
        if folder.spread == Some(step) && !folder.is_behind {
            return Vec::new();
        }
        let mut begun = Vec::new();
        let mut is_behind = false;
        let under_way: BTreeSet<(u32, &N)> = folder.replicas.iter().map(|it| (it.shard, &it.node)).collect();
        for shard in 0..facts.n_shards {
            // All holders of a shard name its rank, and members are in the order of their ranks.
            let rank = folder.holders.of_shard(shard).next().map(|(_, state)| state.rank);
            let owner = rank.and_then(|rank| {
                let at = self.members.partition_point(|member| member.first_rank <= rank).checked_sub(1)?;
                let member = self.members.get(at)?;
                let state = folder.holders.state(&member.node, shard)?;
                let is_own = has_own(member, facts, state) && state.steps.contains(&step);
                is_own.then_some((at, member, state.replicas.min(MAX_REPLICAS) as usize))
            });
            let Some((at, owner, replicas)) = owner else { continue };
            for next in 1..=replicas.min(count - 1) {
                let Some(to) = self.members.get((at + next) % count) else { continue };
                if folder.holds(&to.node, shard, step) {
                    continue;
                }
                if under_way.contains(&(shard, &to.node)) {
                    is_behind = true;
                    continue;
                }
                let (node, from) = (to.node.clone(), owner.node.clone());
                begun.push(Replica { node, shard, step, from, until });
            }
        }
        let orders = begun.iter().filter_map(|it| {
            self.fetch_order(dir, it.step, &it.node, self.fetch(folder, (it.shard, it.step), &it.from, true))
        });
        let orders: Vec<Effect<N>> = orders.collect();
        if let Some(folder) = self.dirs.get_mut(dir) {
            folder.replicas.extend(begun);
            (folder.spread, folder.is_behind) = (Some(step), is_behind);
        }
        orders
    }
}

/// A member has the shard because its ranks have saved or restored it, and they still are its ranks.
fn has_own<N>(member: &Member<N>, facts: Facts, state: &ShardState) -> bool {
    facts.replicated || !member.is_void && member.has(state.rank)
}
