//! What can go wrong before the workers start. Afterwards nothing about logs ends a run.

use std::{io, path::PathBuf};

use rules::LocalRank;
use thiserror::Error;

use super::stream::Stream;

/// Why logs could not be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// `--log-dir` names a file. torchrun: the same words.
    #[error("log_dir: {} is a file", path.display())]
    NotADirectory {
        /// As given.
        path: PathBuf,
    },
    /// A folder of the layout could not be made.
    #[error("cannot make the log folder {}", path.display())]
    MakeFolder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A log file could not be opened.
    #[error("cannot open the log file {}", path.display())]
    OpenFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No pipe and no thread could be had for a worker's stream.
    #[error("cannot set up a relay for the {stream} of worker {local_rank}")]
    StartRelay {
        /// Whose.
        local_rank: LocalRank,
        /// Which of its streams.
        stream: Stream,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No event descriptor could be had.
    #[error("cannot set up the logs of a generation")]
    StartGeneration {
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
