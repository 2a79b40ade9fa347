//! How many files may be open, and how long one takes to be durable.

use std::{io::Write as _, time::Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    Outcome,
    figures::{Figures, Short},
};

/// Descriptors of a process that are not connections of agents. The master keeps as many free.
const OTHERS: u64 = 128;

/// What a journal's commit may be.
const COMMIT: usize = 4096;

/// How many files this process, and each that it starts, may have open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room(u64);

/// Raises the limit as far as it goes.
pub(super) fn raise() -> Outcome<Room> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(Room(hard))
}

impl Room {
    /// Why so many agents do not fit.
    pub(super) fn lacks(self, agents: usize) -> Option<String> {
        let needed = agents as u64 + OTHERS;
        let limit = self.0;
        (needed > limit).then(|| {
            format!(
                "they take {needed} open files here and as many in the master, and `ulimit -Hn` is {limit}"
            )
        })
    }
}

/// A line about the disk that `--state-dir` is on.
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
