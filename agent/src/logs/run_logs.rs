//! The logs of a launcher.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use rules::{LocalRank, Rank};

use super::{
    console::{Console, Source},
    error::LogError,
    generation_logs::GenerationLogs,
    opening::Opening,
    run_dir::RunDir,
    stream::Stream,
};
use crate::config::LogConfig;

/// The logs of a launcher: its run directory and its sources on the console.
#[derive(Debug)]
pub struct Logs {
    pub(crate) config: LogConfig,
    pub(crate) role: String,
    pub(crate) hostname: String,
    pub(crate) console: Console,
    pub(crate) run_dir: Option<RunDir>,
    pub(crate) sources: BTreeMap<(LocalRank, Stream), Arc<Source>>,
}

impl Logs {
    /// Makes the run directory. `role` is for the prefix of tee'd lines.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(config: LogConfig, run_id: &str, role: &str, console: Console) -> Result<Self, LogError> {
        let run_dir = RunDir::make(&config.dir, run_id)?;
        // As torchrun: the short name of socket.gethostname().
        let hostname = processes::host_name();
        Ok(Self { config, role: role.to_owned(), hostname, console, run_dir, sources: BTreeMap::new() })
    }

    /// Opens one generation: its directories, files and pipes, and the relay threads. Call it before the workers are
    /// started. The generation before it may still be draining.
    ///
    /// # Errors
    /// When a directory, a file or a pipe cannot be made.
    pub fn open(
        &mut self,
        restart_count: u32,
        workers: &[(LocalRank, Rank)],
    ) -> Result<GenerationLogs, LogError> {
        let mut opening = Opening::new(self, restart_count)?;
        for (local_rank, rank) in workers {
            opening.add(*local_rank, *rank)?;
        }
        Ok(opening.finish())
    }

    /// `<log_dir>/<run_id>_<8 random>`; `None` if nothing is written.
    #[must_use]
    pub fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_ref().map(RunDir::path)
    }

    pub(crate) fn filters(&self, stream: Stream) -> &[String] {
        match stream {
            Stream::Out => &self.config.stdout_filters,
            Stream::Err => &self.config.stderr_filters,
        }
    }
}
