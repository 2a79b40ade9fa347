//! Processes of this host: found, signalled, killed until none is left, reaped.
//!
//! | what | where |
//! |---|---|
//! | descendants of a process: list, signal, kill until gone | [`tree`] |
//! | the Python program that a shell or the like has started | [`program`] |
//! | children that exited, and how | [`reap`] |
//! | the launcher that a process belongs to | [`launcher_id`] |
//! | a cgroup for all workers, where the host allows one | [`cgroup`] |
//! | files in memory | [`memory_file`] |
//! | the memory that this cgroup may have | [`memory_limit()`] |
//! | files on disk, replaced in one step | [`file_replacement`] |
//! | leftovers of a dead launcher | [`sweep`] |
//! | leftovers of this launcher's guard | [`kill_leftovers`] |
//! | the name of the host | [`host_name()`] |
//! | blocking work on a thread of its own | [`run_blocking()`] |

use std::ffi::CStr;

pub use host_name::host_name;
pub use memory_limit::memory_limit;
pub use run_blocking::run_blocking;

pub mod cgroup;
pub mod file_replacement;
mod host_name;
pub mod kill_leftovers;
pub mod launcher_id;
pub mod memory_cgroup;
pub mod memory_file;
mod memory_limit;
pub mod program;
pub mod reap;
mod run_blocking;
pub mod sweep;
pub mod tree;

/// The name of a guard process, by which a sweep sees that a launcher is running.
pub const GUARD_NAME: &CStr = c"dlrover-guard";
