//! What the saver answers a client.

use serde::{Deserialize, Serialize};

use super::{
    limits::cut,
    request::RequestError,
    shard::{Format, ShardId},
};

/// What went wrong, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A value that cannot be: not JSON, out of its range, or at odds with what the saver knows.
    Invalid,
    /// The line is longer than a line may be. The connection is closed.
    TooLong,
    /// The client speaks another version.
    Version,
    /// The round of the client is not known yet, or what must be known first did not come in time. Try again.
    NotReady,
    /// The client belongs to workers of an earlier round.
    StaleRound,
    /// The request needs `hello` first, or `alloc`, or a role of `writer`.
    OutOfOrder,
    /// Another process is the writer of this shard.
    WriterExists,
    /// The slots do not fit into the allowance.
    NoMemory,
    /// No slot can be taken while a step is written to disk, or while another process reads from it.
    Busy,
    /// The slot is not one that this client writes or reads.
    NotYours,
    /// More connections, shards or requests than the saver takes.
    TooMany,
    /// A checkpoint is there, but none loads.
    NothingLoads,
    /// The saver ends.
    Closing,
}

/// A request that is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: ErrorCode,
    /// What happened, why, and what to do.
    pub text: String,
    /// With `no_memory`: bytes that are needed, and that there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub have: Option<u64>,
    /// With `busy`: the step that is written to disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisting: Option<u64>,
}

impl Refusal {
    /// A refusal without numbers.
    #[must_use]
    pub fn new(code: ErrorCode, text: impl AsRef<str>) -> Self {
        Self { code, text: cut(text.as_ref()), need: None, have: None, persisting: None }
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// A slot that a client may map. Its file descriptor comes with the first byte of the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOffer {
    pub id: u64,
    pub bytes: u64,
}

/// Where a state is loaded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Memory,
    /// The memory of this node, which was fetched from that of another one.
    Replica,
    Disk,
    None,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitState {
    OnDisk,
    Superseded,
    Failed,
    Timeout,
}

/// A slot, for people and tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    pub id: u64,
    pub bytes: u64,
    /// `empty`, `writing`, `examined`, `fetching`, `whole`, `queued` or `persisting`.
    pub state: String,
    pub step: Option<u64>,
    /// Processes that read from it.
    pub readers: u32,
}

/// A shard, for people and tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    #[serde(flatten)]
    pub id: ShardId,
    pub n_shards: u32,
    pub replicated: bool,
    pub format: Format,
    pub slots: Vec<SlotStatus>,
    /// The newest step that counts on disk.
    pub disk_step: Option<u64>,
    /// Why the last write to disk failed, until one succeeds.
    pub error: Option<String>,
}

/// What the saver holds and does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Status {
    pub round: Option<u32>,
    /// Bytes that all slots may have together, and that they have.
    pub allowance: u64,
    pub used: u64,
    pub shards: Vec<ShardStatus>,
    /// Writes to disk that run, and that wait.
    pub persisting: u32,
    pub queued: u32,
    /// Of the last write to disk that ended well: bytes a second.
    pub bytes_per_second: Option<u64>,
}

/// A reply. One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reply {
    Welcome {
        v: u32,
        /// Of this saver; a writer puts it into the headers of its slots.
        epoch: u64,
        /// Slots that the shard has: 0 before `alloc`.
        slots: u32,
        /// What `load` would take from memory.
        memory_step: Option<u64>,
        /// The newest step on disk, as far as it is known.
        disk_step: Option<u64>,
    },
    Allocated {
        slots: Vec<SlotOffer>,
    },
    Begun {
        slot: u64,
        /// Steps that were to go to disk, and will not: this save takes their slot, and their wish.
        superseded: Vec<u64>,
        /// This process still reads from the slot by `load`: what it needs of it must be copied before the first write.
        pinned: bool,
    },
    Done {
        /// A step is to go to disk. Only after `commit`.
        queued: bool,
    },
    Loaded {
        source: Source,
        step: Option<u64>,
        /// With `memory`, whose file descriptor comes with the line: the slot and its size.
        slot: Option<u64>,
        bytes: Option<u64>,
        /// With `disk`: the file, or the directory.
        path: Option<String>,
        /// Why it is this source and not a better one.
        reason: String,
        /// The step that the job has named for all ranks, if it is not this one because of something that other nodes need
        /// not have met: they may load it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        named: Option<u64>,
    },
    Waited {
        state: WaitState,
        /// The step that was waited for; `None`: none was asked for.
        step: Option<u64>,
        error: Option<String>,
    },
    Status(Status),
    Error(Refusal),
}

impl Reply {
    /// The line of this reply, with its line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        super::agent::line(self)
    }
}
