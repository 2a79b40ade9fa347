//! Processes of this host: found, signalled, killed until none is left, reaped.
//!
//! | question | module |
//! |---|---|
//! | which processes run below one, and how to signal or kill them | [`tree`] |
//! | which child has ended | [`reap`] |
//! | which launcher a process belongs to | [`launcher_id`] |
//! | a cgroup for all workers, where the host allows one | [`cgroup`] |
//! | what a dead launcher left behind | [`sweep`] |
//! | what this launcher's guard left behind | [`kill_leftovers`] |

use std::ffi::CStr;

pub mod cgroup;
pub mod kill_leftovers;
pub mod launcher_id;
pub mod reap;
pub mod sweep;
pub mod tree;

/// The name of a guard process, by which a sweep knows that a launcher's workers are still looked after.
pub const GUARD_NAME: &CStr = c"dlrover-guard";
