//! The folder of `--state-dir`: a lock, and the journal's file.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{JournalError, crash};

/// The journal.
const JOURNAL: &str = "journal";

/// The next one, while it is written.
const NEXT: &str = "journal.next";

/// Held by the master that runs. The file stays: who removes a lock may remove somebody else's.
const LOCK: &str = "lock";

/// The folder, held by this master as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    handle: File,
    _lock: File,
}

impl Folder {
    /// Makes the folder where there is none, and keeps every other master out of it.
    ///
    /// # Errors
    /// It cannot be used, or another master uses it.
    pub(crate) fn hold(dir: &Path) -> Result<Self, JournalError> {
        let folder = |source| JournalError::Folder { dir: dir.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(folder)?;
        let handle = File::open(dir).map_err(folder)?;
        let path = dir.join(LOCK);
        let lock = open(&path, OpenOptions::new().create(true).truncate(false)).map_err(folder)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), handle, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(source)) => Err(JournalError::Lock { path, source }),
        }
    }

    /// Where the journal is.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(JOURNAL)
    }

    /// The journal that the last master left; `None` when there is none.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, JournalError> {
        let path = self.path();
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(JournalError::Read { path, source }),
        }
    }

    /// Puts a journal that begins with `bytes` in the place of the one that is there, in one step, and gives it
    /// to be appended to.
    pub(super) fn replace(&self, bytes: &[u8]) -> Result<File, JournalError> {
        let next = self.dir.join(NEXT);
        let write = |source| JournalError::Write { path: next.clone(), source };
        crash::point("before-snapshot");
        let mut file = open(&next, OpenOptions::new().create(true).truncate(true)).map_err(write)?;
        let (first, second) = bytes.split_at(bytes.len() / 2);
        file.write_all(first).map_err(write)?;
        crash::point("mid-snapshot");
        file.write_all(second).map_err(write)?;
        crash::point("before-snapshot-sync");
        file.sync_all().map_err(write)?;
        crash::point("before-rename");
        fs::rename(&next, self.path()).map_err(write)?;
        crash::point("after-rename");
        self.sync()?;
        crash::point("after-snapshot");
        Ok(file)
    }

    /// The job is over: the next one begins with nothing.
    pub(super) fn clear(&self) -> Result<(), JournalError> {
        crash::point("before-remove");
        let path = self.path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(JournalError::Write { path, source: error });
            }
            Ok(()) | Err(_) => {}
        }
        crash::point("after-remove");
        self.sync()
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.handle.sync_all().map_err(|source| JournalError::Write { path: self.dir.clone(), source })
    }
}

/// Addresses and names of nodes are nobody else's business.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.write(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_masters_do_not_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let held = Folder::hold(dir.path()).unwrap();
        let refused = Folder::hold(dir.path()).unwrap_err();
        assert!(matches!(refused, JournalError::InUse { .. }), "{refused}");
        assert!(refused.to_string().contains("in use by another job master that runs"));
        drop(held);
        Folder::hold(dir.path()).unwrap();
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(Folder::hold(&path).unwrap_err().to_string().contains("file"));
    }

    #[test]
    fn a_disk_that_is_full_is_said_and_the_old_journal_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::hold(dir.path()).unwrap();
        folder.replace(b"old").unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join(NEXT)).unwrap();
        let refused = folder.replace(b"new").unwrap_err();
        assert!(
            matches!(&refused, JournalError::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull)
        );
        assert_eq!(folder.read().unwrap().unwrap(), b"old");
    }
}
