//! A lock for each accelerator, so that two launchers of one user on one host never choose the same.
//!
//! A lock is a file below `/tmp/dlrover-gpu-locks-<uid>`, held by the kernel as long as the launcher lives, however it
//! ends. Not `XDG_RUNTIME_DIR`: that has another value for a batch job than at a terminal, and goes with the session.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{libc, unistd::geteuid};

use crate::{environment::Environment, host::Host};

/// The variable that names another directory for the locks: containers that share one see each other's.
pub(crate) const FOLDER: &str = "DLROVER_GPU_LOCK_DIR";

/// How long to wait for another launcher that is choosing. It takes some milliseconds.
const CHOICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Locks that are held until this is dropped.
#[derive(Debug, Default)]
pub struct Locks {
    held: Vec<GpuLock>,
}

/// One that is held. Tests and dry runs hold none.
#[derive(Debug)]
pub struct GpuLock(
    #[expect(dead_code, reason = "the kernel holds the lock as long as the file is open")] Option<File>,
);

impl GpuLock {
    /// One that nothing holds, where nothing is started.
    pub(crate) const fn unheld() -> Self {
        Self(None)
    }
}

/// Why locks are not held.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Another launcher holds this one.
    HeldElsewhere { place: usize },
    /// Locking failed.
    Failed(io::Error),
}

impl Locks {
    /// All of these, or none.
    pub(crate) fn take<'a>(
        host: &dyn Host,
        env: Environment<'_>,
        wanted: impl Iterator<Item = (usize, &'a str)>,
    ) -> Result<Self, LockError> {
        let mut locks = Self::default();
        for (place, id) in wanted {
            match host.lock_gpu(env, id) {
                Ok(Some(lock)) => locks.held.push(lock),
                Ok(None) => return Err(LockError::HeldElsewhere { place }),
                Err(error) => return Err(LockError::Failed(error)),
            }
        }
        Ok(locks)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }
}

impl FromIterator<GpuLock> for Locks {
    fn from_iter<T: IntoIterator<Item = GpuLock>>(locks: T) -> Self {
        Self { held: locks.into_iter().collect() }
    }
}

/// Tries to lock one; `None` when another launcher holds it.
pub(crate) fn lock(env: Environment<'_>, id: &str) -> io::Result<Option<GpuLock>> {
    try_lock(&folder(env)?, id)
}

/// Whether no launcher holds one. Makes neither directory nor file.
pub(crate) fn is_free(env: Environment<'_>, id: &str) -> io::Result<bool> {
    let folder = folder_name(env);
    match fs::symlink_metadata(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        _ => checked(folder.clone())?,
    };
    let file = match OpenOptions::new().read(true).custom_flags(FLAGS).open(folder.join(file_name(id))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file?,
    };
    // Shared, so that two dry runs do not see each other.
    match file.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Serializes launchers, since each briefly holds more locks than it keeps. After the timeout the launcher continues
/// all the same: the locks decide.
pub(crate) fn lock_choice(env: Environment<'_>) -> Option<GpuLock> {
    let (folder, end) = (folder(env).ok()?, Instant::now() + CHOICE_TIMEOUT);
    loop {
        match try_lock(&folder, "choosing") {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

fn folder_name(env: Environment<'_>) -> PathBuf {
    let named = env.get_filled(FOLDER);
    named.map_or_else(|| PathBuf::from(format!("/tmp/dlrover-gpu-locks-{}", geteuid())), PathBuf::from)
}

fn folder(env: Environment<'_>) -> io::Result<PathBuf> {
    let folder = folder_name(env);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(about(&folder, &error.to_string())),
        _ => checked(folder),
    }
}

/// Checks the directory of the locks: one in `/tmp` may belong to any user. No other user can replace ours: `/tmp`
/// is sticky.
fn checked(folder: PathBuf) -> io::Result<PathBuf> {
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() {
        return Err(about(&folder, "is not a directory"));
    }
    if found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(about(&folder, "belongs to another user, or other users can write to it"));
    }
    Ok(folder)
}

fn about(folder: &Path, why: &str) -> io::Error {
    io::Error::other(format!("{}: {why}; set {FOLDER} to another directory", folder.display()))
}

/// Never through a link, and never waiting.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// An id comes from a driver: it must not lead out of the directory.
fn file_name(id: &str) -> String {
    id.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' }).take(100).collect()
}

fn try_lock(folder: &Path, id: &str) -> io::Result<Option<GpuLock>> {
    // Closed in what we start, as every file of Rust's.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(FLAGS);
    let file = options.open(folder.join(file_name(id)))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(GpuLock(Some(file)))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_lock_is_had_once_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let first = try_lock(folder.path(), "GPU-1").unwrap();
        assert!(first.is_some());
        assert!(try_lock(folder.path(), "GPU-1").unwrap().is_none());
        assert!(try_lock(folder.path(), "GPU-2").unwrap().is_some());
        drop(first);
        assert!(try_lock(folder.path(), "GPU-1").unwrap().is_some());
    }

    #[test]
    fn an_id_cannot_lead_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let _held = try_lock(&inner, "../../x/0000:3b:00.0").unwrap().unwrap();
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_and_folders_of_others_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        symlink(&target, folder.path().join("GPU-1")).unwrap();
        assert!(try_lock(folder.path(), "GPU-1").is_err());
        assert!(!target.exists());

        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(checked(link).unwrap_err().to_string().contains("is not a directory"));
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(checked(open).unwrap_err().to_string().contains("other users can write to it"));
    }
}
