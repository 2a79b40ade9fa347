//! The node's agent: supervises the workers of one node. A thin shell around [`rules::worker_group`].
//!
//! Read first: [`agent`], the loop. [`guard`] keeps the processes, [`logs`] their output, [`store_host`] the
//! store they meet at, [`master_link`] the word of the master.

pub mod agent;
pub mod arrivals;
pub mod attributes;
pub mod config;
pub mod error_file;
mod evidence;
pub mod guard;
pub mod logs;
pub mod master_link;
pub mod oom;
pub mod prober;
pub mod questions;
pub mod report;
mod run_blocking;
pub mod signals;
pub mod store_host;
pub mod store_watch;
pub mod streams;
mod template;
pub mod workers;
