//! The disk that all nodes share.

use std::collections::BTreeMap;

use checkpoint::{
    manifest::{Folder, Manifest, Tracker},
    message::{Dir, Format, ShardFile},
    slots::{FileCheck, FileFault},
};

#[derive(Debug, Default)]
pub struct Disk {
    /// The step in each file.
    pub files: BTreeMap<String, u64>,
    manifests: BTreeMap<u64, Manifest>,
    pub tracker: Option<u64>,
    /// The tracker is of an earlier run, and names a step whose files are damaged.
    is_damaged: bool,
}

/// What an earlier run has left: a step that is whole, and a damaged one that has a higher number than all of this run.
const EARLIER: [u64; 2] = [3, 1_000_000];

impl Disk {
    pub fn folder(&self) -> Folder {
        Folder {
            tracker: self.tracker.map_or(Tracker::Missing, Tracker::Step),
            manifests: self.manifests.clone(),
            unusable: BTreeMap::new(),
        }
    }

    /// After an earlier run.
    pub fn damaged() -> Self {
        let mut disk = Self { is_damaged: true, ..Self::default() };
        for step in EARLIER {
            disk.write_alone(step);
        }
        let [_, damaged] = EARLIER;
        disk.files.retain(|_, step| *step != damaged);
        disk.is_damaged = true;
        disk
    }

    /// The newest step that can be loaded.
    pub fn step(&self) -> Option<u64> {
        if self.is_damaged { EARLIER.first().copied() } else { self.tracker }
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
            self.is_damaged = false;
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

    pub fn check(&self, files: &[FileCheck]) -> Result<(), FileFault> {
        match files.iter().find(|file| !self.files.contains_key(&file.path)) {
            None => Ok(()),
            Some(file) => Err(FileFault::Unreadable(format!("{} is missing", file.path))),
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
        if let Some(manifest) = self.step().and_then(|tracker| self.manifests.get(&tracker)) {
            let dir = Dir::try_from("/ckpt").unwrap();
            assert!(manifest.paths(&dir).all(|file| self.files.contains_key(&file.path)), "{step} {files:?}");
        }
    }
}
