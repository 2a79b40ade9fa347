//! The decisions of the job and of a node. This crate has no IO, no clock, no environment and no randomness: the same
//! events give the same effects, in the same order, on every run. Its `clippy.toml` enforces it.
//!
//! The state machines of a node and of the job have one form; smaller ones are parts of them and have methods of their own:
//!
//! ```text
//! machine.deadline()            -> Option<Moment>  // when to call handle(now, Deadline) if nothing happens first
//! machine.handle(now, event)    -> Vec<Effect>     // in the order in which the shell must carry them out
//! ```
//!
//! Read first: [`worker_group`], the node's state machine ("what happens when a worker dies" is `on_worker_exited`
//! there), then [`job`], the master's.

pub mod check_order;
pub mod check_terms;
mod checkpoint_watch;
pub mod checkpoints;
pub mod contacts;
pub mod error_chain;
pub mod failure;
pub mod fence;
pub mod hang;
pub mod ids;
pub mod job;
pub mod job_master;
pub mod job_status;
pub mod last_lines;
pub mod liveness;
pub mod missing;
pub mod node;
pub mod notice;
pub mod pending;
pub mod progress;
mod progress_watch;
pub mod push;
pub mod restart;
pub mod root_cause;
pub mod signal_name;
mod start_watch;
pub mod stop_sequence;
pub mod taint_key;
pub mod taint_report;
pub mod topology;
pub mod verdict;
pub mod warm;
pub mod worker_env;
pub mod worker_group;
pub mod world;

pub use diagnosis::Moment;
pub use error_chain::chain;
pub use ids::{Attempt, LocalRank, NodeId, NodeRank, Rank, Round, RunId};
