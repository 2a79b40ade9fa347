//! The directory of `--state-dir`: a lock, and the journal's file.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{JournalError, crash};
use processes::file_replacement::replace_file;

/// The journal.
const JOURNAL: &str = "journal";

/// The next journal, while it is written.
const NEXT: &str = "journal.next";

/// Held by the running master. Never removed: it might be the lock of another master by then.
const LOCK: &str = "lock";

/// The mode of its files, because of the nodes' names and addresses.
const PRIVATE: u32 = 0o600;

/// The directory, locked by this master until it is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    handle: File,
    _lock: File,
}

impl Folder {
    /// Creates the directory if needed, and locks it.
    ///
    /// # Errors
    /// The directory cannot be used, or is locked by another master.
    pub(crate) fn hold(dir: &Path) -> Result<Self, JournalError> {
        let folder = |error| JournalError::Folder { dir: dir.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(folder)?;
        let handle = File::open(dir).map_err(folder)?;
        let path = dir.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(PRIVATE);
        let lock = options.open(&path).map_err(folder)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), handle, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(error)) => Err(JournalError::Lock { path, error }),
        }
    }

    /// Returns the path of the journal.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(JOURNAL)
    }

    /// Reads the journal of the last master; `None` when there is none.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, JournalError> {
        let path = self.path();
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(JournalError::Read { path, source }),
        }
    }

    /// Replaces the journal by one that begins with `bytes`, in one step, and returns it for appending.
    pub(super) fn replace(&self, bytes: &[u8]) -> Result<File, JournalError> {
        let next = self.dir.join(NEXT);
        let write = |error| JournalError::Write { path: next.clone(), error };
        crash::point("before-snapshot");
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let fill = |file: &mut File| {
            file.write_all(first)?;
            crash::point("mid-snapshot");
            file.write_all(second)?;
            crash::point("before-snapshot-sync");
            Ok(())
        };
        let synced = || crash::point("before-rename");
        let file = replace_file(&self.path(), &next, PRIVATE, fill, synced).map_err(write)?;
        crash::point("after-rename");
        self.sync()?;
        crash::point("after-snapshot");
        Ok(file)
    }

    /// Removes the journal of a job that is over.
    pub(super) fn clear(&self) -> Result<(), JournalError> {
        crash::point("before-remove");
        let path = self.path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(JournalError::Remove { path, error });
            }
            Ok(()) | Err(_) => {}
        }
        crash::point("after-remove");
        self.handle.sync_all().map_err(|error| JournalError::Remove { path, error })
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.handle.sync_all().map_err(|error| JournalError::Write { path: self.dir.clone(), error })
    }
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
        assert!(refused.to_string().contains("in use by another running job master"));
        drop(held);
        Folder::hold(dir.path()).unwrap();
    }

    #[test]
    fn a_file_instead_of_the_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(Folder::hold(&path).unwrap_err().to_string().contains("file"));
    }

    #[test]
    fn a_journal_that_cannot_be_replaced_is_reported_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::hold(dir.path()).unwrap();
        folder.replace(b"old").unwrap();
        fs::create_dir(dir.path().join(NEXT)).unwrap();
        let refused = folder.replace(b"new").unwrap_err();
        assert!(matches!(&refused, JournalError::Write { .. }), "{refused:?}");
        assert_eq!(folder.read().unwrap().unwrap(), b"old");
    }

    #[test]
    fn a_journal_that_cannot_be_removed_is_not_said_to_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::hold(dir.path()).unwrap();
        folder.clear().unwrap();
        fs::create_dir(folder.path()).unwrap();
        let refused = folder.clear().unwrap_err();
        assert!(matches!(&refused, JournalError::Remove { .. }), "{refused:?}");
        assert!(refused.to_string().contains("give the next job another --state-dir"), "{refused}");
    }
}
