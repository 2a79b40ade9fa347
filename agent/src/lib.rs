//! The node's agent.

pub mod config;
