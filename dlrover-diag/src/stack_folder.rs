//! The directory of stacks: what is written there, and what is said about it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use processes::file_replacement::{check_replaceable, replace_unsynced};
use serde_json::{Value, json};
use stacks::{RankDump, Verdict, files};

/// The version of the JSON documents.
const SCHEMA: &str = "dlrover.stacks/v1";

/// Why nothing is written.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("{} cannot be created", .0.display())]
    Make(PathBuf, #[source] io::Error),
    #[error("{} cannot be written", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// Makes a directory, and checks that files can be made in it.
pub(super) fn prepare(folder: &Path) -> Result<(), FolderError> {
    fs::create_dir_all(folder).map_err(|error| FolderError::Make(folder.to_owned(), error))?;
    let check = check_replaceable(&folder.join("stacks"));
    check.map_err(|error| FolderError::Write(folder.to_owned(), error))
}

/// Writes a file whole or not at all: another program may be reading the one of before.
pub(super) fn write(folder: &Path, name: &str, content: &str) -> Result<(), FolderError> {
    let path = folder.join(name);
    replace_unsynced(&path, content.as_bytes()).map_err(|error| FolderError::Write(path, error))
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
