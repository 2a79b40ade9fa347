//! The disk that all nodes share.

use std::collections::BTreeMap;

use checkpoint::{
    manifest::{Folder, Manifest, Tracker},
    message::{Dir, Format, ShardFile},
    slots::FileCheck,
};

#[derive(Debug, Default)]
pub struct Disk {
    /// The step in each file.
    pub files: BTreeMap<String, u64>,
    manifests: BTreeMap<u64, Manifest>,
    pub tracker: Option<u64>,
}

impl Disk {
    pub fn folder(&self) -> Folder {
        Folder {
            tracker: self.tracker.map_or(Tracker::Missing, Tracker::Step),
            manifests: self.manifests.clone(),
            unusable: BTreeMap::new(),
        }
    }

    /// Every file that is there must be of the step.
    pub fn commit(&mut self, dir: &Dir, manifest: Manifest, sets_tracker: bool) -> Result<(), String> {
        for file in manifest.paths(dir) {
            match self.files.get(&file.path) {
                Some(step) => assert_eq!(*step, manifest.step, "{manifest:?}"),
                None => return Err(format!("{} is missing", file.path)),
            }
        }
        if sets_tracker {
            self.tracker = Some(manifest.step);
        }
        self.manifests.insert(manifest.step, manifest);
        Ok(())
    }

    /// A worker writes a step by itself.
    pub fn write_alone(&mut self, step: u64) {
        let dir = Dir::try_from("/ckpt").unwrap();
        let file = format!("{step}/rank_0.pt");
        self.files.insert(dir.join(&file), step);
        let (shard, rank, n_shards, world, replicated, format) = (0, 0, 1, 4, true, Format::Pt);
        let (bytes, chunk_bytes, crc32, also) = (10, 64 << 20, vec![0], Vec::new());
        let shards = vec![ShardFile {
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
        }];
        let (version, time, saved_in) = (1, None, None);
        let manifest =
            Manifest { version, step, world, n_shards, replicated, format, time, saved_in, shards };
        self.commit(&dir, manifest, true).unwrap();
    }

    pub fn check(&self, files: &[FileCheck]) -> Result<(), String> {
        match files.iter().find(|file| !self.files.contains_key(&file.path)) {
            None => Ok(()),
            Some(file) => Err(format!("{} is missing", file.path)),
        }
    }

    pub fn remove(&mut self, step: u64, manifest: bool, files: &[String]) {
        if manifest {
            self.manifests.remove(&step);
        } else if self.manifests.contains_key(&step) {
            return;
        }
        for file in files {
            self.files.remove(file);
        }
        // What the tracker names stays.
        if let Some(manifest) = self.tracker.and_then(|tracker| self.manifests.get(&tracker)) {
            let dir = Dir::try_from("/ckpt").unwrap();
            assert!(manifest.paths(&dir).all(|file| self.files.contains_key(&file.path)), "{step} {files:?}");
        }
    }
}
