//! Files that are being written: under a temporary name beside the final one, renamed when they are whole and synced.
//!
//! A killed saver leaves its temporary files behind. The directory may be on a file server where other nodes write at
//! the same time, and process ids of other nodes say nothing here: so the writer holds a lock on its file (`flock`),
//! and only a file whose lock is free is a leftover.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{Path, PathBuf},
};

use nix::errno::Errno;

/// Between the final name and the process id.
const MARK: &str = ".dlrover-tmp-";

/// Names that are tried when files of other processes have them.
const NAMES: u32 = 16;

/// Entries of a directory that are looked at for leftovers at most: a directory of a million files is not the saver's.
const ENTRIES: usize = 100_000;

/// A file that is not whole yet. It is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Temporary {
    file: File,
    path: PathBuf,
    target: PathBuf,
    is_renamed: bool,
}

impl Temporary {
    /// Makes an empty file that will be `target`. The directories above it are made, too, and synced.
    ///
    /// # Errors
    /// When a directory or the file cannot be made.
    pub(super) fn create(target: &Path) -> io::Result<Self> {
        let folder = folder_of(target);
        make_folders(folder)?;
        let pid = std::process::id();
        for number in 0..NAMES {
            let mut name = target.as_os_str().to_owned();
            name.push(if number == 0 { format!("{MARK}{pid}") } else { format!("{MARK}{pid}-{number}") });
            let path = PathBuf::from(name);
            let mut open = OpenOptions::new();
            open.read(true).write(true).create_new(true).mode(0o666);
            match open.open(&path) {
                Ok(file) => {
                    // A sweep of another node may have taken it for a leftover before it was locked.
                    if lock(&file) != Lock::Taken && is_at(&file, &path) {
                        return Ok(Self { file, path, target: target.to_path_buf(), is_renamed: false });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    remove_leftover(&path);
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!(
                "all {NAMES} temporary names of {} are taken; remove its {MARK} files that no process is writing",
                target.display()
            ),
        ))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file, gives it its final name, and syncs the directory: after a power loss it is there, and whole.
    ///
    /// # Errors
    /// When the disk fails. The final name then names what it did before.
    pub(super) fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.target)?;
        self.is_renamed = true;
        sync_folder(folder_of(&self.target))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed savers left in a checkpoint directory, in its directories of steps, and in that of its
/// manifests. Returns what was removed. What cannot be read or removed stays.
pub(super) fn sweep(dir: &Path) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    let steps = sweep_folder(dir, &mut removed);
    for folder in steps {
        sweep_folder(&folder, &mut removed);
    }
    removed
}

/// Sweeps one directory and returns the directories in it that may have temporary files too.
fn sweep_folder(folder: &Path, removed: &mut Vec<PathBuf>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return folders };
    for entry in entries.take(ENTRIES).flatten() {
        let name = entry.file_name();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_file() && is_temporary(name.as_bytes()) {
            if remove_leftover(&entry.path()) {
                removed.push(entry.path());
            }
        } else if kind.is_dir() && (name.as_bytes().iter().all(u8::is_ascii_digit) || name == ".dlrover") {
            folders.push(entry.path());
        }
    }
    folders
}

fn is_temporary(name: &[u8]) -> bool {
    let mark = MARK.as_bytes();
    let Some(at) = name.windows(mark.len()).rposition(|window| window == mark) else { return false };
    let number = name.get(at + mark.len()..).unwrap_or_default();
    at > 0 && !number.is_empty() && number.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-')
}

/// Removes a temporary file if nothing writes it. Returns whether it was removed.
fn remove_leftover(path: &Path) -> bool {
    // For writing, because locks over NFS need it; nothing is written.
    let Ok(file) =
        OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
    else {
        return false;
    };
    let is_own = path.as_os_str().as_bytes().ends_with(format!("{MARK}{}", std::process::id()).as_bytes());
    match lock(&file) {
        Lock::Held => is_at(&file, path) && fs::remove_file(path).is_ok(),
        Lock::Taken => false,
        // Without locks only this process's id is known to name no other writer, unless another node has the same one.
        Lock::Unsupported => is_own && fs::remove_file(path).is_ok(),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Lock {
    Held,
    /// Another process has it.
    Taken,
    /// The file system has no locks.
    Unsupported,
}

/// Locks the file for as long as it is open. Waits for nothing but the file server.
fn lock(file: &File) -> Lock {
    // SAFETY: plain numbers; the descriptor is open.
    match Errno::result(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Lock::Held,
        Err(Errno::EWOULDBLOCK) => Lock::Taken,
        Err(_) => Lock::Unsupported,
    }
}

/// Whether the path still names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |open: fs::Metadata, named: fs::Metadata| open.dev() == named.dev() && open.ino() == named.ino();
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => same(open, named),
        _ => false,
    }
}

pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Makes a directory and those above it, and syncs each that has a new entry.
fn make_folders(folder: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    for folder in folder.ancestors() {
        match fs::metadata(folder) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(folder),
            Err(error) => return Err(error),
        }
    }
    for folder in missing.iter().rev() {
        match fs::create_dir(folder) {
            Ok(()) => sync_folder(folder_of(folder))?,
            // Another node, at the same time.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes renames and new files in a directory last.
///
/// # Errors
/// When the disk fails.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems cannot sync a directory; nothing more can be done there.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP | libc::EROFS)) => {
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_final_name_appears_whole_and_an_unfinished_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("7/deeper/rank_0.pt");
        let temporary = Temporary::create(&target).unwrap();
        temporary.file().write_all(b"text").unwrap();
        assert!(!target.exists());
        temporary.publish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"text");
        drop(Temporary::create(&target).unwrap());
        assert_eq!(names(folder_of(&target)), ["rank_0.pt"]);
    }

    #[test]
    fn two_writers_of_one_file_have_two_temporary_files() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("file");
        let one = Temporary::create(&target).unwrap();
        let two = Temporary::create(&target).unwrap();
        assert_ne!(one.path, two.path);
        two.file().write_all(b"two").unwrap();
        two.publish().unwrap();
        one.publish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn a_sweep_takes_leftovers_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("12")).unwrap();
        fs::create_dir_all(path(".dlrover")).unwrap();
        fs::create_dir_all(path("mine")).unwrap();
        let leftovers =
            ["a.dlrover-tmp-1", "12/b.pt.dlrover-tmp-4000000-2", ".dlrover/12.json.dlrover-tmp-9"];
        let others =
            [".dlrover-tmp-1", "12/b.pt", "a.dlrover-tmp-", "a.dlrover-tmp-x", "mine/c.dlrover-tmp-1"];
        for name in leftovers.iter().chain(&others) {
            fs::write(path(name), "x").unwrap();
        }
        // A link to a file that is no leftover.
        std::os::unix::fs::symlink(path("12/b.pt"), path("l.dlrover-tmp-1")).unwrap();
        let written = Temporary::create(&path("12/being-written")).unwrap();
        let mut removed = sweep(dir.path());
        removed.sort();
        let mut expected = leftovers.map(path);
        expected.sort();
        assert_eq!(removed, expected);
        for name in others {
            assert!(path(name).exists(), "{name}");
        }
        written.publish().unwrap();
        assert!(path("l.dlrover-tmp-1").is_symlink());
        assert_eq!(sweep(&path("no-such-folder")), Vec::<PathBuf>::new());
    }
}
