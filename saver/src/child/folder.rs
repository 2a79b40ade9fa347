//! The documents of a checkpoint directory on disk: read, written, removed.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use checkpoint::{
    manifest::{self, Folder, Manifest, Tracker},
    message::{Dir, Level},
    slots::{FileCheck, FileFault},
};

use super::{
    check,
    input::Outcome,
    staged,
    temporary::{self, Temporary, folder_of, sync_folder},
};

/// Bytes of manifests that are read of one directory; older ones stay unread. Those of a job of 1000 ranks have 0.9 MB
/// each.
const READ: u64 = 256 << 20;

/// Entries of the directory of manifests that are looked at.
const ENTRIES: usize = 100_000;

/// Bytes of a tracker that are read: more than any that can be used.
const TRACKER: u64 = 65;

/// Reads the tracker and the manifests, newest first. A directory that does not exist has none.
///
/// # Errors
/// When the directory cannot be read.
pub(super) fn read(dir: &Dir, logs: &mut Vec<(Level, String)>) -> Result<Folder, String> {
    let mut folder = Folder { tracker: read_tracker(dir), ..Folder::default() };
    let documents = dir.join(manifest::FOLDER);
    let entries = match fs::read_dir(&documents) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(folder),
        Err(error) => return Err(format!("{documents}: {error}")),
    };
    let name = |entry: io::Result<fs::DirEntry>| Manifest::step_of(entry.ok()?.file_name().to_str()?);
    let mut steps: Vec<u64> = entries.take(ENTRIES).filter_map(name).collect();
    steps.sort_unstable();
    let mut read = 0;
    while let Some(step) = steps.pop() {
        if read > READ {
            logs.push((
                Level::Warn,
                format!(
                    "{documents} has more than {READ} bytes; older manifests that are not read: {}",
                    steps.len() + 1
                ),
            ));
            break;
        }
        match read_manifest(dir, step, &mut read) {
            Ok(manifest) => drop(folder.manifests.insert(step, manifest)),
            Err(error) => drop(folder.unusable.insert(step, error)),
        }
    }
    if let Tracker::Step(step) = folder.tracker
        && let Some(manifest) = folder.manifests.get(&step)
    {
        staged::finish(dir, manifest, logs);
    }
    Ok(folder)
}

/// Adds the bytes that were read to `read`.
fn read_manifest(dir: &Dir, step: u64, read: &mut u64) -> Result<Manifest, FileFault> {
    let bytes = limited(&dir.join(&Manifest::name(step)), manifest::MAX_BYTES as u64 + 1)
        .map_err(|error| FileFault::Unreadable(error.to_string()))?;
    *read += bytes.len() as u64;
    Manifest::parse(step, &bytes).map_err(|error| FileFault::Differs(error.to_string()))
}

fn read_tracker(dir: &Dir) -> Tracker {
    let path = dir.join(manifest::TRACKER);
    match limited(&path, TRACKER) {
        Ok(bytes) => Tracker::parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Tracker::Missing,
        Err(error) => Tracker::Unusable(format!("cannot read {path}: {error}")),
    }
}

/// The first bytes of a file. One that is no file (a pipe, a device) is an error, and is not waited for.
fn limited(path: &str, at_most: u64) -> io::Result<Vec<u8>> {
    let file = open_file(Path::new(path))?;
    let mut bytes = Vec::new();
    file.take(at_most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file for reading.
///
/// # Errors
/// When it is not there, or something else.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Writes the manifest of a step, then the tracker if it is to name this step, and gives files that wait for it their
/// names, each in one step and synced. After an error the step does not count. It does once the tracker names it: a load
/// finishes what is missing then, and `logs` says what that is.
///
/// # Errors
/// When a file of the step is not there with its size: another node has written it, and not into this directory. When
/// the step would take the place of files of a newer one. When the disk fails.
pub(super) fn write(
    dir: &Dir,
    mut manifest: Manifest,
    sets_tracker: bool,
    logs: &mut Vec<(Level, String)>,
) -> Result<(), String> {
    manifest.time = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs());
    let files = manifest.paths(dir).map(|file| FileCheck {
        path: staged::now_at(&file.path, manifest.step),
        bytes: Some(file.sum.bytes),
        // They were made as the file was written; what a disk loses since then is found by a load.
        crc32: None,
    });
    check::check(&files.collect::<Vec<_>>()).map_err(|error| {
        format!("{error}; a checkpoint directory must be on a file system that all nodes share")
    })?;
    let waiting = staged::Waiting::of(dir, &manifest);
    if let Some(path) = waiting.first_taken().filter(|_| !sets_tracker) {
        return Err(format!("a newer step is on disk, and {path} may be its file"));
    }
    let path = dir.join(&Manifest::name(manifest.step));
    let document = written(&path, manifest.to_json().as_bytes())?;
    waiting.publish_free(manifest.step)?;
    document.publish().map_err(|error| format!("cannot write {path}: {error}"))?;
    if sets_tracker {
        replace(&dir.join(manifest::TRACKER), manifest.step.to_string().as_bytes())?;
    }
    if let Err(error) = waiting.publish_taken(manifest.step) {
        logs.push((
            Level::Warn,
            format!("step {} is on disk; {error}: the next load tries again", manifest.step),
        ));
    }
    Ok(())
}

/// The step that the tracker of a directory names.
pub(super) fn tracked(dir: &Dir) -> Option<u64> {
    match read_tracker(dir) {
        Tracker::Step(step) => Some(step),
        Tracker::Missing | Tracker::Unusable(_) => None,
    }
}

fn replace(path: &str, content: &[u8]) -> Result<(), String> {
    written(path, content)?.publish().map_err(|error| format!("cannot write {path}: {error}"))
}

/// A file that is whole and on disk, and has no name yet.
fn written(path: &str, content: &[u8]) -> Result<Temporary, String> {
    let written = || {
        let temporary = Temporary::create(Path::new(path))?;
        temporary.file().write_all(content)?;
        temporary.file().sync_all()?;
        Ok(temporary)
    };
    written().map_err(|error: io::Error| format!("cannot write {path}: {error}"))
}

/// Removes a step. The manifest goes first, and for good, so that none names files that are gone. Without `manifest`
/// the step was given up: when it has one all the same, a node has written it that was lost before it said so, and the
/// tracker may name the step.
///
/// Of `staged`, what waits for these names goes in any case, but for what the step has that the tracker names.
pub(super) fn remove(dir: &Dir, step: u64, manifest: bool, files: &[String], staged: &[String]) -> Outcome {
    let mut outcome = Outcome::default();
    if !manifest
        && tracked(dir) == Some(step)
        && let Ok(manifest) = read_manifest(dir, step, &mut 0)
    {
        staged::finish(dir, &manifest, &mut outcome.logs);
    }
    staged.iter().for_each(|path| staged::remove(path, step));
    let mut log = |path: &str, error: &io::Error| {
        outcome.logs.push((Level::Warn, format!("cannot remove {path} of step {step}: {error}")));
    };
    if manifest {
        let path = dir.join(&Manifest::name(step));
        let removed = fs::remove_file(&path).and_then(|()| sync_folder(folder_of(Path::new(&path))));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                // The step still counts.
                log(&path, &error);
                return outcome;
            }
            _ => {}
        }
    } else if fs::symlink_metadata(dir.join(&Manifest::name(step))).is_ok() {
        return outcome;
    }
    for path in files {
        staged::remove(path, step);
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => log(path, &error),
            _ => {}
        }
    }
    // It may hold what is not ours.
    let _not_empty = fs::remove_dir(dir.join(&step.to_string()));
    outcome
}

/// Removes what killed savers left behind, and says so.
pub(super) fn sweep(dir: &Dir, logs: &mut Vec<(Level, String)>) {
    let removed = temporary::sweep(Path::new(dir.as_str()));
    if let Some(first) = removed.first() {
        let text = match removed.len() {
            1 => format!("removed {}, left behind by an unfinished write", first.display()),
            count => {
                format!("removed {count} files left behind by unfinished writes, such as {}", first.display())
            }
        };
        logs.push((Level::Info, text));
    }
}

#[cfg(test)]
mod tests {
    use checkpoint::message::{Format, ShardFile};

    use super::*;

    fn manifest(step: u64) -> Manifest {
        let shard = ShardFile {
            shard: 0,
            rank: 0,
            n_shards: 1,
            world: 1,
            replicated: true,
            format: Format::Pt,
            file: format!("{step}/rank_0.pt"),
            bytes: 1,
            chunk_bytes: 64 << 20,
            crc32: vec![7],
            also: Vec::new(),
        };
        Manifest {
            version: manifest::VERSION,
            step,
            world: 1,
            n_shards: 1,
            replicated: true,
            format: Format::Pt,
            time: None,
            saved_in: None,
            shards: vec![shard],
        }
    }

    fn dir(folder: &tempfile::TempDir) -> Dir {
        Dir::try_from(folder.path().to_str().unwrap()).unwrap()
    }

    /// The file of the step, and its manifest.
    fn write_all(dir: &Dir, step: u64) {
        fs::create_dir_all(dir.join(&step.to_string())).unwrap();
        fs::write(dir.join(&format!("{step}/rank_0.pt")), "x").unwrap();
        write(dir, manifest(step), true, &mut Vec::new()).unwrap();
    }

    #[test]
    fn what_is_written_is_read() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        assert!(read(&dir, &mut Vec::new()).unwrap().is_empty());
        for step in [9, 30] {
            write_all(&dir, step);
        }
        fs::write(dir.join(".dlrover/40.json"), "{").unwrap();
        fs::create_dir(dir.join(".dlrover/50.json")).unwrap();
        let folder = read(&dir, &mut Vec::new()).unwrap();
        assert_eq!(folder.tracker, Tracker::Step(30));
        assert_eq!(folder.manifests.keys().copied().collect::<Vec<_>>(), [9, 30]);
        assert!(folder.manifests[&9].time.is_some());
        assert_eq!(folder.unusable.keys().copied().collect::<Vec<_>>(), [40, 50]);
        assert_eq!(fs::read(dir.join(manifest::TRACKER)).unwrap(), b"30");
        fs::create_dir(dir.join("20")).unwrap();
        fs::write(dir.join("20/rank_0.pt"), "x").unwrap();
        write(&dir, manifest(20), false, &mut Vec::new()).unwrap();
        let folder = read(&dir, &mut Vec::new()).unwrap();
        assert_eq!((folder.tracker, folder.manifests.contains_key(&20)), (Tracker::Step(30), true));
    }

    #[test]
    fn a_manifest_of_files_that_are_not_there_is_not_written() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        write_all(&dir, 8);
        let error = write(&dir, manifest(9), true, &mut Vec::new()).unwrap_err();
        assert!(error.contains("9/rank_0.pt") && error.contains("all nodes share"), "{error}");
        fs::create_dir(dir.join("9")).unwrap();
        fs::write(dir.join("9/rank_0.pt"), "longer").unwrap();
        assert!(write(&dir, manifest(9), true, &mut Vec::new()).unwrap_err().contains("has the size 6 B"));
        let folder = read(&dir, &mut Vec::new()).unwrap();
        assert_eq!((folder.tracker, folder.manifests.len()), (Tracker::Step(8), 1));
    }

    /// One of a path that is given with each save.
    fn last(step: u64, content: &[u8]) -> Manifest {
        let mut manifest = manifest(step);
        "last.pt".clone_into(&mut manifest.shards[0].file);
        manifest.shards[0].crc32 = vec![crc32fast::hash(content)];
        manifest
    }

    /// Step 10 counts, and step 20 waits for its place. Returns where.
    fn stage(dir: &Dir) -> std::path::PathBuf {
        let file = dir.join("last.pt");
        fs::write(&file, "a").unwrap();
        write(dir, last(10, b"a"), true, &mut Vec::new()).unwrap();
        let staged = staged::path(Path::new(&file), 20);
        fs::write(&staged, "b").unwrap();
        staged
    }

    /// The file of the step that counts stays until the next one does.
    #[test]
    fn a_step_that_cannot_come_to_count_leaves_the_file_of_the_step_before() {
        // What stands for a disk that fails at the last moment, or for a kill.
        for blocked in [".dlrover/20.json", manifest::TRACKER] {
            let temporary = tempfile::tempdir().unwrap();
            let dir = dir(&temporary);
            let staged = stage(&dir);
            let blocked = dir.join(blocked);
            let _not_there_yet = fs::remove_file(&blocked);
            fs::create_dir(&blocked).unwrap();
            write(&dir, last(20, b"b"), true, &mut Vec::new()).unwrap_err();
            assert_eq!(fs::read(dir.join("last.pt")).unwrap(), b"a", "{blocked}");
            fs::remove_dir(&blocked).unwrap();
            write(&dir, last(20, b"b"), true, &mut Vec::new()).unwrap();
            assert_eq!(fs::read(dir.join("last.pt")).unwrap(), b"b");
            assert!(!staged.exists());
            let names: Vec<_> =
                fs::read_dir(temporary.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
            assert_eq!(names.len(), 3, "{names:?}");
        }
    }

    /// What is there after a kill between two writes, at each of them, can be loaded.
    #[test]
    fn a_load_finishes_what_a_killed_saver_has_not() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        let staged = stage(&dir);
        fs::write(dir.join(".dlrover/20.json"), last(20, b"b").to_json()).unwrap();
        let mut logs = Vec::new();
        assert_eq!(read(&dir, &mut logs).unwrap().tracker, Tracker::Step(10));
        assert_eq!((fs::read(dir.join("last.pt")).unwrap(), logs.len()), (b"a".to_vec(), 0));
        fs::write(dir.join(manifest::TRACKER), "20").unwrap();
        // Not what the manifest names: saved again, and given up.
        fs::write(&staged, "c").unwrap();
        read(&dir, &mut logs).unwrap();
        assert_eq!((fs::read(dir.join("last.pt")).unwrap(), logs.len()), (b"a".to_vec(), 0));
        fs::write(&staged, "b").unwrap();
        assert_eq!(read(&dir, &mut logs).unwrap().tracker, Tracker::Step(20));
        assert_eq!(fs::read(dir.join("last.pt")).unwrap(), b"b");
        assert_eq!((logs.len(), logs[0].0, staged.exists()), (1, Level::Info, false));
    }

    /// The step counts, and stays: also when the job, which does not know it, gives the step up.
    #[test]
    fn a_file_that_cannot_take_its_place_in_the_end_waits_for_a_load() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        let staged = stage(&dir);
        // What stands for a file system that refuses the rename.
        let (file, blocked) = (dir.join("last.pt"), dir.join("last.pt/in-the-way"));
        fs::remove_file(&file).unwrap();
        fs::create_dir_all(&blocked).unwrap();
        let mut logs = Vec::new();
        write(&dir, last(20, b"b"), true, &mut logs).unwrap();
        assert!(logs.len() == 1 && logs[0].1.contains("step 20 is on disk; cannot rename"), "{logs:?}");
        fs::remove_dir_all(&file).unwrap();
        let removed = remove(&dir, 20, false, std::slice::from_ref(&file), std::slice::from_ref(&file));
        assert_eq!((fs::read(&file).unwrap(), staged.exists()), (b"b".to_vec(), false), "{:?}", removed.logs);
        assert_eq!(read(&dir, &mut logs).unwrap().tracker, Tracker::Step(20));
    }

    /// A worker has written the newer one by itself.
    #[test]
    fn a_late_step_does_not_take_the_place_of_a_newer_one() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        stage(&dir);
        let error = write(&dir, last(20, b"b"), false, &mut Vec::new()).unwrap_err();
        assert!(error.contains("a newer step is on disk") && error.contains("last.pt"), "{error}");
        assert_eq!(fs::read(dir.join("last.pt")).unwrap(), b"a");
        assert_eq!(read(&dir, &mut Vec::new()).unwrap().manifests.len(), 1);
    }

    #[test]
    fn a_step_is_removed_with_its_folder_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        write_all(&dir, 9);
        fs::write(dir.join("kept"), "x").unwrap();
        let files = [dir.join("9/rank_0.pt"), dir.join("9/missing")];
        // A step that was given up, and counts all the same.
        assert_eq!(remove(&dir, 9, false, &files, &[]).logs, []);
        assert!(Path::new(&dir.join("9/rank_0.pt")).exists());
        assert_eq!(remove(&dir, 9, true, &files, &[]).logs, []);
        assert!(!Path::new(&dir.join("9")).exists());
        assert!(!Path::new(&dir.join(".dlrover/9.json")).exists());
        assert!(Path::new(&dir.join("kept")).exists());
        // Something that cannot be removed as a file is said.
        fs::create_dir(dir.join("folder")).unwrap();
        assert_eq!(remove(&dir, 9, true, &[dir.join("folder")], &[]).logs.len(), 1);
    }

    #[test]
    fn a_pipe_in_the_place_of_a_document_is_not_waited_for() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = dir(&temporary);
        fs::create_dir(dir.join(manifest::FOLDER)).unwrap();
        for name in [".dlrover/7.json", manifest::TRACKER] {
            nix::unistd::mkfifo(Path::new(&dir.join(name)), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        let folder = read(&dir, &mut Vec::new()).unwrap();
        assert!(matches!(folder.tracker, Tracker::Unusable(_)));
        assert!(folder.unusable[&7].to_string().contains("not a regular file"));
    }
}
