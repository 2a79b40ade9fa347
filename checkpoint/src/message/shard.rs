//! A shard: what one rank writes of a step. These types are in lines of JSON and in the job master's journal, so they
//! have no optional fields that are left out.

use serde::{Deserialize, Serialize};

use super::dir::Dir;

/// A shard: one part of the checkpoints in one directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    pub dir: Dir,
    /// From 0 to the number of shards - 1.
    pub shard: u32,
}

/// What a client does with a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Saves it, and loads it.
    Writer,
    /// Loads it.
    Reader,
}

/// The files that a step becomes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// What `torch.save` writes: one file for each shard.
    Pt,
    /// A directory of torch's distributed checkpoints.
    Dcp,
    /// Sharded safetensors.
    Safetensors,
}

/// Where a save is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    Memory,
    Disk,
}

/// Which steps on disk are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// So many of the newest.
    Latest(u64),
    /// Those that are a multiple of it, and the newest.
    Interval(u64),
}

/// What a node has of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardState {
    pub dir: Dir,
    pub shard: u32,
    pub n_shards: u32,
    /// Every node has a copy of the shard.
    pub replicated: bool,
    /// Of the worker that wrote it.
    pub world: u32,
    pub rank: u32,
    /// The steps that are whole in memory and may be restored, ascending.
    pub steps: Vec<u64>,
    /// The steps that are on their way to disk, ascending: those of several shards wait for the job's word, since all
    /// shards must write the same step. One that may no longer be restored is not in `steps`.
    #[serde(default)]
    pub wishes: Vec<u64>,
    /// The newest step on disk, as this node knows.
    pub disk_step: Option<u64>,
    /// So many other nodes are to keep a replica.
    #[serde(default)]
    pub replicas: u32,
    /// It is a replica: no rank of this node has saved it.
    #[serde(default)]
    pub is_replica: bool,
    /// Of the newest step in memory.
    #[serde(default)]
    pub layout_id: u64,
    /// Bytes of its slot.
    #[serde(default)]
    pub bytes: u64,
    /// Where other nodes fetch it; `None`: nowhere.
    #[serde(default)]
    pub endpoint: Option<Endpoint>,
    /// The round that began last on this node; `None`: none has. The node has heard all that the job said before that
    /// round, and may not have heard what it said since.
    #[serde(default)]
    pub round: Option<u32>,
    /// It has not heard whether that round restores what nodes fetch.
    #[serde(default)]
    pub awaits_fetches: bool,
}

/// Where a saver answers the savers of other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub port: u16,
    /// Random letters, which a saver that fetches something shows: other programs reach the port too.
    pub ticket: String,
}

/// A node that has a step in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchSource {
    /// A host name or an address.
    pub address: String,
    pub port: u16,
    pub ticket: String,
}

/// A shard of a step that a node is to fetch from the memory of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    pub shard: u32,
    pub n_shards: u32,
    pub replicated: bool,
    pub layout_id: u64,
    /// Bytes of its slot.
    pub bytes: u64,
    /// Another node has its rank.
    pub is_replica: bool,
    /// How often the job has given the step up: what is reported of a write must be of a later try.
    pub given_up: u32,
    pub from: FetchSource,
}

impl ShardState {
    /// The shard.
    #[must_use]
    pub fn id(&self) -> ShardId {
        ShardId { dir: self.dir.clone(), shard: self.shard }
    }
}

/// Size and checksums of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Relative to the checkpoint directory when it is below it, else absolute.
    pub file: String,
    pub bytes: u64,
    /// Bytes of each chunk but the last; at least 64 MiB, doubled until there are at most 64 chunks.
    pub chunk_bytes: u64,
    /// CRC-32 of each chunk, in order.
    pub crc32: Vec<u32>,
}

/// A shard of a step on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFile {
    pub shard: u32,
    pub rank: u32,
    pub n_shards: u32,
    pub world: u32,
    pub replicated: bool,
    pub format: Format,
    /// Relative to the checkpoint directory when it is below it, else absolute.
    pub file: String,
    pub bytes: u64,
    pub chunk_bytes: u64,
    pub crc32: Vec<u32>,
    /// Other files of this shard, as the `.metadata` that shard 0 of a directory of torch has.
    #[serde(default)]
    pub also: Vec<FileSum>,
}

impl ShardFile {
    /// All files of the shard.
    pub fn sums(&self) -> impl Iterator<Item = FileSum> + '_ {
        let first = FileSum {
            file: self.file.clone(),
            bytes: self.bytes,
            chunk_bytes: self.chunk_bytes,
            crc32: self.crc32.clone(),
        };
        std::iter::once(first).chain(self.also.iter().cloned())
    }
}

/// Where a step is restored from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreSource {
    /// Every rank has its part of the step in memory.
    #[default]
    Memory,
    /// No rank takes it from memory, and no rank a newer one from disk.
    Disk,
}

/// What all ranks of a round restore of a directory. A directory without one is restored from disk, by its tracker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestorePoint {
    pub dir: Dir,
    pub step: u64,
    #[serde(default)]
    pub source: RestoreSource,
    /// A newer step that is being written to disk. A load waits until it is committed, and takes it from there, or has
    /// failed.
    #[serde(default)]
    pub pending: Option<u64>,
    /// How often `pending` had been given up before: only what is told of a later try is the answer.
    #[serde(default)]
    pub given_up: u32,
    /// A newer step that some nodes fetch from the memory of others. A load waits until all of them have it, and takes
    /// it from memory, or until one cannot have it. Never together with `pending`.
    #[serde(default)]
    pub fetched: Option<FetchedStep>,
}

impl RestorePoint {
    /// The newest step that a node may restore from memory. What is newer there is of a course of the training that no
    /// rank continues. With its first rank: as the round begins, before it fetches anything.
    #[must_use]
    pub fn newest_in_memory(&self, first_rank: Option<u32>) -> Option<u64> {
        match &self.fetched {
            Some(fetched) if first_rank.is_some_and(|rank| fetched.void.contains(&rank)) => None,
            Some(fetched) => Some(fetched.step),
            None => (self.source == RestoreSource::Memory).then_some(self.step),
        }
    }
}

/// A step that is in memory, but not of every node that needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedStep {
    pub step: u64,
    /// What is fetched, each with the first rank of the node that fetches it. A node is told of its own.
    pub fetches: Vec<(u32, Fetch)>,
    /// The first ranks of nodes that were not in the round before: what they have in memory is of an earlier course of
    /// the training, whose steps have the same numbers, and goes first. A node is told of its own.
    #[serde(default)]
    pub void: Vec<u32>,
}
