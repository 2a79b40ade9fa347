//! The node's agent: supervises the workers of one node. A thin shell around [`rules::worker_group`].
//!
//! Read first: [`agent`], the loop. [`guard`] keeps the processes, [`logs`] their output, [`store_host`] the
//! store they meet at, [`master_link`] the word of the master.

pub mod config;
pub mod error_file;
pub mod guard;
pub mod launcher_id;
pub mod logs;
pub mod oom;
pub mod reap;
pub mod sweep;
pub mod tree;
