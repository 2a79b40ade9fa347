//! The directories of a run. The layout is torchrun's, but torchrun deletes the directory of an attempt before it
//! starts that attempt again.
//!
//! ```text
//! <log_dir>/<run_id>_<8 random>/          made once per launcher, 0700
//!     attempt_0/                          the first generation with restart count 0
//!         filtered_stdout.log             when there are filters
//!         0/{stdout.log,stderr.log,error.json}
//!     attempt_0.1/                        a further generation with the same restart count
//! ```

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use rules::{LocalRank, RunId};

use super::error::LogError;
use crate::config::LogDir;

/// The directory of this launcher's run.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Makes the directory; `None` if nothing is to be written.
    pub(crate) fn make(dir: &LogDir, run_id: &str) -> Result<Option<Self>, LogError> {
        let base = match dir {
            LogDir::Nowhere => return Ok(None),
            LogDir::Temporary(parent) => make_unique(&absolute(parent), "torchelastic_")?,
            LogDir::At(path) => {
                if path.is_file() {
                    return Err(LogError::NotADirectory { path: path.clone() });
                }
                let base = absolute(path);
                fs::create_dir_all(&base).map_err(|source| making(&base, source))?;
                base
            }
        };
        let path = make_unique(&base, &format!("{}_", file_name(run_id)))?;
        Ok(Some(Self { path }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory of one generation: `attempt_<n>`, or `attempt_<n>.<k>` with the smallest free k from 1.
    /// Nothing is ever deleted or overwritten.
    pub(crate) fn make_attempt(&self, restart_count: u32) -> Result<AttemptDir, LogError> {
        let mut name = format!("attempt_{restart_count}");
        for further in 1_u64.. {
            let path = self.path.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(AttemptDir { path }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                // The directory was deleted meanwhile, which is no reason to end a run.
                Err(e) if e.kind() == io::ErrorKind::NotFound && !self.path.exists() => {
                    fs::create_dir_all(&self.path).map_err(|source| making(&self.path, source))?;
                }
                Err(source) => return Err(making(&path, source)),
            }
            name = format!("attempt_{restart_count}.{further}");
        }
        unreachable!("a directory does not hold 2^64 names")
    }
}

/// The directory that [`RunDir::make`] would make, with `<random>` for the random part of a name; `None` if nothing
/// is to be written.
pub(crate) fn planned_folder(dir: &LogDir, run_id: &str) -> Option<PathBuf> {
    let base = match dir {
        LogDir::Nowhere => return None,
        LogDir::Temporary(parent) => absolute(parent).join("torchelastic_<random>"),
        LogDir::At(path) => absolute(path),
    };
    Some(base.join(format!("{}_<random>", file_name(run_id))))
}

/// The directory of one generation.
#[derive(Debug)]
pub(crate) struct AttemptDir {
    path: PathBuf,
}

impl AttemptDir {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `<local_rank>/`.
    pub(crate) fn make_rank(&self, local_rank: LocalRank) -> Result<PathBuf, LogError> {
        let path = self.path.join(local_rank.to_string());
        fs::create_dir(&path).map_err(|source| making(&path, source))?;
        Ok(path)
    }
}

/// Makes a directory with mode 0700, named `<prefix><8 random of a-z 0-9 _>`, as Python's `mkdtemp`.
fn make_unique(parent: &Path, prefix: &str) -> Result<PathBuf, LogError> {
    /// As Python's `tempfile.TMP_MAX`; two tries are rare.
    const TRIES: u32 = 10_000;
    const LETTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    let mut path = parent.to_owned();
    for _ in 0..TRIES {
        let random = uuid::Uuid::new_v4();
        let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
        // The last eight bytes: two of their bits are fixed, more than 40 are used.
        let name: String = random.as_bytes()[8..].iter().map(letter).collect();
        path = parent.join(format!("{prefix}{name}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(making(&path, source)),
            Ok(()) => return Ok(path),
        }
    }
    Err(making(&path, io::ErrorKind::AlreadyExists.into()))
}

fn file_name(run_id: &str) -> String {
    RunId(run_id.to_owned()).file_name()
}

/// Workers may change their working directory, so they get absolute paths.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn making(path: &Path, source: io::Error) -> LogError {
    LogError::MakeFolder { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn made(dir: &LogDir, run_id: &str) -> PathBuf {
        RunDir::make(dir, run_id).unwrap().unwrap().path().to_owned()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_run_folder_is_private_and_made_with_its_parents() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("a/b");
        let path = made(&LogDir::At(base.clone()), "job");
        assert_eq!(path.parent(), Some(base.as_path()));
        let name = path.file_name().unwrap().to_str().unwrap();
        let random = name.strip_prefix("job_").unwrap();
        assert_eq!(random.len(), 8);
        assert!(random.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        assert_eq!(mode(&path), 0o700);
        assert_ne!(made(&LogDir::At(base), "job"), path);
    }

    #[test]
    fn a_temporary_folder_holds_the_run_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = made(&LogDir::Temporary(folder.path().to_owned()), "none");
        let parent = path.parent().unwrap();
        assert!(parent.file_name().unwrap().to_str().unwrap().starts_with("torchelastic_"));
        assert_eq!(parent.parent(), Some(folder.path()));
        assert_eq!(mode(parent), 0o700);
    }

    #[test]
    fn a_file_as_log_dir_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = RunDir::make(&LogDir::At(file.path().to_owned()), "job").unwrap_err();
        assert!(matches!(error, LogError::NotADirectory { .. }));
        assert_eq!(error.to_string(), format!("log_dir: {} is a file", file.path().display()));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = file.path().join("logs");
        let error = RunDir::make(&LogDir::At(below.clone()), "job").unwrap_err();
        assert_eq!(error.to_string(), format!("cannot create the log directory {}", below.display()));
    }

    #[test]
    fn a_run_id_never_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        for run_id in ["../../etc/x", "/etc", "a/b", "..", "", "tab\there", "nul\0", &"ö".repeat(400)] {
            let path = made(&LogDir::At(folder.path().to_owned()), run_id);
            assert_eq!(path.parent(), Some(folder.path()), "{run_id}");
            assert_eq!(
                path.canonicalize().unwrap().parent(),
                Some(folder.path().canonicalize().unwrap().as_path())
            );
        }
        assert_eq!(file_name("../a b"), "_._a b");
    }

    #[test]
    fn a_further_generation_with_the_same_count_has_a_folder_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::make(&LogDir::At(folder.path().to_owned()), "job").unwrap().unwrap();
        let names: Vec<String> = [0, 0, 1, 0, 1]
            .into_iter()
            .map(|count| run.make_attempt(count).unwrap())
            .map(|dir| dir.path().file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["attempt_0", "attempt_0.1", "attempt_1", "attempt_0.2", "attempt_1.1"]);
    }
}
