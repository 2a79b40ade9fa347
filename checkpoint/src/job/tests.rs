//! Reports in, whole lists of orders out.

mod hostile;
mod replicas;
mod rounds;
mod saving;

use super::*;
use crate::{
    manifest::Manifest,
    message::{Format, RestoreSource, ShardFile},
};

type Job = JobCheckpoints<&'static str>;

const TIMEOUT: u64 = 600_000;

fn dir() -> Dir {
    Dir::try_from("/ckpt").unwrap()
}

fn now(seconds: u64) -> Moment {
    Moment(seconds * 1000)
}

/// Nodes of two ranks each, in this order.
fn members(nodes: &[&'static str]) -> Vec<Member<&'static str>> {
    let member = |(index, node): (usize, &&'static str)| Member {
        node: *node,
        first_rank: u32::try_from(index).unwrap() * 2,
        local_world_size: 2,
        address: format!("host-{node}"),
        is_void: false,
    };
    nodes.iter().enumerate().map(member).collect()
}

/// A job whose first round runs.
fn job(nodes: &[&'static str]) -> Job {
    let mut job = Job::new(TIMEOUT, true);
    let world = u32::try_from(nodes.len()).unwrap() * 2;
    assert_eq!(job.begin_round(now(0), 0, world, members(nodes)), (vec![], vec![]));
    job
}

/// Of shard and rank `rank` of `world`.
fn shard(rank: u32, world: u32, steps: &[u64], wishes: &[u64]) -> ShardState {
    ShardState {
        dir: dir(),
        shard: rank,
        n_shards: world,
        replicated: false,
        world,
        rank,
        steps: steps.to_vec(),
        wishes: wishes.to_vec(),
        disk_step: None,
        replicas: 0,
        is_replica: false,
        layout_id: 7,
        bytes: 1000,
        endpoint: None,
        round: None,
        awaits_fetches: false,
    }
}

/// A copy of the only shard, by the first rank of a node.
fn copy(rank: u32, steps: &[u64], wishes: &[u64]) -> ShardState {
    ShardState { shard: 0, n_shards: 1, replicated: true, world: 4, rank, ..shard(rank, 4, steps, wishes) }
}

/// The states of the two shards of a node.
fn pair(first: u32, world: u32, steps: &[u64], wishes: &[u64]) -> Vec<ShardState> {
    (first..first + 2).map(|rank| shard(rank, world, steps, wishes)).collect()
}

fn file(step: u64, shard: u32, n_shards: u32) -> ShardFile {
    ShardFile {
        shard,
        rank: shard,
        n_shards,
        world: n_shards,
        replicated: n_shards == 1,
        format: Format::Dcp,
        file: format!("{step}/__{shard}_0.distcp"),
        bytes: 10,
        chunk_bytes: 64 << 20,
        crc32: vec![shard],
        also: Vec::new(),
    }
}

fn manifest(step: u64, n_shards: u32) -> Manifest {
    Manifest {
        version: 1,
        step,
        world: n_shards,
        n_shards,
        replicated: n_shards == 1,
        format: Format::Dcp,
        time: None,
        saved_in: Some(0),
        shards: (0..n_shards).map(|shard| file(step, shard, n_shards)).collect(),
    }
}

fn send(node: &'static str, order: Order) -> Effect<&'static str> {
    Effect::Send { node, order }
}

fn to_all(nodes: &[&'static str], order: &Order) -> Vec<Effect<&'static str>> {
    nodes.iter().map(|node| send(node, order.clone())).collect()
}

fn persist(step: u64) -> Order {
    Order::Persist { dir: dir(), step, replicas: Vec::new() }
}

fn commit(step: u64, n_shards: u32) -> Order {
    commit_of(0, step, n_shards)
}

/// Of a step that was saved in a round.
fn commit_of(saved_in: u32, step: u64, n_shards: u32) -> Order {
    let manifest = Manifest { saved_in: Some(saved_in), ..manifest(step, n_shards) };
    Order::Commit { dir: dir(), step, manifest: Box::new(manifest) }
}

fn committed(step: u64) -> Order {
    Order::Committed { dir: dir(), step }
}

fn fail(step: u64, reason: &str) -> Order {
    Order::Fail { dir: dir(), step, saved_in: 0, given_up: 1, reason: reason.to_owned() }
}

fn note_committed(step: u64, shards: u32) -> Effect<&'static str> {
    Effect::Note(Note::Committed { dir: dir(), step, shards })
}

fn note_failed(step: u64, reason: &str) -> Effect<&'static str> {
    Effect::Note(Note::Failed { dir: dir(), step, reason: reason.to_owned() })
}

fn note_saved(step: u64) -> Effect<&'static str> {
    Effect::Note(Note::SavedAtBreakpoint { dir: dir(), step })
}

fn memory(step: u64) -> RestorePoint {
    RestorePoint {
        dir: dir(),
        step,
        source: RestoreSource::Memory,
        pending: None,
        given_up: 0,
        fetched: None,
    }
}

fn disk(step: u64, pending: Option<u64>) -> RestorePoint {
    RestorePoint { dir: dir(), step, source: RestoreSource::Disk, pending, given_up: 0, fetched: None }
}

impl Job {
    fn persisted(
        &mut self,
        node: &'static str,
        step: u64,
        shard: u32,
        n_shards: u32,
    ) -> Vec<Effect<&'static str>> {
        self.on_persisted(now(5), &node, &dir(), step, (0, 0), file(step, shard, n_shards))
    }

    /// The only shard of a step is on disk, and counts.
    fn complete(&mut self, node: &'static str, step: u64) {
        assert_eq!(self.persisted(node, step, 0, 1), [send(node, commit(step, 1))]);
        assert_eq!(self.on_committed(now(6), &node, &dir(), step)[0], note_committed(step, 1));
    }

    /// What the node has, which knows what the round restores.
    fn says(&mut self, node: &'static str, mut shards: Vec<ShardState>) -> Vec<Effect<&'static str>> {
        shards.iter_mut().for_each(|shard| shard.round = Some(self.round));
        self.on_state(now(4), &node, shards)
    }
}
