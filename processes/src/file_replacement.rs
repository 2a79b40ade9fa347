//! The replacement of a file in one step: written beside it and renamed. Readers see the old file or the new one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use crate::host_name;

/// The mode of a file, less the umask, that is for others to read.
pub const PUBLIC: u32 = 0o666;

/// Replaces the file at `path` by one that `write` fills, and returns that one, still open for writing. The new file is
/// synced, so it is whole after a power loss, too; whether that leaves the old file is decided only when the directory
/// is synced. `synced` is called between the sync and the rename. `temporary` must be on the same file system; after an
/// error it is removed.
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
    let write = |file: &mut File| {
        write(file)?;
        file.sync_all()?;
        synced();
        Ok(())
    };
    replaced(path, temporary, mode, write)
}

/// Replaces the file at `path`, for others to read, and syncs nothing: after a power loss it may be empty.
///
/// # Errors
/// When the file cannot be written or renamed.
pub fn replace_unsynced(path: &Path, content: &[u8]) -> io::Result<()> {
    replaced(path, &temporary_path(path), PUBLIC, |file| file.write_all(content)).map(drop)
}

/// Whether the file at `path` can be replaced. Leaves nothing behind.
///
/// # Errors
/// When no file can be made beside it.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    let temporary = temporary_path(path);
    new_file(&temporary, PUBLIC)?;
    fs::remove_file(&temporary)
}

/// A path beside `path` that no other process uses, on whatever host: the directory may be on a file server.
#[must_use]
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{}.tmp", host_name().replace('/', "_"), std::process::id()));
    name.into()
}

fn replaced(
    path: &Path,
    temporary: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    let mut file = new_file(temporary, mode)?;
    let written = write(&mut file).and_then(|()| fs::rename(temporary, path));
    written.map(|()| file).inspect_err(|_| {
        let _gone = fs::remove_file(temporary);
    })
}

/// A new file, in the place of one that a killed process has left. Others may write to the directory: a link of theirs
/// is not followed.
fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    let open = || OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            open()
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

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

    #[test]
    fn a_link_that_others_have_left_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, theirs) = (dir.path().join("file"), dir.path().join("theirs"));
        fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, temporary_path(&path)).unwrap();
        replace_unsynced(&path, b"new").unwrap();
        assert_eq!([&path, &theirs].map(|path| fs::read(path).unwrap()), [&b"new"[..], b"theirs"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
