//! Checkpoints in memory: what a node reports of them, what it is told, and what the user reads. What a saver decides
//! is in [`checkpoint::slots`], what the job decides in [`checkpoint::job`].

use std::{fmt, time::Duration};

use checkpoint::message::{Dir, Level, ShardFile, ShardState};
use serde::{Deserialize, Serialize};

/// Savers that may die in a round. What kills so many kills the next one too.
pub(crate) const MOST_LOSSES: u32 = 3;

/// What a node reports of its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointReport {
    /// A saver runs here: the end of the job waits for what it has to write.
    Kept,
    /// What the node has in memory, of all shards. After the `last` time it only loses some of it: its workers are gone
    /// for good.
    InMemory { shards: Vec<ShardState>, last: bool },
    /// A shard of a step is on disk; it was saved in this round, and the job has given the step up so often since.
    Persisted { dir: Dir, step: u64, saved_in: u32, given_up: u32, shard: Box<ShardFile> },
    /// The manifest and the tracker of a step are written.
    Committed { dir: Dir, step: u64 },
    /// A worker of this round has written a step to disk by itself, with its manifest and the tracker.
    WrittenAlone { dir: Dir, step: u64, round: u32 },
    /// The node cannot write this shard, or the manifest, of a step.
    Failed { dir: Dir, step: u64, shard: Option<u32>, saved_in: Option<u32>, reason: String },
    /// The node cannot fetch this shard of a step from the memory of another node.
    FetchFailed { dir: Dir, step: u64, shard: u32, reason: String },
    /// The saver has ended: nothing more will be written here.
    Closed,
}

/// How far a node is, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointProgress {
    /// The newest step in memory of each directory.
    InMemory { steps: Vec<(Dir, u64)> },
    /// A write to disk that runs.
    Writing(RunningWrite),
}

/// A write to disk that runs on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningWrite {
    pub dir: Dir,
    pub shard: u32,
    pub step: u64,
    /// Bytes that are written, and that there are.
    pub bytes: u64,
    pub of: u64,
}

/// What follows the end of a saver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextSaver {
    /// The next connection of a worker starts another one. So many have been lost in this round.
    AtNextSave { losses: u32 },
    /// None in this round, which has lost [`MOST_LOSSES`].
    NotInThisRound,
    /// Workers of this node are stopped, and started again in the next round.
    WithNextWorkers,
    /// The run is over.
    InNextRun,
    /// Workers have ended, and whether they are started again is not known yet.
    Unknown,
}

/// A message about checkpoints on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointNotice {
    /// A line of the saver.
    Saver { level: Level, text: String },
    /// The saver ended by itself, or could not be started.
    SaverEnded { reason: String, next: NextSaver },
    /// The saver did not say in time what it has in memory.
    NoState { waited: Duration },
    /// Checkpoints that are in memory only are written to disk before the launcher exits, within `limit`.
    Saving { limit: Duration },
    /// Not everything was written to disk in that time.
    Unfinished,
    /// There is no saver to carry out an order of the job master.
    NoSaver { dir: Dir, step: u64 },
}

impl fmt::Display for NextSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WITHOUT: &str = "without a saver, a save to disk blocks training and a save to memory fails";
        match self {
            Self::AtNextSave { losses } => write!(
                f,
                "workers keep running; the next save starts another saver (loss {losses} of at most {MOST_LOSSES} in a \
                 round); {WITHOUT}"
            ),
            Self::NotInThisRound => write!(
                f,
                "workers keep running; no other saver is started in this round, which has lost {MOST_LOSSES}; {WITHOUT}"
            ),
            Self::WithNextWorkers => f.write_str("another saver is started when workers start again"),
            Self::InNextRun => f.write_str("the next run loads the newest step that is complete on disk"),
            Self::Unknown => f.write_str("another saver is started if workers start again"),
        }
    }
}

impl fmt::Display for CheckpointNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Saver { text, .. } => write!(f, "checkpoints: {text}"),
            Self::SaverEnded { reason, next } => {
                write!(
                    f,
                    "checkpoints: this node has no saver ({reason}); checkpoints that it had in memory are lost; {next}"
                )
            }
            Self::NoState { waited } => write!(
                f,
                "checkpoints: the saver did not answer within {} s; workers that start again restore from the \
                 memory of other nodes, or from disk",
                waited.as_secs()
            ),
            Self::Saving { limit } => write!(
                f,
                "checkpoints: writing saved steps to disk before the launcher exits, for up to {} s (a second signal \
                 ends the wait)",
                limit.as_secs()
            ),
            Self::Unfinished => f.write_str(
                "checkpoints: not all saved steps were written to disk before the end of the run; the next run loads \
                 the newest step that is complete there",
            ),
            Self::NoSaver { dir, step } => write!(
                f,
                "checkpoints: this node cannot write the manifest of step {step} in {dir}, because it has no saver; \
                 the job master may ask another node"
            ),
        }
    }
}
