//! The node's agent.

pub mod config;
pub mod error_file;
pub mod guard;
pub mod launcher_id;
pub mod oom;
pub mod reap;
pub mod sweep;
pub mod tree;
