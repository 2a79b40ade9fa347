//! Files that get their names only with the manifest of their step. They are written with their shard, and wait under
//! another name until all shards are there:
//!
//! * those that make a directory a whole checkpoint for programs that know nothing of manifests: `.metadata` of torch;
//! * those in the place of a file that is there, as for a path that is given with each save: the older one may be all
//!   that the step has which counts so far. They take its place after the tracker has named the new step: at every
//!   moment all files are there of the step that the tracker names, and a load finishes what a killed saver has not.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use checkpoint::{
    manifest::Manifest,
    message::{Dir, Level},
    slots::FileCheck,
};

use super::{
    check,
    temporary::{folder_of, sync_folder},
};

/// Behind the final name, before the step.
const MARK: &str = ".dlrover-staged-";

/// Entries of a directory that are looked at for leftovers at most.
const ENTRIES: usize = 100_000;

/// Where a file of a step waits for its name.
pub(super) fn path(target: &Path, step: u64) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(format!("{MARK}{step}"));
    name.into()
}

/// Where a file of a step is now.
pub(super) fn now_at(target: &str, step: u64) -> String {
    let staged = path(Path::new(target), step);
    let is_waiting = fs::symlink_metadata(&staged).is_ok();
    staged.to_str().filter(|_| is_waiting).unwrap_or(target).to_owned()
}

/// Files of a step that wait for their names.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Names that no file has yet.
    free: Vec<String>,
    /// Names of older files.
    taken: Vec<String>,
}

impl Waiting {
    pub(super) fn of(dir: &Dir, manifest: &Manifest) -> Self {
        let is_waiting = |file: &String| fs::symlink_metadata(path(Path::new(file), manifest.step)).is_ok();
        let names = manifest.paths(dir).map(|file| file.path).filter(is_waiting);
        let (taken, free) = names.partition(|file| fs::symlink_metadata(file).is_ok());
        Self { free, taken }
    }

    /// A file whose place is to be taken.
    pub(super) fn first_taken(&self) -> Option<&str> {
        self.taken.first().map(String::as_str)
    }

    /// Gives the files their names that take no other one's place.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn publish_free(&self, step: u64) -> Result<(), String> {
        self.free.iter().try_for_each(|name| publish(name, step))
    }

    /// Has the other ones take the place of the older files.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn publish_taken(&self, step: u64) -> Result<(), String> {
        self.taken.iter().try_for_each(|name| publish(name, step))
    }
}

fn publish(name: &str, step: u64) -> Result<(), String> {
    let target = Path::new(name);
    let renamed = match fs::rename(path(target, step), target) {
        // A load on another node was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(folder_of(target)),
    };
    renamed.map_err(|error| format!("cannot rename the temporary file to {name}: {error}"))
}

/// Gives the files of the step that the tracker names their names, if the saver was killed before it could. What waits
/// there and is not what the manifest names is of a later save that did not come to count.
pub(super) fn finish(dir: &Dir, manifest: &Manifest, logs: &mut Vec<(Level, String)>) {
    let step = manifest.step;
    for file in manifest.paths(dir) {
        let staged = path(Path::new(&file.path), step);
        let Some(waiting) = staged.to_str().filter(|_| fs::symlink_metadata(&staged).is_ok()) else {
            continue;
        };
        let crc32 = Some((file.sum.chunk_bytes, file.sum.crc32));
        let whole = FileCheck { path: waiting.to_owned(), bytes: Some(file.sum.bytes), crc32 };
        if check::check(&[whole]).is_err() {
            continue;
        }
        logs.push(match publish(&file.path, step) {
            Ok(()) => (
                Level::Info,
                format!("finished the interrupted write of step {step}: {} is there", file.path),
            ),
            Err(error) => (Level::Warn, format!("step {step} was not written to its end: {error}")),
        });
    }
}

/// Removes the file of a step that waits for this name, if there is one.
pub(super) fn remove(target: &str, step: u64) {
    let _none = fs::remove_file(path(Path::new(target), step));
}

/// Removes all files that wait for this name: of steps that a killed saver has written, and that did not come to count.
/// One of step `kept`, which counts, stays.
pub(super) fn remove_all(target: &Path, kept: Option<u64>) {
    let Some(name) = target.file_name() else { return };
    let mut start = name.as_encoded_bytes().to_vec();
    start.extend_from_slice(MARK.as_bytes());
    for entry in fs::read_dir(folder_of(target)).into_iter().flatten().take(ENTRIES).flatten() {
        let name = entry.file_name();
        let step = name.as_encoded_bytes().strip_prefix(&start[..]);
        let is_step = step.is_some_and(|step| !step.is_empty() && step.iter().all(u8::is_ascii_digit));
        let is_kept = kept.is_some_and(|kept| step == Some(kept.to_string().as_bytes()));
        if is_step && !is_kept {
            let _removed_later = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use checkpoint::message::{FileSum, Format, ShardFile};

    use super::*;

    #[test]
    fn a_file_gets_its_name_with_the_manifest_and_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::try_from(folder.path().to_str().unwrap()).unwrap();
        let sum = |file: &str| FileSum { file: file.into(), bytes: 1, chunk_bytes: 64 << 20, crc32: vec![0] };
        let FileSum { file, bytes, chunk_bytes, crc32 } = sum("7/__0_0.distcp");
        let (format, also) = (Format::Dcp, vec![sum("7/.metadata")]);
        let (shard, rank, n_shards, world, replicated) = (0, 0, 1, 1, false);
        let shard = ShardFile {
            shard,
            rank,
            n_shards,
            world,
            replicated,
            format,
            file,
            bytes,
            chunk_bytes,
            crc32,
            also,
        };
        let manifest = Manifest {
            version: checkpoint::manifest::VERSION,
            step: 7,
            world,
            n_shards,
            replicated,
            format,
            time: None,
            saved_in: None,
            shards: vec![shard],
        };
        let metadata = folder.path().join("7/.metadata");
        fs::create_dir(folder.path().join("7")).unwrap();
        let name = metadata.to_str().unwrap();
        for text in ["free", "taken"] {
            fs::write(path(&metadata, 7), text).unwrap();
            assert_eq!(now_at(name, 7), path(&metadata, 7).to_str().unwrap());
            let waiting = Waiting::of(&dir, &manifest);
            assert_eq!(waiting.first_taken().is_some(), text == "taken");
            waiting.publish_free(7).unwrap();
            assert_eq!(fs::read(&metadata).unwrap(), b"free");
            waiting.publish_taken(7).unwrap();
            assert_eq!(fs::read(&metadata).unwrap(), text.as_bytes());
            assert_eq!(now_at(name, 7), name);
            // Another node has done it.
            waiting.publish_taken(7).unwrap();
        }
        for step in [7, 8] {
            fs::write(path(&metadata, step), "given up").unwrap();
        }
        remove(name, 7);
        assert!(!path(&metadata, 7).exists() && path(&metadata, 8).exists());
        remove_all(&metadata, Some(8));
        assert!(path(&metadata, 8).exists());
        remove_all(&metadata, Some(80));
        let left: Vec<_> = fs::read_dir(folder.path().join("7")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
