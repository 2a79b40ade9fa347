//! A program of the user's in place of the ring (`--check-command`).
//!
//! It is run once on every node of a group, knows its peers from `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
//! `MASTER_PORT`, as a worker would (`LOCAL_RANK` is 0 and `LOCAL_WORLD_SIZE` 1), and from one JSON document on its
//! standard input:
//!
//! ```json
//! {"version":1,"rank":0,"world_size":2,"master_addr":"10.0.0.1","master_port":29501,"seed":77}
//! ```
//!
//! `DLROVER_CHECK=1` and `DLROVER_CHECK_SEED` are set too. It may say how far it is, one line at a time, on its
//! standard output, and says last what it measured:
//!
//! ```json
//! {"progress":{"bytes":1048576,"total":67108864}}
//! {"version":1,"comm_ms":12.3,"latency_us":50,"bytes_per_second":1e9,"checksum_ok":true}
//! ```
//!
//! All but `version` and `comm_ms` may be left out, keys that are not known are passed over, and
//! `"checksum_ok":false` is a failure. So is any exit code but 0, and no such last line. What it says on standard
//! error is for people.

pub(super) mod answer;
mod output;
pub(super) mod supervisor;

use std::{ffi::OsString, time::Duration};

use diagnosis::network_check::Probed;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{Helper, ProbeHandle, handle::Listeners, process, wire::Task};

/// What the one that watches over the program needs beyond the program's own grace, to see all of it dead.
const CLEARING: Duration = Duration::from_secs(3);

/// So begins the reason where the shell has found no program to run, which says nothing of any node's network.
pub const CANNOT_RUN: &str = "the check command cannot be run";

/// Seeds are whole numbers that every JSON parser can hold.
const LARGEST_SEED: u64 = (1 << 53) - 1;

/// What to run, and as which member of a group.
#[derive(Debug)]
pub struct CommandPlan {
    /// The program and its arguments; no shell is asked.
    pub argv: Vec<OsString>,
    /// Which member of the group this node is.
    pub rank: usize,
    /// How many members.
    pub world_size: usize,
    /// Where member 0 is reached.
    pub master_addr: String,
    /// At which port; member 0's program opens it.
    pub master_port: u16,
    /// The same for all members; another one for each test. Its lower 53 bits count.
    pub seed: u64,
    /// Added to this process's environment, before what is listed above.
    pub env: Vec<(OsString, OsString)>,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Gets the lines of the program's standard error, as far as there is room: without the end of line, and at most
    /// 4 KiB of each.
    pub output: Option<mpsc::Sender<String>>,
    /// How the watching process is started.
    pub helper: Helper,
}

/// A plan, as it is handed over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CommandTask {
    argv: Vec<OsString>,
    request: Request,
    env: Vec<(OsString, OsString)>,
    grace: Duration,
}

/// The document on the program's standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Request {
    version: u32,
    rank: usize,
    world_size: usize,
    master_addr: String,
    master_port: u16,
    seed: u64,
}

/// Starts the program under a watching process, on a tokio runtime. `on_progress` is told [`Probed::Unfinished`] at
/// most four times a second, as far as it has room.
///
/// Never fails: what keeps it from starting is what it comes to. When it has ended, or was cancelled, nothing that it
/// started is left.
#[must_use]
pub fn start_command(plan: CommandPlan, on_progress: Option<mpsc::Sender<Probed>>) -> ProbeHandle {
    let CommandPlan { argv, rank, world_size, master_addr, master_port, seed, env, grace, output, helper } =
        plan;
    let seed = seed & LARGEST_SEED;
    let request = Request { version: answer::VERSION, rank, world_size, master_addr, master_port, seed };
    let task = Task::Command(CommandTask { argv, request, env, grace });
    let started = process::start(&helper, &task, None);
    ProbeHandle::hear(
        started,
        grace + CLEARING,
        0,
        Listeners { progress: on_progress, said: output, gpus: None },
    )
}
