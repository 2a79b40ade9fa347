//! A program of the user in place of the ring (`--check-command`).
//!
//! It is run once on every node of a group. It gets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` as a worker
//! would (`LOCAL_RANK` is 0 and `LOCAL_WORLD_SIZE` 1), and one JSON document on its standard input:
//!
//! ```json
//! {"version":1,"rank":0,"world_size":2,"master_addr":"10.0.0.1","master_port":29501,"seed":77}
//! ```
//!
//! `DLROVER_CHECK=1` and `DLROVER_CHECK_SEED` are set too. It may report progress on its standard output, and its
//! last line is the result:
//!
//! ```json
//! {"progress":{"bytes":1048576,"total":67108864}}
//! {"version":1,"comm_ms":12.3,"latency_us":50,"bytes_per_second":1e9,"checksum_ok":true}
//! ```
//!
//! All keys but `version` and `comm_ms` are optional, unknown keys are ignored, and `"checksum_ok":false` is a
//! failure. So is any exit code but 0, and a missing result. Standard error is for people.

use std::{ffi::OsString, time::Duration};

use serde::{Deserialize, Serialize};

/// Of the request and the answer.
pub(crate) const VERSION: u32 = 1;

/// The shell found no program to run, or one that it cannot execute, which says nothing about the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the check command cannot be run (exit code {code} of /bin/sh): {said}")]
pub struct CannotRun {
    /// 126 or 127.
    pub code: i32,
    /// The end of its standard error.
    pub said: String,
}

/// The task of the supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CommandTask {
    pub(crate) argv: Vec<OsString>,
    pub(crate) request: Request,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) grace: Duration,
}

/// The document on the program's standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) master_addr: String,
    pub(crate) master_port: u16,
    pub(crate) seed: u64,
}
