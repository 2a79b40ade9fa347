//! The limit of open files, and how long a write takes to be durable.

use std::{io::Write as _, time::Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    Outcome,
    figures::{Figures, Short},
};

/// Descriptors of a process that are not connections of agents. The master keeps as many free.
const OTHERS: u64 = 128;

/// The size of a journal's commit.
const COMMIT: usize = 4096;

/// The number of files that this process, and each that it starts, may have open.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFiles(u64);

/// Raises the limit to the hard limit.
pub(super) fn raise() -> Outcome<OpenFiles> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(OpenFiles(hard))
}

impl OpenFiles {
    /// Returns why so many agents are too many.
    pub(super) fn missing_for(self, agents: usize) -> Option<String> {
        let needed = agents as u64 + OTHERS;
        let limit = self.0;
        (needed > limit).then(|| {
            format!(
                "they take {needed} open files here and as many in the master, and `ulimit -Hn` is {limit}"
            )
        })
    }
}

/// Returns a line about the disk of `--state-dir`.
pub(super) fn about() -> Outcome<String> {
    let mut file = tempfile::tempfile()?;
    let mut took = Figures::default();
    for _ in 0..20 {
        let began = Instant::now();
        file.write_all(&[1; COMMIT])?;
        file.sync_data()?;
        took.add(began.elapsed().as_secs_f64() * 1e3);
    }
    let folder = std::env::temp_dir();
    Ok(format!(
        "{COMMIT} bytes in {} are durable after {} ms (median; longest {})",
        folder.display(),
        Short(took.median()),
        Short(took.at(1.0))
    ))
}
