//! NCCL's flight recorder: torch writes what its collectives have done when a byte comes through a pipe.

use std::{
    fs::{self, Metadata, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use nix::libc;
use processes::file_replacement::replace_unsynced;

use crate::wire::stacks::StackTarget;

/// The variable of torch that names the pipe, without rank and `.pipe`.
const PIPE: &str = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE";

/// The variables of torch that name the file, without the rank, the stronger one first: newer releases know both.
const NAMES: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];

/// Without them, in the cache of the user: below `XDG_CACHE_HOME` (torch 2.15), or `.cache` in `HOME` (seen with 2.11).
const DEFAULT: &str = "torch/comm_lib_trace_rank_";
/// Of older releases, which do not know the first name.
const OLDER_DEFAULT: &str = "/tmp/nccl_trace_rank_";

/// The name of a copy, without the rank.
const COPY: &str = "nccl_trace_rank_";

/// A larger file is not copied, in bytes. One of 2000 collectives of gloo had 0.3 MB with torch 2.15.
const LARGEST_COPY: u64 = 64 << 20;

/// An environment is not longer.
const LONGEST_ENVIRONMENT: u64 = 4 << 20;

/// Between two looks at the file, and how long it has not grown when it counts as written.
const INTERVAL: Duration = Duration::from_millis(50);

/// A rank that has not written by then does not.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How much longer than for the file is waited for the thread that looks at it.
const MARGIN: Duration = Duration::from_millis(200);

/// A recorder that is asked in a thread of its own: its files may be on a file system that hangs.
pub(super) struct Asking {
    began: Instant,
    /// The environment of the process is read, and names a pipe.
    has_recorder: Arc<AtomicBool>,
    answer: Receiver<Option<String>>,
}

impl Asking {
    /// Asks the recorder of a process to write, which may take `limit`. What it writes is copied to the first of the
    /// directories that takes files. `None`: there is no thread for it.
    pub(super) fn start(target: &StackTarget, collect_in: Vec<PathBuf>, limit: Duration) -> Option<Self> {
        let target = target.clone();
        let limit = limit.saturating_sub(MARGIN);
        Self::start_with(move |has_recorder| {
            Some(FlightRecorder::trigger(&target, has_recorder)?.outcome(&collect_in, limit))
        })
    }

    fn start_with(work: impl FnOnce(&dyn Fn()) -> Option<String> + Send + 'static) -> Option<Self> {
        let (send, answer) = mpsc::channel();
        let has_recorder = Arc::new(AtomicBool::new(false));
        let found = Arc::clone(&has_recorder);
        let work = move || {
            // The probe may no longer wait for it.
            let _answered = send.send(work(&|| found.store(true, Ordering::Relaxed)));
        };
        let _apart = thread::Builder::new().name("flight-recorder".to_owned()).spawn(work).ok()?;
        Some(Self { began: Instant::now(), has_recorder, answer })
    }

    /// What became of it, after `limit` at most. `None`: the process has no recorder.
    pub(super) fn outcome(self, limit: Duration) -> Option<String> {
        let patience = (LONGEST_WAIT + MARGIN).saturating_sub(self.began.elapsed());
        match self.answer.recv_timeout(limit.min(patience)) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                let waited = self.began.elapsed().as_secs_f64();
                Some(match self.has_recorder.load(Ordering::Relaxed) {
                    true => format!(
                        "NCCL flight recorder: no answer within {waited:.1} s; the file system of its files may hang"
                    ),
                    false => format!("environment of the process: not read within {waited:.1} s"),
                })
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

/// A recorder that was asked to write.
struct FlightRecorder {
    rank: u32,
    /// One of these is written.
    files: Vec<Output>,
    asked: Result<(), String>,
}

/// A file that the recorder may write.
struct Output {
    /// As the process names it.
    name: String,
    /// As it is seen from here.
    seen: PathBuf,
    /// Before the recorder was asked.
    before: Option<Stamp>,
}

impl Output {
    fn new(pid: u32, name: String) -> Self {
        let seen = seen_from_here(pid, &name);
        let before = Stamp::of(&seen);
        Self { name, seen, before }
    }

    /// What is in it since then.
    fn written(&self) -> Option<Stamp> {
        Stamp::of(&self.seen).filter(|now| now.size > 0 && Some(*now) != self.before)
    }
}

/// What shows that a file was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    written: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let of = |meta: Metadata| Self {
            inode: meta.ino(),
            size: meta.size(),
            written: (meta.mtime(), meta.mtime_nsec()),
        };
        fs::metadata(path).ok().filter(Metadata::is_file).map(of)
    }
}

impl FlightRecorder {
    /// Asks the recorder of a process to write. `None`: it has none that listens to a pipe.
    fn trigger(target: &StackTarget, has_recorder: &dyn Fn()) -> Option<Self> {
        let environment = environment(target.pid);
        let pipe = value(&environment, PIPE)?;
        has_recorder();
        let pipe = format!("{pipe}{}.pipe", target.rank);
        let files = prefixes(&environment).into_iter();
        let files = files.map(|prefix| Output::new(target.pid, format!("{prefix}{}", target.rank))).collect();
        let asked = ask(&seen_from_here(target.pid, &pipe)).map_err(|error| format!("{pipe}: {error}"));
        Some(Self { rank: target.rank, files, asked })
    }

    /// Waits until the file is written, for `limit` at most, copies it, and says what became of it.
    fn outcome(self, collect_in: &[PathBuf], limit: Duration) -> String {
        if let Err(why) = self.asked {
            return format!("NCCL flight recorder: {why}");
        }
        let began = Instant::now();
        let limit = limit.min(LONGEST_WAIT);
        let mut last = None;
        while began.elapsed() < limit {
            let now = self.files.iter().find_map(|file| Some((file, file.written()?)));
            match (now, last) {
                (Some((file, stamp)), Some((_, before))) if stamp == before => {
                    let collected = collect(&file.seen, self.rank, collect_in);
                    return format!("NCCL flight recorder: written to {}{collected}", file.name);
                }
                _ => last = now,
            }
            thread::sleep(INTERVAL);
        }
        match last {
            Some((file, _)) => format!("NCCL flight recorder: being written to {}", file.name),
            None => {
                let names: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
                let limit = limit.as_secs_f64();
                format!("NCCL flight recorder: {} was not written within {limit:.1} s", names.join(" or "))
            }
        }
    }
}

/// Where it may write, without the rank: which release of torch it is, is not known.
fn prefixes(environment: &[u8]) -> Vec<String> {
    let [given, older] = NAMES.map(|name| value(environment, name));
    let mut prefixes = Vec::new();
    if given.is_none() && older.is_none() {
        let below = |folder: &str| format!("{}/{DEFAULT}", folder.trim_end_matches('/'));
        prefixes.extend(value(environment, "XDG_CACHE_HOME").map(|cache| below(&cache)));
        let home = value(environment, "HOME").unwrap_or_else(|| "/tmp".to_owned());
        prefixes.push(below(&format!("{}/.cache", home.trim_end_matches('/'))));
    }
    prefixes.extend(given);
    prefixes.push(older.unwrap_or_else(|| OLDER_DEFAULT.to_owned()));
    prefixes
}

/// Copies the file of a rank to the first of these directories that takes it, under the name that torch's analyser
/// looks for. Returns the end of a sentence.
fn collect(file: &Path, rank: u32, folders: &[PathBuf]) -> String {
    if folders.is_empty() {
        return String::new();
    }
    let content = match read(file) {
        Ok(content) => content,
        Err(error) => return format!(", not copied: {error}"),
    };
    let (written, mut refused) = (Stamp::of(file), String::new());
    for folder in folders {
        let path = folder.join(format!("{COPY}{rank}"));
        // It was written there.
        if written.is_some() && Stamp::of(&path) == written {
            return String::new();
        }
        match fs::create_dir_all(folder).and_then(|()| replace_unsynced(&path, &content)) {
            Ok(()) => return format!(", copied to {}", path.display()),
            Err(error) => refused = format!(", not copied to {}: {error}", path.display()),
        }
    }
    refused
}

/// The content of a file of another process, which may have been replaced by something else.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut content = Vec::new();
    opened.take(LARGEST_COPY + 1).read_to_end(&mut content)?;
    match u64::try_from(content.len()) {
        Ok(size) if size <= LARGEST_COPY => Ok(content),
        _ => Err(io::Error::other(format!("it is larger than {} MiB", LARGEST_COPY >> 20))),
    }
}

/// Writes one byte into a pipe that a process reads. Nothing else is written to, and nothing is waited for.
fn ask(pipe: &Path) -> Result<(), String> {
    let words = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENXIO) => "no process reads the pipe".to_owned(),
        _ => error.to_string(),
    };
    let is_pipe = |meta: Metadata| match meta.file_type().is_fifo() {
        true => Ok(()),
        false => Err("it is not a pipe".to_owned()),
    };
    // Before it is opened: to open a device may have an effect. And after, in case it was replaced.
    fs::metadata(pipe).map_err(words).and_then(is_pipe)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let mut opened = OpenOptions::new().write(true).custom_flags(flags).open(pipe).map_err(words)?;
    opened.metadata().map_err(words).and_then(is_pipe)?;
    opened.write_all(b"1").map_err(words)
}

/// A path of a process that may be in a container.
fn seen_from_here(pid: u32, path: &str) -> PathBuf {
    match path.strip_prefix('/') {
        Some(path) => PathBuf::from(format!("/proc/{pid}/root/{path}")),
        None => PathBuf::from(format!("/proc/{pid}/cwd/{path}")),
    }
}

fn environment(pid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) {
        // What was read until an error counts.
        let _partial = file.take(LONGEST_ENVIRONMENT).read_to_end(&mut bytes);
    }
    bytes
}

fn value(environment: &[u8], name: &str) -> Option<String> {
    let of = |entry: &[u8]| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok().filter(|value| !value.is_empty()).map(str::to_owned)
    };
    environment.split(|byte| *byte == 0).find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"XFILE=1\0FILE_NOT=2\0FILE=/tmp/a\0FILE=/tmp/b\0EMPTY=\0";
        assert_eq!(value(environment, "FILE"), Some("/tmp/a".to_owned()));
        assert_eq!(value(environment, "EMPTY"), None);
        assert_eq!(value(environment, "NONE"), None);
    }

    #[test]
    fn the_file_is_where_torch_writes_it() {
        for (environment, wanted) in [
            ("HOME=/root", &["/root/.cache/torch/comm_lib_trace_rank_", OLDER_DEFAULT][..]),
            ("", &["/tmp/.cache/torch/comm_lib_trace_rank_", OLDER_DEFAULT]),
            ("HOME=/", &["/.cache/torch/comm_lib_trace_rank_", OLDER_DEFAULT]),
            (
                "HOME=/h\0XDG_CACHE_HOME=/c/",
                &["/c/torch/comm_lib_trace_rank_", "/h/.cache/torch/comm_lib_trace_rank_", OLDER_DEFAULT],
            ),
            ("HOME=/h\0TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/a_", &["/a_"]),
            ("TORCH_FR_DUMP_TEMP_FILE=/b_", &["/b_", OLDER_DEFAULT]),
            ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/a_\0TORCH_FR_DUMP_TEMP_FILE=/b_", &["/b_", "/a_"]),
        ] {
            assert_eq!(prefixes(environment.as_bytes()), wanted, "{environment}");
        }
    }

    #[test]
    fn a_recorder_that_does_not_answer_is_not_waited_for() {
        let (release, hang) = mpsc::channel::<()>();
        let asking = Asking::start_with(move |_| {
            let _released = hang.recv();
            None
        });
        let said = asking.unwrap().outcome(Duration::from_millis(10)).unwrap();
        assert!(said.starts_with("environment of the process: not read within "), "{said}");
        drop(release);
        assert_eq!(Asking::start_with(|_| None).unwrap().outcome(LONGEST_WAIT), None);
        // The process has one, whose files do not answer.
        let (release, hang) = mpsc::channel::<()>();
        let asking = Asking::start_with(move |has_recorder| {
            has_recorder();
            let _released = hang.recv();
            None
        });
        let said = asking.unwrap().outcome(Duration::from_secs(1)).unwrap();
        assert!(said.starts_with("NCCL flight recorder: no answer within "), "{said}");
        drop(release);
    }

    #[test]
    fn what_cannot_be_copied_is_said_and_what_is_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (file, to) = (folder.path().join("trace_7"), folder.path().join("stacks"));
        let folders = [to.clone()];
        let copy = to.join("nccl_trace_rank_7");
        assert_eq!(collect(&file, 7, &folders), ", not copied: No such file or directory (os error 2)");
        fs::write(&file, "events").unwrap();
        assert_eq!(collect(&file, 7, &[]), "");
        assert_eq!(collect(&file, 7, &folders), format!(", copied to {}", copy.display()));
        assert_eq!(collect(&copy, 7, &folders), "");
        assert_eq!(fs::read_to_string(&copy).unwrap(), "events");
        fs::File::create(&file).unwrap().set_len(LARGEST_COPY + 1).unwrap();
        assert_eq!(collect(&file, 7, &folders), ", not copied: it is larger than 64 MiB");
        fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(collect(&file, 7, &folders), ", not copied: it is not a file");
        assert_eq!(fs::read_to_string(&copy).unwrap(), "events");
    }

    #[test]
    fn nothing_but_a_pipe_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "whole").unwrap();
        assert_eq!(ask(&file), Err("it is not a pipe".to_owned()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "whole");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(ask(&pipe), Err("no process reads the pipe".to_owned()));
        let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        assert_eq!(ask(&pipe), Ok(()));
        let mut byte = [0; 2];
        assert_eq!(reader.read(&mut byte).unwrap(), 1);
        assert!(ask(&folder.path().join("none")).is_err());
    }
}
