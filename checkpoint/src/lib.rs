//! Checkpoints that a node keeps in memory: which slot a save takes, which step counts, what files hold. This crate has
//! no IO, no clock and no `HashMap`: the same events give the same effects. docs/flash-checkpoint.md is for users.
//!
//! Read first: [`message`], what the client of a worker, the saver of a node and the agent tell each other; then
//! [`slots`], the machine of one saver; then [`job`], the side of the job, which alone knows when a step counts.

pub mod format;
pub mod header;
pub mod job;
pub mod manifest;
pub mod message;
pub mod moment;
mod recent;
pub mod retention;
pub mod slots;

pub use moment::Moment;
