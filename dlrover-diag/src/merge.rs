//! `dlrover-diag stacks`: merges the stacks of ranks that are in a directory, ours and those of xpu_timer.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use diagnosis::counted::counted;
use launcher::{
    environment::Environment,
    failure::{FAILED, SUCCEEDED, USAGE},
    resolve::stack_folder,
};
use stacks::{
    RankDump, StackFolder,
    document::{MAX_BYTES, read},
    dump_name::EXTENSION,
};

use super::{
    log_line,
    stack_folder::{self, FolderError, Report},
};

/// Files that are read. A job has fewer ranks.
const MAX_FILES: usize = 1 << 18;

/// Directories of jobs that an error names.
const MAX_JOBS: usize = 20;

/// Merges the stacks of all ranks in a directory, and says which rank is elsewhere
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads the files RRRRR-WWWWW.stacktrace of `dlrover-diag dump`, of a hang, and of xpu_timer, so that it replaces \
xpu_timer_stacktrace_viewer; writes py_stack, cpp_stack, py_stack.svg and cpp_stack.svg (docs/stacks.md).

Exit code: 0, 1 when no file can be read, or nothing can be written, 2 when the command line cannot be used.")]
pub(super) struct Arguments {
    /// The directory with the files of the ranks [default: $XPU_TIMER_TIMELINE_PATH, else that of the one job in
    /// /root/timeline]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The directory for the merged files [default: the same]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// One JSON document, for programs
    #[arg(long)]
    json: bool,
}

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
enum MergeError {
    #[error("{} cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} has no file RANK-WORLDSIZE.stacktrace", .0.display())]
    Empty(PathBuf),
    #[error("{} cannot be read: {error}; name the directory of the stacks with --path", path.display())]
    DefaultRead { path: PathBuf, error: io::Error },
    #[error(
        "{} has no file RANK-WORLDSIZE.stacktrace; name the directory of the stacks with --path",
        .0.display()
    )]
    DefaultEmpty(PathBuf),
    #[error("{} has the stacks of several jobs; choose one with --path: {}", .0.display(), shown(.1))]
    Several(PathBuf, Vec<PathBuf>),
    #[error("no file in {} can be used: {}", .0.display(), .1.join("; "))]
    Unusable(PathBuf, Vec<String>),
    #[error(transparent)]
    Folder(#[from] FolderError),
}

pub(super) fn main(arguments: &Arguments, env: Environment<'_>) -> ExitCode {
    match answer(arguments, env) {
        Ok(text) => super::print(&text, SUCCEEDED),
        Err(error) => {
            log_line(format_args!("error: {}", rules::chain(&error)));
            ExitCode::from(if matches!(error, MergeError::Several(..)) { USAGE } else { FAILED })
        }
    }
}

fn answer(arguments: &Arguments, env: Environment<'_>) -> Result<String, MergeError> {
    let path = match &arguments.path {
        Some(path) => path.clone(),
        None => usual(stack_folder(env))?,
    };
    let (dumps, notes) = dumps(&path)?;
    let out = arguments.out.as_deref().unwrap_or(&path);
    stack_folder::prepare(out)?;
    let files = stack_folder::write_merged(out, &dumps)?;
    Ok(Report { dumps: &dumps, folder: out, files, notes }.text(arguments.json))
}

/// The directory that was named for a job; of one for all jobs, that of the one job that has stacks there.
fn usual(folder: StackFolder) -> Result<PathBuf, MergeError> {
    let StackFolder::Shared(path) = folder else { return Ok(folder.path().to_owned()) };
    // xpu_timer writes the files of its job directly into it.
    if has_dumps(&path) {
        return Ok(path);
    }
    let entries =
        fs::read_dir(&path).map_err(|error| MergeError::DefaultRead { path: path.clone(), error })?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir());
    let mut of_jobs: Vec<PathBuf> = folders.filter(|path| has_dumps(path)).take(MAX_JOBS + 1).collect();
    of_jobs.sort_unstable();
    match &of_jobs[..] {
        [] => Err(MergeError::DefaultEmpty(path)),
        [one] => Ok(one.clone()),
        _ => Err(MergeError::Several(path, of_jobs)),
    }
}

/// A list of at most [`MAX_JOBS`].
fn shown(folders: &[PathBuf]) -> String {
    let mut shown: Vec<String> =
        folders.iter().take(MAX_JOBS).map(|path| path.display().to_string()).collect();
    if folders.len() > MAX_JOBS {
        shown.push("...".to_owned());
    }
    shown.join(", ")
}

fn is_dump(name: &str) -> bool {
    name.ends_with(EXTENSION) && !name.starts_with('.')
}

fn has_dumps(folder: &Path) -> bool {
    let names = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.take(MAX_FILES).any(|name| is_dump(&name))
}

/// The dumps in a directory, and what was not usable.
fn dumps(folder: &Path) -> Result<(Vec<RankDump>, Vec<String>), MergeError> {
    let unreadable = |error| MergeError::Read(folder.to_owned(), error);
    let mut names: Vec<String> = fs::read_dir(folder)
        .map_err(unreadable)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_dump(name))
        .take(MAX_FILES)
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        return Err(MergeError::Empty(folder.to_owned()));
    }
    let mut dumps = Vec::new();
    let mut notes = Vec::new();
    for name in names {
        let bytes = bytes(&folder.join(&name)).map_err(|error| error.to_string());
        let dump = bytes.and_then(|(written, bytes)| {
            Ok((written, read(&name, &bytes).map_err(|error| rules::chain(&error))?))
        });
        match dump {
            Ok(dump) => dumps.push(dump),
            Err(why) => notes.push(format!("{name} is left out: {why}")),
        }
    }
    let dumps = of_newest_world(dumps, &mut notes);
    if dumps.is_empty() { Err(MergeError::Unusable(folder.to_owned(), notes)) } else { Ok((dumps, notes)) }
}

/// Of dumps with the time at which each was written, those of the world of the newest one. A job that goes on with fewer
/// ranks leaves files of the others behind.
fn of_newest_world(dumps: Vec<(SystemTime, RankDump)>, notes: &mut Vec<String>) -> Vec<RankDump> {
    let newest = dumps.iter().map(|(written, dump)| (*written, dump.world_size)).max();
    let Some((_, world_size)) = newest else { return Vec::new() };
    let mut left_out: BTreeMap<u32, usize> = BTreeMap::new();
    let of_world = dumps.into_iter().map(|(_, dump)| dump).filter(|dump| {
        if dump.world_size != world_size {
            *left_out.entry(dump.world_size).or_default() += 1;
        }
        dump.world_size == world_size
    });
    let of_world = of_world.collect();
    for (other, files) in left_out {
        let (files, verb) = (counted(files, "file"), if files == 1 { "is" } else { "are" });
        notes.push(format!(
            "{files} of world size {other} {verb} left out: the newest file is of world size {world_size}"
        ));
    }
    of_world
}

/// What is in a file, and when it was written.
fn bytes(path: &Path) -> io::Result<(SystemTime, Vec<u8>)> {
    // To open a pipe would wait.
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    // One more than is allowed, so that a longer one is noticed.
    File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), bytes))
}

#[cfg(test)]
mod tests {
    use stacks::{Frame, Thread};

    use super::*;
    use crate::{Subcommand, parse};

    fn answer_of(line: &str) -> Result<String, String> {
        match parse(line).unwrap() {
            Subcommand::Stacks(arguments) => {
                answer(&arguments, Environment(&[])).map_err(|error| rules::chain(&error))
            }
            other => panic!("{other:?}"),
        }
    }

    fn write(folder: &Path, rank: u32, function: &str) {
        let frame = Frame { function: function.to_owned(), file: "/work/train.py".to_owned(), line: Some(7) };
        let thread = Thread { name: "MainThread".to_owned(), frames: vec![frame] };
        let dump = RankDump { python: vec![thread], ..RankDump::new(rank, 3) };
        fs::write(folder.join(dump.name().to_string()), dump.to_json()).unwrap();
    }

    #[test]
    fn the_files_of_a_folder_are_merged_and_judged() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(from.path(), 0, "all_reduce");
        write(from.path(), 1, "all_reduce");
        write(from.path(), 2, "next_batch");
        fs::write(from.path().join("notes.txt"), "").unwrap();
        fs::write(from.path().join("00001-00009.stacktrace"), "nonsense").unwrap();
        let line = format!("stacks --path {} --out {}", from.path().display(), to.path().display());
        let text = answer_of(&line).unwrap();
        assert!(text.starts_with("rank 2 is in train.py:7 next_batch; 0-1 wait in all_reduce\n"), "{text}");
        assert!(text.contains("note: 00001-00009.stacktrace is left out: the file is neither"), "{text}");
        let python = fs::read_to_string(to.path().join("py_stack")).unwrap();
        assert_eq!(python, "all_reduce@/work/train.py:7@0-1|2 1\nnext_batch@/work/train.py:7@2|0-1 1\n");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 4);
        let json: serde_json::Value =
            serde_json::from_str(&answer_of(&format!("{line} --json")).unwrap()).unwrap();
        assert_eq!(json["suspects"][0]["rank"], 2);
        assert_eq!(json["suspects"][0]["reason"], "elsewhere");
        assert_eq!(json["ranks"].as_array().unwrap().len(), 3);
    }

    /// A job that lost a node hung again, with fewer ranks.
    #[test]
    fn files_of_an_older_larger_world_are_left_out() {
        let from = tempfile::tempdir().unwrap();
        write(from.path(), 0, "all_reduce");
        write(from.path(), 1, "next_batch");
        write(from.path(), 2, "all_reduce");
        let older = SystemTime::now() - std::time::Duration::from_secs(3600);
        for rank in 0..4 {
            let dump = RankDump::unread(rank, 4, "of an earlier hang");
            let path = from.path().join(dump.name().to_string());
            fs::write(&path, dump.to_json()).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(older).unwrap();
        }
        let out = tempfile::tempdir().unwrap();
        let line = format!("stacks --path {} --out {}", from.path().display(), out.path().display());
        let text = answer_of(&line).unwrap();
        assert!(text.starts_with("rank 1 is in train.py:7 next_batch; 0,2 wait in all_reduce\n"), "{text}");
        let note = "note: 4 files of world size 4 are left out: the newest file is of world size 3\n";
        assert!(text.contains(note), "{text}");
        let python = fs::read_to_string(out.path().join("py_stack")).unwrap();
        assert!(!python.contains('3'), "rank 3 is of the older world: {python}");
    }

    #[test]
    fn of_a_folder_for_all_jobs_the_one_with_stacks_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let usual = || usual(StackFolder::Shared(root.path().to_owned())).map_err(|error| error.to_string());
        let path = root.path().display();
        let name_it = "name the directory of the stacks with --path";
        assert_eq!(usual(), Err(format!("{path} has no file RANK-WORLDSIZE.stacktrace; {name_it}")));
        let missing = super::usual(StackFolder::Shared("/nowhere/at/all".into())).unwrap_err().to_string();
        assert_eq!(
            missing,
            format!("/nowhere/at/all cannot be read: No such file or directory (os error 2); {name_it}")
        );
        let [one, other, empty] = ["a", "b", "c"].map(|job| root.path().join(job));
        for folder in [&one, &other, &empty] {
            fs::create_dir(folder).unwrap();
        }
        write(&one, 0, "all_reduce");
        assert_eq!(usual(), Ok(one));
        write(&other, 0, "all_reduce");
        let choice = format!("choose one with --path: {path}/a, {path}/b");
        assert_eq!(usual(), Err(format!("{path} has the stacks of several jobs; {choice}")));
        write(root.path(), 0, "all_reduce");
        assert_eq!(usual(), Ok(root.path().to_owned()), "as xpu_timer writes them");
    }

    #[test]
    fn a_folder_without_stacks_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let line = format!("stacks --path {path}");
        assert_eq!(answer_of(&line).unwrap_err(), format!("{path} has no file RANK-WORLDSIZE.stacktrace"));
        let pipe = folder.path().join("00000-00001.stacktrace");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert_eq!(
            answer_of(&line).unwrap_err(),
            format!("no file in {path} can be used: 00000-00001.stacktrace is left out: not a regular file")
        );
        let missing = answer_of("stacks --path /proc/self/none").unwrap_err();
        assert!(missing.starts_with("/proc/self/none cannot be read: "), "{missing}");
    }
}
