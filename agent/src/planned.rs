//! What is known of workers and their logs before anything is started, for `--dry-run`.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf};

use rules::{
    Attempt, LocalRank, NodeRank, Round,
    worker_env::{WorkerEnvError, worker_env},
    world::Assignment,
};

use crate::{
    config::{AgentConfig, LogDir},
    logs::planned_folder,
    workers::{env_settings, worker_argument},
};

/// In place of a value that the nodes agree on.
const AT_RENDEZVOUS: &str = "<decided at the rendezvous>";

/// In place of a value that each run makes anew.
const FRESH: &str = "<made for each run>";

/// The variables whose values the nodes agree on, when there may be several.
const OF_THE_ROUND: [&str; 6] =
    ["RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE", "DLROVER_ROUND"];

/// A worker that is not started.
#[derive(Debug)]
pub struct PlannedWorker {
    pub argv: Vec<OsString>,
    /// In addition to the launcher's environment.
    pub env: Vec<(&'static str, String)>,
}

/// `MASTER_ADDR` and `MASTER_PORT`, as far as they are known.
#[derive(Debug, Clone, Default)]
pub struct PlannedStore {
    pub address: Option<String>,
    pub port: Option<u16>,
}

/// Returns a worker of the first attempt.
///
/// # Errors
/// When it has no device for its virtual local rank.
pub fn planned_worker(
    config: &AgentConfig,
    store: &PlannedStore,
    local_rank: LocalRank,
) -> Result<PlannedWorker, WorkerEnvError> {
    let nodes = config.terms.max_nodes;
    let workers = config.local_world_size;
    let assignment = Assignment {
        round: Round(0),
        node_rank: NodeRank(0),
        nodes,
        local_world_size: workers,
        role: config.role.clone(),
        first_rank: 0,
        world_size: workers,
        first_role_rank: 0,
        role_world_size: workers,
        master_addr: store.address.clone().unwrap_or_else(|| AT_RENDEZVOUS.to_owned()),
        master_port: store.port.unwrap_or_default(),
        restore_from_disk: false,
        fence: None,
        restore: Vec::new(),
    };
    let settings = env_settings(config, FRESH.to_owned(), Some(FRESH.to_owned()));
    let folder = planned_run_dir(&config.logs.dir, &config.run_id.0);
    let error_file = folder.map(|folder| folder.join(format!("attempt_0/{local_rank}/error.json")));
    let error_file = error_file.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let mut env = worker_env(&settings, &assignment, local_rank, Attempt(0), &error_file)?;
    for (name, value) in &mut env {
        let is_open = match *name {
            "MASTER_PORT" => store.port.is_none(),
            "GROUP_WORLD_SIZE" => config.terms.min_nodes != nodes,
            name => nodes > 1 && OF_THE_ROUND.contains(&name),
        };
        if is_open {
            AT_RENDEZVOUS.clone_into(value);
        }
    }
    if config.terms.hang.is_some() {
        env.push(("DLROVER_PROGRESS_FILE", FRESH.to_owned()));
    }
    let argv = config.command.argv.iter();
    let argv = argv.map(|word| OsString::from_vec(worker_argument(word.as_encoded_bytes(), local_rank)));
    Ok(PlannedWorker { argv: argv.collect(), env })
}

/// The directory of a run's logs; random parts of its name are `<random>`. `None`: no files are written.
#[must_use]
pub fn planned_run_dir(dir: &LogDir, run_id: &str) -> Option<PathBuf> {
    planned_folder(dir, run_id)
}
