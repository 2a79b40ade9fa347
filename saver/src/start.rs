//! What a saver's process is told at its start, as its only argument.

use serde::{Deserialize, Serialize};

/// The argument, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The run that clients must name.
    pub(crate) run_id: String,
    /// Bytes that all slots may have together.
    pub(crate) allowance: u64,
    /// The process id of the launcher: workers are below it, and a saver ends when it is gone.
    pub(crate) launcher: i32,
    /// The descriptor of the listening socket. No fixed number: the new process has descriptors of its own while it is
    /// being started, and one of them could have that number.
    pub(crate) listener: i32,
}
