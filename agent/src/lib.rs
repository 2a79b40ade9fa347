//! The node's agent.

pub mod config;
pub mod logs;
