//! The saver: a process of each node that keeps checkpoints in memory and writes them to disk.
//!
//! ```text
//! clients in workers --- socket: JSON lines, memfds ---> dlrover-saver <--- stdin, stdout: JSON lines --- agent
//!                                                          |
//!                                                          '--- threads that write to disk
//! ```
//!
//! It is this program under another name ([`NAME`]), in a process of its own: disks and file servers hang, and must hold
//! neither the launcher nor a worker. Every `main` calls [`run_if_saver`] first. The parent's side is
//! [`parent::SaverProcess`]. What is decided is decided by [`checkpoint::slots`].
//!
//! What is in memory lives in files without a name (memfds), which the saver holds and workers map. It ends with the
//! process.

mod child;
pub mod parent;
mod start;

use std::{ffi::OsStr, process::ExitCode};

/// The name under which the program runs as a saver.
pub const NAME: &str = "dlrover-saver";

/// Runs the saver if this process was started as one, and returns its exit code; otherwise returns `None` at once. Call
/// it first, while there is one thread.
#[must_use]
pub fn run_if_saver() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    (name == OsStr::new(NAME)).then(child::run)
}
