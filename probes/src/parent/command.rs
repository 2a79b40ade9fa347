//! Starts a program of the user's in place of the ring (`--check-command`); its contract is in `wire::command`.

use std::{ffi::OsString, time::Duration};

use diagnosis::network_check::Probed;
use tokio::sync::mpsc;

use super::{
    handle::{ProbeHandle, Subscribers},
    process,
};
use crate::{
    Helper,
    wire::{
        Task,
        command::{CommandTask, Request, VERSION},
    },
};

/// What the one that watches over the program needs beyond the program's own grace, to see all of it dead.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);

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
    let request = Request { version: VERSION, rank, world_size, master_addr, master_port, seed };
    let task = Task::Command(CommandTask { argv, request, env, grace });
    let started = process::start(&helper, &task, None);
    ProbeHandle::supervise(
        started,
        grace + CLEANUP_TIMEOUT,
        0,
        Subscribers { progress: on_progress, said: output, gpus: None },
    )
}
