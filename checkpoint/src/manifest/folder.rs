//! What a checkpoint directory offers to a load.

use std::collections::BTreeMap;

use super::Manifest;
use crate::{
    message::{Dir, Format, MAX_STEP, cut},
    slots::{FileCheck, FileFault},
};

/// What the tracker says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tracker {
    /// There is none.
    #[default]
    Missing,
    Step(u64),
    /// Something else, or it could not be read: why.
    Unusable(String),
}

impl Tracker {
    /// Reads the content of a tracker. Upstream writes no line feed; an editor may have added one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes));
        let digits = text.trim();
        let is_decimal = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        let step = if is_decimal { digits.parse().ok() } else { None };
        match step.filter(|step| *step <= MAX_STEP && bytes.len() <= 64) {
            Some(step) => Self::Step(step),
            None => Self::Unusable(format!(
                "the tracker contains `{}`; expected a step in decimal",
                cut(digits).escape_debug()
            )),
        }
    }
}

/// The documents of a checkpoint directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folder {
    pub tracker: Tracker,
    pub manifests: BTreeMap<u64, Manifest>,
    /// Manifests that cannot be used: step and why.
    pub unusable: BTreeMap<u64, FileFault>,
}

impl Folder {
    /// The newest step that counts.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        match self.tracker {
            Tracker::Step(step) => Some(step),
            // A directory whose tracker is lost still has its manifests.
            Tracker::Missing | Tracker::Unusable(_) => self.manifests.keys().next_back().copied(),
        }
    }

    /// Nothing here was ever a checkpoint.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracker == Tracker::Missing && self.manifests.is_empty() && self.unusable.is_empty()
    }
}

/// A step on disk that may be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub step: u64,
    /// What the client opens: a file, or a directory.
    pub path: String,
    /// What must hold before it does.
    pub files: Vec<FileCheck>,
}

/// The part of a checkpoint that a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub rank: u32,
    pub world: u32,
    pub shard: u32,
    pub n_shards: u32,
    pub format: Format,
}

/// Returns the steps that may be loaded, best first, with a text for each step that is passed over because of its
/// documents.
///
/// Without `exactly`, candidates are the step of the tracker and older ones with a manifest. `at_most` is the step that
/// counts, as the job says: newer ones are cut off, and with a manifest it comes before the tracker's.
///
/// A step of the tracker without a manifest is one of upstream: `<dir>/<step>/rank_<rank>.pt`, of which nothing
/// can be checked but that it is there.
///
/// All files of a step must have their sizes. Of their content each rank checks a share, so that the ranks of a world
/// read each file once: those that are its own shard's when their numbers agree.
#[must_use]
pub fn candidates(
    dir: &Dir,
    folder: &Folder,
    part: Part,
    exactly: Option<u64>,
    at_most: Option<u64>,
) -> (Vec<Candidate>, Vec<String>) {
    let newest = exactly.or(folder.step());
    let newest = match (newest, at_most) {
        // What the job says counts even if a node that was late has set the tracker back.
        (Some(_), Some(most)) if folder.manifests.contains_key(&most) => Some(most),
        (Some(step), Some(most)) => Some(step.min(most)),
        (newest, _) => newest,
    };
    let mut passed = Vec::new();
    if let Tracker::Unusable(why) = &folder.tracker {
        passed.push(why.clone());
    }
    let Some(newest) = newest else {
        passed.extend(
            folder.unusable.iter().rev().map(|(step, why)| format!("the manifest of step {step}: {why}")),
        );
        return (Vec::new(), passed);
    };
    let mut found = Vec::new();
    let tracked = folder.tracker == Tracker::Step(newest);
    if !folder.manifests.contains_key(&newest) {
        match folder.unusable.get(&newest) {
            Some(why) => passed.push(format!("the manifest of step {newest}: {why}")),
            None if tracked && part.format == Format::Pt => found.push(of_upstream(dir, newest, part)),
            None => passed.push(format!("step {newest} has no manifest")),
        }
    }
    let oldest = exactly.unwrap_or(0);
    for (step, manifest) in folder.manifests.range(oldest.min(newest)..=newest).rev() {
        match of_manifest(dir, manifest, part) {
            Ok(candidate) => found.push(candidate),
            Err(why) => passed.push(format!("step {step}: {why}")),
        }
    }
    (found, passed)
}

fn of_upstream(dir: &Dir, step: u64, part: Part) -> Candidate {
    let path = dir.join(&format!("{step}/rank_{}.pt", part.rank));
    Candidate { step, path: path.clone(), files: vec![FileCheck { path, bytes: None, crc32: None }] }
}

fn of_manifest(dir: &Dir, manifest: &Manifest, part: Part) -> Result<Candidate, String> {
    let path = match manifest.format {
        Format::Pt => {
            // A file for each shard: only a state that is the same on all ranks can be read by another world. All
            // ranks pass over the others, also those that would find a file.
            if ![1, part.n_shards].contains(&manifest.n_shards) {
                return Err(format!(
                    "it has {} shards, and this run has {}",
                    manifest.n_shards, part.n_shards
                ));
            }
            let shard = if manifest.n_shards == 1 { 0 } else { part.shard };
            manifest
                .paths(dir)
                .find(|file| file.shard == shard)
                .map(|file| file.path)
                .ok_or_else(|| format!("it has no file of shard {shard}"))?
        }
        Format::Dcp | Format::Safetensors => {
            let first = manifest.paths(dir).next().ok_or("it has no files")?;
            first.path.rsplit_once('/').map(|(folder, _)| folder.to_owned()).unwrap_or_default()
        }
    };
    let is_own = |shard: u32| match manifest.n_shards {
        1 => true,
        _ => shard % part.world.max(1) == part.rank || shard == part.shard,
    };
    let check = |file: super::NamedFile| FileCheck {
        crc32: is_own(file.shard).then_some((file.sum.chunk_bytes, file.sum.crc32)),
        path: file.path,
        bytes: Some(file.sum.bytes),
    };
    Ok(Candidate { step: manifest.step, path, files: manifest.paths(dir).map(check).collect() })
}
