//! Lines between the agent and the saver: on standard input and output of the saver.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    dir::Dir,
    limits::{MAX_AGENT_LINE, cut},
    shard::{Fetch, RestorePoint, ShardFile, ShardId, ShardState},
};
use crate::manifest::Manifest;

/// Why a line between agent and saver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("the line has {bytes} bytes (maximum: {MAX_AGENT_LINE})")]
    TooLong { bytes: usize },
    #[error("the line cannot be read: {}", cut(&.0.to_string()))]
    Json(#[source] serde_json::Error),
}

/// What the agent tells the saver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToSaver {
    /// Workers of this round are about to start. Comes before the first of them; all of an earlier round are dead.
    Round {
        round: u32,
        world: u32,
        /// The ranks of this node are `first_rank .. first_rank + local_world_size`.
        first_rank: u32,
        local_world_size: u32,
        restore: Vec<RestorePoint>,
        /// Shards that are not replicated belong to another world: nothing of them is restored from memory.
        memory_is_void: bool,
    },
    /// All workers of the round are dead. Answered by `state`.
    WorkersGone { round: u32 },
    /// All shards of the step are on disk: write its manifest, then the tracker. Answered by `committed` or `failed`.
    Commit { dir: Dir, step: u64, manifest: Box<Manifest> },
    /// The step counts: its manifest and the tracker are written, here or on another node.
    Committed { dir: Dir, step: u64 },
    /// Write the step to disk: all shards of it that ranks of this node have saved, and these `replicas`. Answered by
    /// `persisted` or `failed`, for each shard.
    Persist {
        dir: Dir,
        step: u64,
        #[serde(default)]
        replicas: Vec<u32>,
    },
    /// The step will not be complete on disk, unless it was saved after round `saved_in`: then that is another step.
    Fail {
        dir: Dir,
        step: u64,
        #[serde(default)]
        saved_in: Option<u32>,
        /// How often it has been given up by now: `persisted` of a later try says so too.
        #[serde(default)]
        given_up: u32,
        reason: String,
    },
    /// Fetch a shard of the step from the memory of another node, in this round. Answered by `state`, or `fetch_failed`.
    Fetch { round: u32, dir: Dir, step: u64, fetch: Box<Fetch> },
    /// All nodes have in memory what they were to fetch of the step that the round restores.
    Fetched { round: u32, dir: Dir, step: u64 },
    /// Not all of them can have it: the round restores the step before it.
    NotFetched { round: u32, dir: Dir, step: u64, reason: String },
    /// Say again what the job may have missed: `state`, and each `persisted` that was not followed by `committed` or
    /// `fail`.
    Report {},
    /// End after the writes that are to be done, or after so many milliseconds. Answered by `finished`.
    Finish {
        grace_ms: u64,
        /// The newest whole step goes to disk too.
        also_memory: bool,
    },
}

/// How far a write to disk is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    #[serde(flatten)]
    pub id: ShardId,
    pub step: u64,
    pub bytes: u64,
    pub of: u64,
}

/// What the saver tells the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromSaver {
    /// What this node has in memory: after `workers_gone` and `report`, and, of shards that wait for the job's word,
    /// after each save. `shards` is complete.
    State {
        round: Option<u32>,
        shards: Vec<ShardState>,
    },
    /// A shard of a step is on disk. It was saved in round `saved_in`: shards of different rounds are not one step. Since
    /// then the job has given the step up `given_up` times.
    Persisted {
        dir: Dir,
        step: u64,
        saved_in: u32,
        #[serde(default)]
        given_up: u32,
        shard: Box<ShardFile>,
    },
    /// Manifest and tracker of the step are written.
    Committed {
        dir: Dir,
        step: u64,
    },
    /// A worker of this round has written the step by itself, with manifest and tracker: no saver had a part in it.
    WrittenAlone {
        dir: Dir,
        step: u64,
        round: u32,
    },
    /// This node cannot do its part of the step: write the shard (`Some`), or the manifest.
    Failed {
        dir: Dir,
        step: u64,
        shard: Option<u32>,
        saved_in: Option<u32>,
        reason: String,
    },
    /// The shard of a step cannot be fetched.
    FetchFailed {
        dir: Dir,
        step: u64,
        shard: u32,
        reason: String,
    },
    Progress(Progress),
    /// `level`: `info`, `warn` or `error`.
    Log {
        level: Level,
        text: String,
    },
    /// Nothing is left to do; the saver exits.
    Finished {},
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    Warn,
    Error,
}

impl ToSaver {
    /// Reads a line, without its line feed.
    ///
    /// # Errors
    /// When the line is too long or no message of this version.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        parse(line)
    }

    /// The line of this message, with its line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        line(self)
    }
}

impl FromSaver {
    /// Reads a line, without its line feed.
    ///
    /// # Errors
    /// When the line is too long or no message of this version.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        parse(line)
    }

    /// The line of this message, with its line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        line(self)
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    if line.len() > MAX_AGENT_LINE {
        return Err(LineError::TooLong { bytes: line.len() });
    }
    serde_json::from_slice(line).map_err(LineError::Json)
}

pub(super) fn line<T: Serialize>(message: &T) -> String {
    // Only maps with keys that are no text fail.
    let mut json = serde_json::to_string(message).unwrap_or_default();
    json.push('\n');
    json
}
