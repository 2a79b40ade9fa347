//! The documents of a checkpoint directory: a manifest for each step, and the tracker, which names the step that
//! counts.
//!
//! ```text
//! <dir>/.dlrover/<step>.json     the manifest: written when all shards of the step are on disk
//! <dir>/dlrover_latest.txt       the tracker: the step in decimal, written last
//! ```

mod folder;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use folder::{Candidate, Folder, Part, Tracker, candidates};

use crate::message::{
    Dir, FileSum, Format, MAX_ALSO, MAX_CHUNKS, MAX_STEP, MAX_WORLD, MIN_CHUNK, ShardFile, absolute, cut,
};

/// The version of the document. A field that changes its meaning raises it, a new field does not.
pub const VERSION: u32 = 1;

/// The directory of the manifests in a checkpoint directory.
pub const FOLDER: &str = ".dlrover";

/// The tracker in a checkpoint directory: the name that upstream's tracker has.
pub const TRACKER: &str = "dlrover_latest.txt";

/// Bytes of a manifest at most.
pub const MAX_BYTES: usize = crate::message::MAX_AGENT_LINE;

/// A step on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`VERSION`].
    pub version: u32,
    pub step: u64,
    pub world: u32,
    pub n_shards: u32,
    pub replicated: bool,
    pub format: Format,
    /// Seconds since 1970 when it was written; for people.
    #[serde(default)]
    pub time: Option<u64>,
    /// The round in which it was saved; `None`: it is not known.
    #[serde(default)]
    pub saved_in: Option<u32>,
    /// One for each shard, in order.
    pub shards: Vec<ShardFile>,
}

/// A file of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// Absolute.
    pub path: String,
    /// In the checkpoint directory.
    pub is_below: bool,
    pub shard: u32,
    pub sum: FileSum,
}

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("it has {bytes} bytes (maximum: {MAX_BYTES})")]
    TooLong { bytes: usize },
    #[error("it cannot be read: {0}")]
    Json(#[source] serde_json::Error),
    #[error("its version is {found}; this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("it is for step {found}, but its name says {named}")]
    Step { named: u64, found: u64 },
    #[error("{field} is {value}; expected {expected}")]
    Value { field: &'static str, value: String, expected: String },
}

impl Manifest {
    /// The path of the manifest of a step, relative to the checkpoint directory.
    #[must_use]
    pub fn name(step: u64) -> String {
        format!("{FOLDER}/{step}.json")
    }

    /// The step of a file name in the directory of manifests; `None`: the file is something else.
    #[must_use]
    pub fn step_of(name: &str) -> Option<u64> {
        let digits = name.strip_suffix(".json")?;
        let step = digits.parse().ok().filter(|step| *step <= MAX_STEP)?;
        // `007.json` and `+7.json` are not ours.
        (format!("{step}") == digits).then_some(step)
    }

    /// Reads the manifest whose name says `step`.
    ///
    /// # Errors
    /// When the document is not of this form and version, or its shards are not those of one step.
    pub fn parse(step: u64, bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_BYTES {
            return Err(ManifestError::TooLong { bytes: bytes.len() });
        }
        let heading: Heading = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        if heading.version != VERSION {
            return Err(ManifestError::Version { found: heading.version });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        if manifest.step != step {
            return Err(ManifestError::Step { named: step, found: manifest.step });
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// The document: JSON with a line feed at its end.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Only maps with keys that are no text fail.
        let mut json = serde_json::to_string(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// Checks that the shards are those of one step: all of them, in order, each file at a place of its own.
    ///
    /// # Errors
    /// When they are not, or a value is out of its range.
    pub fn check(&self) -> Result<(), ManifestError> {
        let bad = |field: &'static str, value: String, expected: String| {
            Err(ManifestError::Value { field, value, expected })
        };
        if self.step > MAX_STEP {
            return bad("step", self.step.to_string(), format!("at most {MAX_STEP}"));
        }
        if self.n_shards == 0
            || self.n_shards > MAX_WORLD
            || self.shards.len() as u64 != u64::from(self.n_shards)
        {
            let expected = format!(
                "1 to {MAX_WORLD}, and the number of entries of shards, which is {}",
                self.shards.len()
            );
            return bad("n_shards", self.n_shards.to_string(), expected);
        }
        if self.world == 0 || self.world > MAX_WORLD {
            return bad("world", self.world.to_string(), format!("1 to {MAX_WORLD}"));
        }
        let mut seen = BTreeSet::new();
        for (index, shard) in self.shards.iter().enumerate() {
            if u64::from(shard.shard) != index as u64 {
                return bad("shard", shard.shard.to_string(), format!("{index}: shards are in order"));
            }
            if let Err((field, value, expected)) = check_shard(shard) {
                return bad(field, value, expected);
            }
            for sum in shard.sums() {
                if !seen.insert(sum.file.clone()) {
                    return bad("file", cut(&sum.file), "a name that no other shard has".to_owned());
                }
            }
        }
        Ok(())
    }

    /// All files of the step.
    pub fn paths<'a>(&'a self, dir: &'a Dir) -> impl Iterator<Item = NamedFile> + 'a {
        self.shards.iter().flat_map(move |shard| {
            shard.sums().map(move |sum| {
                let is_below = !sum.file.starts_with('/');
                let path = if is_below { dir.join(&sum.file) } else { sum.file.clone() };
                NamedFile { path, is_below, shard: shard.shard, sum }
            })
        })
    }
}

#[derive(Deserialize)]
struct Heading {
    #[serde(default)]
    version: u32,
}

type Bad = (&'static str, String, String);

/// Checks a shard's files, which another node reports or a document says.
///
/// # Errors
/// With the field, its value, and what it must be.
pub fn check_shard(shard: &ShardFile) -> Result<(), Bad> {
    if shard.n_shards == 0 || shard.n_shards > MAX_WORLD || shard.shard >= shard.n_shards {
        let expected =
            format!("less than the number of shards, which is {} (maximum: {MAX_WORLD})", shard.n_shards);
        return Err(("shard", shard.shard.to_string(), expected));
    }
    if shard.world == 0 || shard.world > MAX_WORLD || shard.rank >= shard.world {
        return Err((
            "rank",
            shard.rank.to_string(),
            format!("less than the world size, which is {} (maximum: {MAX_WORLD})", shard.world),
        ));
    }
    if shard.also.len() > MAX_ALSO {
        return Err(("also", format!("{} files", shard.also.len()), format!("at most {MAX_ALSO}")));
    }
    shard.sums().try_for_each(|sum| check_sum(&sum))
}

fn check_sum(sum: &FileSum) -> Result<(), Bad> {
    check_name(&sum.file)?;
    let of = |text: String| format!("{text} for `{}`", cut(&sum.file));
    if sum.crc32.len() > MAX_CHUNKS || sum.chunk_bytes < MIN_CHUNK {
        let value = format!("a list of length {} (chunk_bytes: {})", sum.crc32.len(), sum.chunk_bytes);
        return Err((
            "crc32",
            of(value),
            format!("at most {MAX_CHUNKS} chunks, of at least {MIN_CHUNK} bytes"),
        ));
    }
    let chunks = sum.bytes.div_ceil(sum.chunk_bytes);
    if sum.crc32.len() as u64 != chunks {
        return Err((
            "crc32",
            of(format!("a list of length {}", sum.crc32.len())),
            format!("{chunks}: one for each chunk"),
        ));
    }
    Ok(())
}

/// The name of a file is relative or absolute, without `.`, `..` and empty components.
fn check_name(name: &str) -> Result<(), Bad> {
    let full = if name.starts_with('/') { name.to_owned() } else { format!("/{name}") };
    match absolute(&full) {
        Ok(clean) if clean == full && full != "/" => Ok(()),
        Ok(_) => {
            Err(("file", format!("`{}`", cut(name)), "a path without empty components and `.`".to_owned()))
        }
        Err(error) => Err(("file", format!("`{}`", cut(name)), format!("a valid path: {error}"))),
    }
}

/// How a manifest names a file.
#[must_use]
pub fn relative(dir: &Dir, path: &str) -> String {
    dir.strip(path).unwrap_or(path).to_owned()
}
