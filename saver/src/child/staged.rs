//! Files that make a folder a whole checkpoint for programs that know nothing of manifests: `.metadata` of torch. They are
//! written with their shard, and get their names when all shards are there.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use checkpoint::{manifest::Manifest, message::Dir};

use super::temporary::{folder_of, sync_folder};

/// Behind the final name.
const MARK: &str = ".dlrover-staged";

/// Where a file waits for its name.
pub(super) fn path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(MARK);
    name.into()
}

/// Gives the waiting files of a step their names. Done before, it does nothing.
///
/// # Errors
/// When the disk fails.
pub(super) fn publish(dir: &Dir, manifest: &Manifest) -> Result<(), String> {
    for file in manifest.paths(dir) {
        let target = Path::new(&file.path);
        let renamed = match fs::rename(path(target), target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_folder(folder_of(target)),
        };
        renamed.map_err(|error| format!("cannot give {} its name: {error}", file.path))?;
    }
    Ok(())
}

/// Removes the file that waits for this name, if there is one.
pub(super) fn remove(target: &str) {
    let _none = fs::remove_file(path(Path::new(target)));
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
        fs::write(path(&metadata), "new").unwrap();
        // Of an earlier write of the same step.
        fs::write(&metadata, "old").unwrap();
        for _ in 0..2 {
            publish(&dir, &manifest).unwrap();
            assert_eq!(fs::read(&metadata).unwrap(), b"new");
            assert!(!path(&metadata).exists());
        }
        fs::write(path(&metadata), "given up").unwrap();
        remove(metadata.to_str().unwrap());
        assert!(!path(&metadata).exists());
    }
}
