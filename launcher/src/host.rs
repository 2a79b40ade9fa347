//! The machine, as far as the entry point needs it. Tests replace it.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::{AccessFlags, Pid, SysconfVar, access, sysconf},
};
use probes::GpuPlan;

pub use crate::gpu_choice::locks::GpuLock;
use crate::{environment::Environment, gpu_choice::locks};

/// Bytes of a token or certificate file. A chain of certificates has some thousands.
const LARGEST: u64 = 1 << 20;

/// Facts about the machine. Asked only when an option needs them.
pub trait Host {
    /// The CPUs that this process may run on.
    fn allowed_cpus(&self) -> BTreeSet<usize>;
    /// The directory that holds `dev`, `proc` and `sys`: `/` but in tests.
    fn root(&self) -> &Path;
    /// The directory of our own executable.
    fn own_dir(&self) -> Option<PathBuf>;
    /// Our own executable, its links resolved.
    fn own_path(&self) -> Option<PathBuf>;
    /// Whether this is our own executable, by whatever name or link.
    fn is_this_program(&self, path: &Path) -> bool;
    /// Whether this is a file that may be executed.
    fn is_program(&self, path: &Path) -> bool;
    /// Whether this user may read what is there, or execute it.
    ///
    /// # Errors
    ///
    /// The system error.
    fn may(&self, path: &Path, executes: bool) -> io::Result<()>;
    /// Whether something other than a directory is there.
    fn is_file(&self, path: &Path) -> bool;
    /// Whether this is a directory that files can be made in.
    fn takes_files(&self, path: &Path) -> bool;
    /// Whether a regular file can be made here, or replaced.
    ///
    /// # Errors
    ///
    /// Why not.
    fn may_replace(&self, path: &Path) -> io::Result<()>;
    /// The text of a small file; an endless file, or one that is not text, is an error.
    ///
    /// # Errors
    ///
    /// The system error.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// The host's name.
    fn name(&self) -> String;
    /// The memory of this machine in KiB; `None`: not known.
    fn memory_kib(&self) -> Option<u64>;
    /// A unique id.
    fn fresh_id(&self) -> String;
    /// The accelerators, as drivers and vendors' tools in the directories of `path` report them to a process of its own
    /// within 2 s.
    fn accelerators(&self, path: &OsStr) -> diagnosis::gpus::Inventory;
    /// Locks an accelerator by its id; `None` when another launcher of this user holds it.
    ///
    /// # Errors
    ///
    /// When that cannot be found out.
    fn lock_gpu(&self, env: Environment<'_>, id: &str) -> io::Result<Option<GpuLock>>;
    /// Locks the choice of accelerators against other launchers.
    fn lock_gpu_choice(&self, env: Environment<'_>) -> Option<GpuLock>;
}

/// The machine we run on.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    fn allowed_cpus(&self) -> BTreeSet<usize> {
        let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else {
            // More CPUs than the kernel's call was given room for: fall back to the count.
            return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
        };
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect()
    }

    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn own_dir(&self) -> Option<PathBuf> {
        Some(env::current_exe().ok()?.parent()?.to_owned())
    }

    fn own_path(&self) -> Option<PathBuf> {
        env::current_exe().ok()
    }

    fn is_this_program(&self, path: &Path) -> bool {
        let identity = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
        let other = identity(path);
        other.is_some() && other == identity(Path::new("/proc/self/exe"))
    }

    fn is_program(&self, path: &Path) -> bool {
        path.is_file() && access(path, AccessFlags::X_OK).is_ok()
    }

    fn may(&self, path: &Path, executes: bool) -> io::Result<()> {
        // Asked and not opened: a script may be a pipe, of which nothing must be taken.
        Ok(access(path, if executes { AccessFlags::X_OK } else { AccessFlags::R_OK })?)
    }

    fn is_file(&self, path: &Path) -> bool {
        path.exists() && !path.is_dir()
    }

    fn takes_files(&self, path: &Path) -> bool {
        path.is_dir() && access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
    }

    fn may_replace(&self, path: &Path) -> io::Result<()> {
        may_make(path)?;
        // Some file systems allow what they then refuse.
        processes::file_replacement::check_replaceable(path)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        let mut text = String::new();
        let read = File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
        if read as u64 > LARGEST { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
    }

    fn name(&self) -> String {
        processes::host_name()
    }

    fn memory_kib(&self) -> Option<u64> {
        let of = |variable| sysconf(variable).ok().flatten().and_then(|value| u64::try_from(value).ok());
        Some(of(SysconfVar::_PHYS_PAGES)?.saturating_mul(of(SysconfVar::PAGE_SIZE)? / 1024))
    }

    fn fresh_id(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    fn accelerators(&self, path: &OsStr) -> diagnosis::gpus::Inventory {
        probes::inventory_now(GpuPlan { path: path.to_owned(), ..GpuPlan::default() })
    }

    fn lock_gpu(&self, env: Environment<'_>, id: &str) -> io::Result<Option<GpuLock>> {
        locks::lock(env, id)
    }

    fn lock_gpu_choice(&self, env: Environment<'_>) -> Option<GpuLock> {
        locks::lock_choice(env)
    }
}

/// Checks that a regular file can be made at this path, or replaced, by its permissions. Nothing is made.
pub(crate) fn may_make(path: &Path) -> io::Result<()> {
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it exists and is not a regular file"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(access(folder.unwrap_or(Path::new(".")), AccessFlags::W_OK | AccessFlags::X_OK)?)
}
