//! How workers tell their progress: two files in memory for each, which the launcher owns and samples.
//!
//! A worker reaches its files as `/proc/<launcher>/fd/<number>`, so that nothing is left behind, however the launcher
//! ends.
//!
//! | variable | what |
//! |---|---|
//! | `DLROVER_PROGRESS_FILE` | text: the step, and if need be a word for what the worker is busy with; [`text`] |
//! | `DLROVER_PROGRESS_COUNTER` | 8 bytes in native order: the optimizer steps that the prelude has counted |
//! | `PYTHONPATH` | has the prelude as its first entry; [`prelude`] |

mod activity;
mod numbers;
mod prelude;
mod python_path;
mod rank_files;
mod text;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::AsRawFd as _,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    process,
};

use processes::memory_file::sealed_memory_file;
use rules::LocalRank;

pub(crate) use self::{
    activity::ActivityReader,
    numbers::make_room,
    prelude::template_zip,
    python_path::{with_entry, without_entry},
};
use self::{numbers::Numbers, rank_files::RankFiles};

/// Names the file in which the prelude counts steps. A worker without the prelude has no such variable.
pub(crate) const COUNTER: &str = "DLROVER_PROGRESS_COUNTER";

/// The progress of the workers of one node.
#[derive(Debug)]
pub struct ProgressFiles {
    numbers: Numbers,
    prelude: File,
    ranks: Vec<RankFiles>,
}

/// What a worker has told until now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The worker.
    pub local_rank: LocalRank,
    /// The newest step that it wrote, else how many steps were counted, if any.
    pub step: Option<u64>,
    /// How many samples found progress since the worker was started.
    pub changes: u64,
    /// What the worker is busy with: it is not hanging while it shows progress within the grace period. 1 to 32 printable
    /// ASCII characters.
    pub busy_with: Option<String>,
}

impl ProgressFiles {
    /// Makes the files of the workers of a node.
    ///
    /// # Errors
    /// When the kernel allows no more files or no memory.
    pub fn new(local_world_size: u32) -> io::Result<Self> {
        let mut numbers = Numbers::new();
        let prelude = numbers.give(sealed_memory_file(c"dlrover-prelude", &prelude::zip(), true)?);
        let ranks = (0..local_world_size).map(|_| RankFiles::new(&mut numbers)).collect::<io::Result<_>>()?;
        Ok(Self { numbers, prelude, ranks })
    }

    /// Makes new files for a new generation of workers. Those of the old one are closed, and a late write of an old
    /// worker fails.
    ///
    /// # Errors
    /// As with [`ProgressFiles::new`]; then the old files remain.
    pub fn reset(&mut self) -> io::Result<()> {
        // Made before the old ones are closed, so that not even a process with few numbers left gets the same again.
        let ranks =
            self.ranks.iter().map(|_| RankFiles::new(&mut self.numbers)).collect::<io::Result<_>>()?;
        self.ranks = ranks;
        Ok(())
    }

    /// Returns the variables that a worker gets in addition to the launcher's environment. With `auto`, they have the
    /// prelude, and `PYTHONPATH` is that of the launcher, `inherited_pythonpath`, with one more entry.
    #[must_use]
    pub fn environment(
        &self,
        local_rank: LocalRank,
        auto: bool,
        inherited_pythonpath: Option<&OsStr>,
    ) -> Vec<(&'static str, OsString)> {
        let Some(rank) = self.ranks.get(local_rank.0 as usize) else {
            return Vec::new();
        };
        let mut environment = vec![("DLROVER_PROGRESS_FILE", path_of(&rank.text).into())];
        if auto {
            environment.push((COUNTER, path_of(&rank.counter).into()));
            let inherited = inherited_pythonpath.map(OsStr::as_bytes);
            let path = with_entry(self.prelude_entry().as_bytes(), inherited);
            environment.push(("PYTHONPATH", OsString::from_vec(path)));
        }
        environment
    }

    /// The entry of `PYTHONPATH` that workers have with `auto`.
    #[must_use]
    pub fn prelude_entry(&self) -> String {
        path_of(&self.prelude)
    }

    /// Returns what each worker has told until now, by local rank. Two or three system calls a worker, none of which
    /// waits; `/proc` is not read.
    pub fn sample(&mut self) -> Vec<Sample> {
        let ranks = (0..).map(LocalRank).zip(&mut self.ranks);
        let samples = ranks.map(|(local_rank, rank)| {
            rank.sample();
            Sample { local_rank, step: rank.step(), changes: rank.changes, busy_with: rank.busy_with.clone() }
        });
        samples.collect()
    }
}

/// By which workers reach a file of the launcher.
pub(crate) fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd())
}
