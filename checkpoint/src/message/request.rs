//! What a client asks for.

use serde::{Deserialize, Serialize};

use super::{
    VERSION,
    dir::{Dir, PathError, absolute},
    limits::{
        MAX_KEEP, MAX_LINE, MAX_REPLICAS, MAX_RUN_ID, MAX_SLOT_BYTES, MAX_STEP, MAX_WAIT_MS, MAX_WORLD, cut,
    },
    reply::ErrorCode,
    shard::{Format, Keep, Role, ShardId, Storage},
};

/// Why a line of a client cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the line has more than {MAX_LINE} bytes, the maximum; this connection is closed")]
    TooLong,
    #[error("the line is not a valid request: {}", cut(&.0.to_string()))]
    Json(#[source] serde_json::Error),
    #[error(
        "the Python package speaks protocol version {found}, this saver version {VERSION}; install the package and the \
         launcher of the same release"
    )]
    Version { found: u32 },
    #[error("{field} is {value}; expected {expected}")]
    Value { field: &'static str, value: u64, expected: String },
    #[error("run_id has {bytes} bytes (maximum: {MAX_RUN_ID})")]
    RunId { bytes: usize },
    #[error("path: {0}")]
    Path(#[from] PathError),
}

impl RequestError {
    /// The code of the reply.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::TooLong => ErrorCode::TooLong,
            Self::Version { .. } => ErrorCode::Version,
            _ => ErrorCode::Invalid,
        }
    }
}

/// The first request of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub v: u32,
    pub run_id: String,
    pub dir: Dir,
    pub rank: u32,
    pub world: u32,
    pub local_rank: u32,
    pub shard: u32,
    pub n_shards: u32,
    pub replicated: bool,
    pub role: Role,
    /// `DLROVER_ROUND`; `None`: the round that runs.
    #[serde(default)]
    pub round: Option<u32>,
    pub format: Format,
    #[serde(default)]
    pub keep: Option<Keep>,
    /// So many other nodes are to keep a replica of each step in memory.
    #[serde(default)]
    pub replicas: u32,
}

impl Hello {
    /// The shard of this connection.
    #[must_use]
    pub fn id(&self) -> ShardId {
        ShardId { dir: self.dir.clone(), shard: self.shard }
    }
}

/// Where a save is to end: the part of `commit` about disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    pub storage: Storage,
    /// Absolute; empty: the default. The default of `pt` is the file `<dir>/<step>/rank_<rank>.pt`, of the others the
    /// directory `<dir>/<step>`.
    pub path: String,
    /// This node writes the step. Of a replicated shard only one node does.
    pub writes_disk: bool,
}

/// A request of a client. Replies come in order, one for each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    Hello(Hello),
    /// Slots of at least `bytes` each for states of this layout.
    Alloc {
        bytes: u64,
        layout_id: u64,
        /// 2 or 3; absent: 3 while they fit into the allowance, else 2.
        #[serde(default)]
        slots: Option<u32>,
    },
    /// A slot to write `step` into. A write that this writer has begun and not committed is aborted by it.
    Begin {
        step: u64,
        layout_id: u64,
        /// Wait for a slot instead of `busy`, for 10 minutes at most. With 3 slots there always is one.
        #[serde(default)]
        wait: bool,
    },
    /// The slot is whole.
    Commit {
        step: u64,
        slot: u64,
        #[serde(flatten)]
        wish: Wish,
    },
    /// The slot is not whole: the copy raised.
    Abort {
        slot: u64,
    },
    /// The restore point of the round, or exactly this step.
    Load {
        step: Option<u64>,
    },
    /// The bytes of the slot are no longer used.
    #[serde(alias = "loaded")]
    LoadedDone {
        slot: u64,
    },
    /// Waits until a step is on disk; without a step, until the newest is that was asked for.
    Wait {
        step: Option<u64>,
        #[serde(rename = "timeout_s", with = "seconds")]
        timeout_ms: u64,
    },
    /// This process, or another one of this node, has written a step to disk by itself: all files, the manifest and the
    /// tracker. Also as the first request of a connection: a process that writes by itself has none, or lost it.
    WrittenAlone {
        /// [`VERSION`].
        v: u32,
        run_id: String,
        dir: Dir,
        step: u64,
        /// `DLROVER_ROUND`; `None`: the round that runs.
        #[serde(default)]
        round: Option<u32>,
    },
    Status {},
}

impl Request {
    /// Reads a line, without its line feed.
    ///
    /// # Errors
    /// When the line is longer than [`MAX_LINE`], no request, or has a value out of its range. The error names it.
    pub fn parse(line: &[u8]) -> Result<Self, RequestError> {
        if line.len() > MAX_LINE {
            return Err(RequestError::TooLong);
        }
        let request: Self = serde_json::from_slice(line).map_err(RequestError::Json)?;
        request.checked()
    }

    /// The line of this request, with its line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        super::agent::line(self)
    }

    fn checked(mut self) -> Result<Self, RequestError> {
        match &mut self {
            Self::Hello(hello) => hello.check()?,
            Self::Alloc { bytes, slots, .. } => {
                range("bytes", *bytes, 1, MAX_SLOT_BYTES)?;
                if let Some(slots) = slots {
                    range("slots", u64::from(*slots), 2, 3)?;
                }
            }
            Self::Begin { step, .. } => range("step", *step, 0, MAX_STEP)?,
            Self::Commit { step, wish, .. } => {
                range("step", *step, 0, MAX_STEP)?;
                if !wish.path.is_empty() {
                    wish.path = absolute(&wish.path)?;
                }
            }
            Self::Load { step: Some(step) } | Self::Wait { step: Some(step), .. } => {
                range("step", *step, 0, MAX_STEP)?;
            }
            Self::WrittenAlone { v, run_id, step, .. } => {
                check_program(*v, run_id)?;
                range("step", *step, 0, MAX_STEP)?;
            }
            Self::Load { step: None }
            | Self::Wait { step: None, .. }
            | Self::Abort { .. }
            | Self::LoadedDone { .. }
            | Self::Status {} => {}
        }
        Ok(self)
    }
}

impl Hello {
    fn check(&self) -> Result<(), RequestError> {
        check_program(self.v, &self.run_id)?;
        range("world", u64::from(self.world), 1, u64::from(MAX_WORLD))?;
        range("n_shards", u64::from(self.n_shards), 1, u64::from(MAX_WORLD))?;
        range("rank", u64::from(self.rank), 0, u64::from(self.world) - 1)?;
        range("local_rank", u64::from(self.local_rank), 0, u64::from(self.world) - 1)?;
        range("shard", u64::from(self.shard), 0, u64::from(self.n_shards) - 1)?;
        range("replicas", u64::from(self.replicas), 0, u64::from(MAX_REPLICAS))?;
        match self.keep {
            Some(Keep::Latest(count)) => range("keep.latest", count, 1, MAX_KEEP),
            Some(Keep::Interval(steps)) => range("keep.interval", steps, 1, MAX_KEEP),
            None => Ok(()),
        }
    }
}

fn check_program(v: u32, run_id: &str) -> Result<(), RequestError> {
    match run_id.len() {
        _ if v != VERSION => Err(RequestError::Version { found: v }),
        bytes if bytes > MAX_RUN_ID => Err(RequestError::RunId { bytes }),
        _ => Ok(()),
    }
}

fn range(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), RequestError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(RequestError::Value { field, value, expected: format!("{least} to {most}") })
}

/// Seconds on the wire, with a fraction; milliseconds here, [`MAX_WAIT_MS`] at most.
mod seconds {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[expect(clippy::cast_precision_loss, reason = "a wait of 30 days in milliseconds is exact")]
    pub(super) fn serialize<S: Serializer>(millis: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(*millis as f64 / 1000.0)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked and bounded before")]
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        if seconds.is_nan() || seconds < 0.0 {
            return Err(D::Error::custom(format!("timeout_s is {seconds}; expected 0 or more")));
        }
        Ok(((seconds * 1000.0).ceil() as u64).min(super::MAX_WAIT_MS))
    }
}
