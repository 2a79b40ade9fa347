//! The machine as a dry run sees it: nothing is locked, and no id is made.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use crate::{
    environment::Environment,
    gpu_choice::locks,
    host::{GpuLock, Host, may_make},
};

/// A machine on which nothing is changed.
pub(crate) struct DryHost<'a>(pub(crate) &'a dyn Host);

impl Host for DryHost<'_> {
    fn allowed_cpus(&self) -> BTreeSet<usize> {
        self.0.allowed_cpus()
    }

    fn root(&self) -> &Path {
        self.0.root()
    }

    fn own_dir(&self) -> Option<PathBuf> {
        self.0.own_dir()
    }

    fn own_path(&self) -> Option<PathBuf> {
        self.0.own_path()
    }

    fn is_this_program(&self, path: &Path) -> bool {
        self.0.is_this_program(path)
    }

    fn is_program(&self, path: &Path) -> bool {
        self.0.is_program(path)
    }

    fn may(&self, path: &Path, executes: bool) -> io::Result<()> {
        self.0.may(path, executes)
    }

    fn is_file(&self, path: &Path) -> bool {
        self.0.is_file(path)
    }

    fn takes_files(&self, path: &Path) -> bool {
        self.0.takes_files(path)
    }

    /// By the permissions alone: no file is made to try.
    fn may_replace(&self, path: &Path) -> io::Result<()> {
        may_make(path)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        self.0.read(path)
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn memory_kib(&self) -> Option<u64> {
        self.0.memory_kib()
    }

    fn fresh_id(&self) -> String {
        "<made for each run>".to_owned()
    }

    /// Asks drivers and tools as a run does: the choice follows from what they report.
    fn accelerators(&self, path: &OsStr) -> diagnosis::gpus::Inventory {
        self.0.accelerators(path)
    }

    /// Whether another launcher holds the lock; it is not held.
    fn lock_gpu(&self, env: Environment<'_>, id: &str) -> io::Result<Option<GpuLock>> {
        Ok(locks::is_free(env, id)?.then(GpuLock::unheld))
    }

    fn lock_gpu_choice(&self, _env: Environment<'_>) -> Option<GpuLock> {
        None
    }
}
