//! The replacement of a file in one step: written beside it, synced, renamed.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Replaces the file at `path` by one that `write` fills, and returns that one, still open for writing. Readers see
/// the old file or the new one, also after a power loss; which of them a power loss leaves is decided only when the
/// directory is synced. `synced` is called between the sync and the rename. `temporary` must be on the same file
/// system; after an error it is removed.
///
/// # Errors
/// When the file cannot be written, synced or renamed.
pub fn replace_file(
    path: &Path,
    temporary: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
    synced: impl FnOnce(),
) -> io::Result<File> {
    let replaced = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(temporary)?;
        write(&mut file)?;
        file.sync_all()?;
        synced();
        fs::rename(temporary, path)?;
        Ok(file)
    };
    replaced().inspect_err(|_| {
        let _gone = fs::remove_file(temporary);
    })
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn readers_see_the_old_file_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("file"), dir.path().join("next"));
        fs::write(&path, "old").unwrap();
        // Left by a process that was killed, and longer than what is written now.
        fs::write(&temporary, "left behind").unwrap();
        let mut before_rename = Vec::new();
        let write = |file: &mut File| file.write_all(b"new");
        let synced = || before_rename = [&path, &temporary].map(|path| fs::read(path).unwrap()).to_vec();
        let mut file = replace_file(&path, &temporary, 0o600, write, synced).unwrap();
        assert_eq!(before_rename, [b"old", b"new"]);
        file.write_all(b", appended").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new, appended");
        assert!(!temporary.exists());
    }

    #[test]
    fn a_new_file_has_the_mode_it_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("file"), dir.path().join("next"));
        replace_file(&path, &temporary, 0o600, |_| Ok(()), || {}).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn after_an_error_the_old_file_stays_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("file"), dir.path().join("next"));
        fs::write(&path, "old").unwrap();
        let full = |_: &mut File| Err(io::ErrorKind::StorageFull.into());
        let refused = replace_file(&path, &temporary, 0o600, full, || panic!("synced")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(!temporary.exists());
    }
}
