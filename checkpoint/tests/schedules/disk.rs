//! The disk that all nodes share.

use std::collections::BTreeMap;

use checkpoint::{
    manifest::{Folder, Manifest, Tracker},
    message::Dir,
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
    pub fn commit(&mut self, dir: &Dir, manifest: Manifest) -> Result<(), String> {
        for file in manifest.paths(dir) {
            match self.files.get(&file.path) {
                Some(step) => assert_eq!(*step, manifest.step, "{manifest:?}"),
                None => return Err(format!("{} is missing", file.path)),
            }
        }
        self.tracker = Some(manifest.step);
        self.manifests.insert(manifest.step, manifest);
        Ok(())
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
