//! The topology file. Its file system may hang, so it is read on a thread, and the job waits for it with a time limit.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use processes::run_blocking;
use rules::{
    chain,
    topology::{Topology, TopologyError},
};
use tokio::sync::mpsc;

use crate::job_loop::Command;

/// 64 Ki nodes with long names.
const MAX_BYTES: u64 = 16 << 20;

/// What is wrong with a topology file.
#[derive(Debug, thiserror::Error)]
pub enum TopologyFileError {
    /// The file cannot be read.
    #[error("cannot read the topology file {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file is too large.
    #[error("the topology file {} is larger than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// Its path.
        path: PathBuf,
    },
    /// A line is invalid.
    #[error("the topology file {} cannot be used", path.display())]
    Line {
        /// Its path.
        path: PathBuf,
        /// Which line, and what is wrong.
        #[source]
        source: TopologyError,
    },
}

/// Reads the file, without a time limit.
pub(crate) fn read(path: &Path) -> Result<Topology, TopologyFileError> {
    let failed = |source| TopologyFileError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(TopologyFileError::TooLarge { path: path.to_owned() });
    }
    Topology::parse(&text).map_err(|source| TopologyFileError::Line { path: path.to_owned(), source })
}

/// Reads the file. Without room for a thread it cannot be read.
async fn read_in_thread(path: PathBuf) -> Result<Topology, TopologyFileError> {
    let name = path.clone();
    let reading = run_blocking(move || read(&path)).await;
    reading.unwrap_or_else(|source| Err(TopologyFileError::Read { path: name, source }))
}

/// Reads the file for the job, one read at a time.
#[derive(Debug)]
pub(crate) struct Reader {
    path: Option<PathBuf>,
    to: mpsc::WeakSender<Command>,
    is_reading: bool,
    must_read_again: bool,
}

impl Reader {
    /// Creates a reader that sends the result to `to`.
    pub(crate) fn new(path: Option<PathBuf>, to: mpsc::WeakSender<Command>) -> Self {
        Self { path, to, is_reading: false, must_read_again: false }
    }

    /// Reads the file on a thread. While it hangs no second thread is started.
    pub(crate) fn read(&mut self) {
        if self.is_reading {
            self.must_read_again = true;
            return;
        }
        self.is_reading = true;
        let (path, to) = (self.path.clone(), self.to.clone());
        tokio::spawn(async move {
            let topology = match path {
                None => Ok(Topology::default()),
                Some(path) => read_in_thread(path).await.map_err(|error| chain(&error)),
            };
            if let Some(to) = to.upgrade() {
                let _gone = to.send(Command::TopologyRead(topology)).await;
            }
        });
    }

    /// Notes that the thread has finished.
    pub(crate) fn done(&mut self) {
        self.is_reading = false;
        if std::mem::take(&mut self.must_read_again) {
            self.read();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_line_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("topology");
        assert!(chain(&read(&path).unwrap_err()).contains("topology: No such file"));
        std::fs::write(&path, "asw psw 10.0.0.1\nasw psw host-b\n").unwrap();
        let refused = chain(&read(&path).unwrap_err());
        assert!(refused.ends_with("cannot be used: line 2: `host-b` is not an IP address"), "{refused}");
        std::fs::write(&path, "asw psw 10.0.0.1\n").unwrap();
        assert!(!read(&path).unwrap().is_empty());
    }
}
