//! Bounds of what the other side may say. What is beyond them is refused, so that no message makes a program hold
//! memory without bound.

/// Bytes of a line between a client and the saver at most, without the line feed.
pub const MAX_LINE: usize = 1 << 20;

/// Bytes of a line between the agent and the saver at most: a manifest of 10,000 shards has 9 MB.
pub const MAX_AGENT_LINE: usize = 64 << 20;

/// Bytes of a path at most: `PATH_MAX` of Linux.
pub const MAX_PATH: usize = 4096;

/// Bytes of a run id at most.
pub const MAX_RUN_ID: usize = 256;

/// The last step: every reader of JSON keeps numbers up to here.
pub const MAX_STEP: u64 = (1 << 53) - 1;

/// Ranks of a world, and shards of a directory, at most.
pub const MAX_WORLD: u32 = 1 << 20;

/// Bytes of a slot at most: 16 TiB.
pub const MAX_SLOT_BYTES: u64 = 1 << 44;

/// Steps that a strategy may keep, or that may lie between two kept ones, at most.
pub const MAX_KEEP: u64 = 1 << 40;

/// Replicas of a shard at most.
pub const MAX_REPLICAS: u32 = 16;

/// The longest wait of a client, in milliseconds: 30 days.
pub const MAX_WAIT_MS: u64 = 30 * 24 * 3600 * 1000;

/// Characters of a reason or of an error text at most; what is longer is cut.
pub const MAX_TEXT: usize = 2000;

/// Steps in a shard's state at most: there are no more slots.
pub const MAX_STEPS: usize = 16;

/// Files of one shard of one step besides the first at most.
pub const MAX_ALSO: usize = 16;

/// Chunks of a file at most that have a checksum each; chunks of a larger file are larger.
pub const MAX_CHUNKS: usize = 64;

/// Bytes of a chunk at least.
pub const MIN_CHUNK: u64 = 64 << 20;

/// The text, cut to [`MAX_TEXT`] characters.
#[must_use]
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}
