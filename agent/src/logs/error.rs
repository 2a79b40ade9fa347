//! Errors before the workers start. Later errors of logs never end a run.

use std::{io, path::PathBuf};

use rules::LocalRank;
use thiserror::Error;

use super::stream::Stream;

/// Why logs could not be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// `--log-dir` names a file. The message is torchrun's.
    #[error("log_dir: {} is a file", path.display())]
    NotADirectory { path: PathBuf },
    /// A directory of the layout could not be made.
    #[error("cannot create the log directory {}", path.display())]
    MakeFolder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A log file could not be opened.
    #[error("cannot open the log file {}", path.display())]
    OpenFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A pipe or a thread for a worker's stream could not be made.
    #[error("cannot set up a relay for the {stream} of local rank {local_rank}")]
    StartRelay {
        local_rank: LocalRank,
        stream: Stream,
        #[source]
        source: io::Error,
    },
    /// An event descriptor for the logs of a generation could not be made.
    #[error("cannot set up the logs of the workers")]
    StartGeneration {
        #[source]
        source: io::Error,
    },
}
