//! Starts a program of the user in place of the ring (`--check-command`); its contract is in `wire::command`.

use std::{ffi::OsString, time::Duration};

use diagnosis::network_check::Probed;
use tokio::sync::mpsc;

use super::{
    handle::{ProbeHandle, Subscribers},
    process,
};
use crate::{
    ProbeProgram,
    wire::{
        Task,
        command::{CommandTask, Request, VERSION},
    },
};

/// What the supervising process needs after the command's own grace period to kill what is left.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Seeds are whole numbers that every JSON parser can represent.
const LARGEST_SEED: u64 = (1 << 53) - 1;

/// What to run, and as which member of a group.
#[derive(Debug)]
pub struct CommandPlan {
    /// The program and its arguments, without a shell.
    pub argv: Vec<OsString>,
    /// This node's member number in the group.
    pub rank: usize,
    pub world_size: usize,
    pub master_addr: String,
    /// The port that member 0's program opens.
    pub master_port: u16,
    /// The same for all members and different for each test. Its lower 53 bits count.
    pub seed: u64,
    /// Added to this process's environment; the variables above take precedence.
    pub env: Vec<(OsString, OsString)>,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Receives the lines of the program's standard error as far as there is room: without the line end, and at most
    /// 4 KiB of each.
    pub output: Option<mpsc::Sender<String>>,
    /// How the supervising process is started.
    pub program: ProbeProgram,
}

/// Starts the program under a supervising process, on a tokio runtime. `on_progress` receives [`Probed::Unfinished`]
/// at most four times a second, as far as it has room.
///
/// Never fails: an error to start is its result. When it has ended, or was cancelled, no process that it started is
/// left.
#[must_use]
pub fn start_command(plan: CommandPlan, on_progress: Option<mpsc::Sender<Probed>>) -> ProbeHandle {
    let CommandPlan { argv, rank, world_size, master_addr, master_port, seed, env, grace, output, program } =
        plan;
    let seed = seed & LARGEST_SEED;
    let request = Request { version: VERSION, rank, world_size, master_addr, master_port, seed };
    let task = Task::Command(CommandTask { argv, request, env, grace });
    let started = process::start(&program, &task, None);
    ProbeHandle::supervise(
        started,
        grace + CLEANUP_TIMEOUT,
        0,
        Subscribers { progress: on_progress, said: output, gpus: None },
    )
}
