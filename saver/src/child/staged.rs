//! Files that get their names only with the manifest of their step. They are written with their shard, and wait under
//! another name until all shards are there:
//!
//! * those that make a directory a whole checkpoint for programs that know nothing of manifests: `.metadata` of torch;
//! * those in the place of a file that is there, as for a path that is given with each save: the older one may be all
//!   that the step has which counts so far.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use checkpoint::{manifest::Manifest, message::Dir};

use super::temporary::{self, folder_of, sync_folder};

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

/// Files that have their names, and what had these before, until it is known that the step counts.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// The name, and another one of the file that had it.
    replaced: Vec<(PathBuf, PathBuf)>,
}

impl Published {
    /// The step does not count: what was there before has its name again.
    pub(super) fn undo(&mut self) {
        for (target, kept) in std::mem::take(&mut self.replaced) {
            let _as_good_as_possible =
                fs::rename(&kept, &target).and_then(|()| sync_folder(folder_of(&target)));
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        for (_, kept) in &self.replaced {
            let _swept_later = fs::remove_file(kept);
        }
    }
}

/// Renames the staged files of a step to their final names. Done before, it does nothing.
///
/// # Errors
/// When the disk fails. What was there before has its name then.
pub(super) fn publish(dir: &Dir, manifest: &Manifest) -> Result<Published, String> {
    let mut published = Published::default();
    for file in manifest.paths(dir) {
        let target = Path::new(&file.path);
        if let Err(error) = published.replace(&path(target, manifest.step), target) {
            published.undo();
            return Err(format!("cannot rename the temporary file to {}: {error}", file.path));
        }
    }
    Ok(published)
}

impl Published {
    fn replace(&mut self, staged: &Path, target: &Path) -> io::Result<()> {
        if fs::symlink_metadata(staged).is_err() {
            return Ok(());
        }
        // A file system without links has no way back.
        let kept = temporary::beside(target);
        if fs::hard_link(target, &kept).is_ok() {
            self.replaced.push((target.to_owned(), kept));
        }
        fs::rename(staged, target)?;
        sync_folder(folder_of(target))
    }
}

/// Removes the file of a step that waits for this name, if there is one.
pub(super) fn remove(target: &str, step: u64) {
    let _none = fs::remove_file(path(Path::new(target), step));
}

/// Removes all files that wait for this name: of steps that a killed saver has written, and that did not come to count.
pub(super) fn remove_all(target: &Path) {
    let Some(name) = target.file_name() else { return };
    let mut start = name.as_encoded_bytes().to_vec();
    start.extend_from_slice(MARK.as_bytes());
    for entry in fs::read_dir(folder_of(target)).into_iter().flatten().take(ENTRIES).flatten() {
        let name = entry.file_name();
        let step = name.as_encoded_bytes().strip_prefix(&start[..]);
        if step.is_some_and(|step| !step.is_empty() && step.iter().all(u8::is_ascii_digit)) {
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
        // Of an earlier write of the same step.
        fs::write(&metadata, "old").unwrap();
        let name = metadata.to_str().unwrap();
        for text in ["old", "new", "new"] {
            fs::write(path(&metadata, 7), "new").unwrap();
            assert_eq!(now_at(name, 7), path(&metadata, 7).to_str().unwrap());
            let mut published = publish(&dir, &manifest).unwrap();
            assert_eq!(fs::read(&metadata).unwrap(), b"new");
            if text == "old" {
                published.undo();
            }
            drop(published);
            assert_eq!(fs::read(&metadata).unwrap(), text.as_bytes());
            assert_eq!(now_at(name, 7), name);
        }
        drop(publish(&dir, &manifest).unwrap());
        assert_eq!(fs::read(&metadata).unwrap(), b"new");
        for step in [7, 8] {
            fs::write(path(&metadata, step), "given up").unwrap();
        }
        remove(name, 7);
        assert!(!path(&metadata, 7).exists() && path(&metadata, 8).exists());
        remove_all(&metadata);
        let left: Vec<_> = fs::read_dir(folder.path().join("7")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
