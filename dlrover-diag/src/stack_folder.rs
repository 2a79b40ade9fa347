//! The folder of stacks: where it is, what is written there, and what is said about it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use launcher::environment::Environment;
use serde_json::{Value, json};
use stacks::{RankDump, Verdict, files};

/// The variable of xpu_timer that names the folder, and its default.
const VARIABLE: &str = "XPU_TIMER_TIMELINE_PATH";
const DEFAULT: &str = "/root/timeline";

/// The version of the JSON documents.
const SCHEMA: &str = "dlrover.stacks/v1";

/// Why nothing is written.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("{} cannot be made", .0.display())]
    Make(PathBuf, #[source] io::Error),
    #[error("{} cannot be written", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// The folder that the environment names, or the usual one.
pub(super) fn usual(env: Environment<'_>) -> PathBuf {
    env.get_filled(VARIABLE).map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

/// Makes a folder, and checks that files can be made in it.
pub(super) fn prepare(folder: &Path) -> Result<(), FolderError> {
    fs::create_dir_all(folder).map_err(|error| FolderError::Make(folder.to_owned(), error))?;
    let probe = temporary(folder, "writable");
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&probe)
        .and_then(|_| fs::remove_file(&probe))
        .map_err(|error| FolderError::Write(folder.to_owned(), error))
}

/// A name that no other process uses. A folder may be on a file server that several nodes write to.
fn temporary(folder: &Path, name: &str) -> PathBuf {
    let host = crate::dump::hostname();
    folder.join(format!(".{name}.{host}.{}", std::process::id()))
}

/// Writes a file whole or not at all: another program may be reading the one of before.
pub(super) fn write(folder: &Path, name: &str, content: &str) -> Result<(), FolderError> {
    let temporary = temporary(folder, name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .and_then(|()| fs::rename(&temporary, folder.join(name)));
    written.map_err(|error| {
        let _not_there = fs::remove_file(&temporary);
        FolderError::Write(folder.join(name), error)
    })
}

/// Writes the files that show all ranks.
pub(super) fn write_merged(folder: &Path, dumps: &[RankDump]) -> Result<Vec<String>, FolderError> {
    let mut names = Vec::new();
    for (name, content) in files(dumps) {
        write(folder, &name, &content)?;
        names.push(name);
    }
    Ok(names)
}

/// What was found, for people and for programs.
pub(super) struct Report<'a> {
    pub(super) dumps: &'a [RankDump],
    pub(super) folder: &'a Path,
    pub(super) files: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Report<'_> {
    pub(super) fn text(&self, is_json: bool) -> String {
        let verdict = Verdict::of(self.dumps);
        if is_json { self.document(&verdict) } else { self.for_people(&verdict) }
    }

    fn document(&self, verdict: &Verdict) -> String {
        let ranks: Vec<Value> = self
            .dumps
            .iter()
            .map(|dump| serde_json::from_str(&dump.to_json()).unwrap_or(Value::Null))
            .collect();
        let suspects: Vec<Value> = verdict
            .suspects
            .iter()
            .map(|(rank, reason)| {
                let mut suspect = json!({ "rank": rank, "words": reason.to_string() });
                if let (Value::Object(suspect), Ok(Value::Object(facts))) =
                    (&mut suspect, serde_json::to_value(reason))
                {
                    suspect.extend(facts);
                }
                suspect
            })
            .collect();
        let document = json!({
            "schema": SCHEMA,
            "headline": verdict.headline,
            "world_size": verdict.world_size,
            "suspects": suspects,
            "details": verdict.details,
            "path": self.folder.to_string_lossy(),
            "files": self.files,
            "notes": self.notes,
            "ranks": ranks,
        });
        format!("{document}\n")
    }

    fn for_people(&self, verdict: &Verdict) -> String {
        let mut text = format!("{}\n", verdict.headline);
        for detail in &verdict.details {
            text.push_str(&format!("{detail}\n"));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        // The same note of many ranks is one line.
        let mut notes: Vec<(&str, stacks::Ranks)> = Vec::new();
        for (rank, note) in self.dumps.iter().flat_map(|dump| dump.notes.iter().map(|note| (dump.rank, note)))
        {
            match notes.iter_mut().find(|(known, _)| *known == note.as_str()) {
                Some((_, ranks)) => ranks.insert(rank),
                None => notes.push((note, [rank].into_iter().collect())),
            }
        }
        for (note, ranks) in notes {
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            text.push_str(&format!("note: {noun} {}: {note}\n", ranks.listed()));
        }
        text.push_str(&format!("written to {}: {}\n", self.folder.display(), self.files.join(", ")));
        text
    }
}
