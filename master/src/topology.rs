//! The topology file. It may lie on a file system that hangs: it is read beside the job, and the job waits for it
//! only so long.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    thread,
};

use rules::topology::{Topology, TopologyError};
use tokio::sync::mpsc;

use crate::job_loop::Command;

/// 64 Ki nodes with long names.
const MOST_BYTES: u64 = 16 << 20;

/// Enough for the buffers, which are on the heap.
const STACK: usize = 256 << 10;

/// What is wrong with a topology file.
#[derive(Debug, thiserror::Error)]
pub enum TopologyFileError {
    /// The file.
    #[error("cannot read the topology file {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It goes on and on.
    #[error("the topology file {} is larger than {MOST_BYTES} bytes", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A line.
    #[error("the topology file {} cannot be used", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, and what is wrong.
        #[source]
        source: TopologyError,
    },
}

/// Reads the file, however long that takes.
pub(crate) fn read(path: &Path) -> Result<Topology, TopologyFileError> {
    let failed = |source| TopologyFileError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(TopologyFileError::TooLarge { path: path.to_owned() });
    }
    Topology::parse(&text).map_err(|source| TopologyFileError::Line { path: path.to_owned(), source })
}

/// Reads the file for the job, one reading at a time.
#[derive(Debug)]
pub(crate) struct Reader {
    path: Option<PathBuf>,
    to: mpsc::WeakSender<Command>,
    is_reading: bool,
    is_wanted_again: bool,
}

impl Reader {
    /// The outcome goes to `to`.
    pub(crate) fn new(path: Option<PathBuf>, to: mpsc::WeakSender<Command>) -> Self {
        Self { path, to, is_reading: false, is_wanted_again: false }
    }

    /// Reads the file on a thread. One that hangs keeps its thread, and no second one is started.
    pub(crate) fn read(&mut self) {
        if self.is_reading {
            self.is_wanted_again = true;
            return;
        }
        self.is_reading = true;
        let (path, to) = (self.path.clone(), self.to.clone());
        let reading = move || {
            let topology = match path {
                None => Ok(Topology::default()),
                Some(path) => read(&path).map_err(|error| words(&error)),
            };
            if let Some(to) = to.upgrade() {
                // The job is over when nobody takes it.
                let _gone = to.blocking_send(Command::TopologyRead(topology));
            }
        };
        // Without a thread there is no answer, and the job goes on without the file when it has waited enough.
        let started = thread::Builder::new().name("topology".into()).stack_size(STACK).spawn(reading);
        self.is_reading = started.is_ok();
    }

    /// The thread is done.
    pub(crate) fn done(&mut self) {
        self.is_reading = false;
        if std::mem::take(&mut self.is_wanted_again) {
            self.read();
        }
    }
}

/// An error and what it comes from, in one sentence.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(": ");
        words.push_str(&error.to_string());
        source = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_line_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("topology");
        assert!(words(&read(&path).unwrap_err()).contains("topology: No such file"));
        std::fs::write(&path, "asw psw 10.0.0.1\nasw psw host-b\n").unwrap();
        let refused = words(&read(&path).unwrap_err());
        assert!(refused.ends_with("cannot be used: line 2: `host-b` is not an IP address"), "{refused}");
        std::fs::write(&path, "asw psw 10.0.0.1\n").unwrap();
        assert!(!read(&path).unwrap().is_empty());
    }
}
