//! The output path with real pipes, real threads and real child processes.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod console;
mod files;
mod output;
mod pipes;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use agent::{
    Console, Drained, GenerationLogs, LogConfig, LogDir, LogError, Logs, Stream, Streams, TAIL_BYTES,
};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    pty::{OpenptyResult, openpty},
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify},
        signal::{Signal, kill},
        termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr},
    },
    unistd::{Pid, pipe2},
};
use rules::{LocalRank, Rank};
use tempfile::TempDir;

/// For waits that are short unless something is broken.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

const BOTH: Streams = Streams { out: true, err: true };
const OUT: Streams = Streams { out: true, err: false };
const ERR: Streams = Streams { out: false, err: true };

const RANK_0: LocalRank = LocalRank(0);

/// A console whose other ends are held by the test.
struct Screen {
    console: Console,
    out: OwnedFd,
    err: OwnedFd,
}

impl Screen {
    fn new() -> Self {
        let (out, out_end) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let (err, err_end) = pipe2(OFlag::O_CLOEXEC).unwrap();
        Self { console: Console::new(out_end, err_end), out, err }
    }

    /// Starts to read; the handles return what was read until all writers are closed.
    fn read(self) -> (Console, JoinHandle<Vec<u8>>, JoinHandle<Vec<u8>>) {
        (self.console, reader(self.out), reader(self.err))
    }
}

fn reader(fd: OwnedFd) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        File::from(fd).read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// `workers` without redirects, tees or filters.
fn config(folder: &TempDir, workers: usize) -> LogConfig {
    LogConfig {
        dir: LogDir::At(folder.path().to_owned()),
        redirects: vec![Streams::NONE; workers],
        tee: vec![Streams::NONE; workers],
        prefix_template: "[${role_name}${local_rank}]:".into(),
        console_ranks: None,
        stdout_filters: Vec::new(),
        stderr_filters: Vec::new(),
        keep_stderr_tail: true,
    }
}

fn tee(folder: &TempDir, streams: Streams, workers: usize) -> LogConfig {
    LogConfig { tee: vec![streams; workers], ..config(folder, workers) }
}

fn open(logs: &mut Logs, restart_count: u32, workers: u32) -> GenerationLogs {
    let workers: Vec<_> = (0..workers).map(|i| (LocalRank(i), Rank(i + 10))).collect();
    logs.open(restart_count, &workers).unwrap()
}

fn logs(config: LogConfig, console: Console) -> Logs {
    Logs::new(config, "job", "default", console).unwrap()
}

/// Starts a worker with the descriptors of its generation.
fn start(generation: &mut GenerationLogs, local_rank: u32, command: &[&str]) -> Child {
    let stdio = generation.take_stdio(LocalRank(local_rank)).unwrap();
    let or_null = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
    Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(or_null(stdio.out))
        .stderr(or_null(stdio.err))
        .spawn()
        .unwrap()
}

fn python(generation: &mut GenerationLogs, local_rank: u32, script: &str) -> Child {
    let rank = local_rank.to_string();
    start(generation, local_rank, &["python3", "-S", "-c", script, &rank])
}

fn shell(generation: &mut GenerationLogs, local_rank: u32, script: &str) -> Child {
    start(generation, local_rank, &["sh", "-c", script])
}

fn drain(generation: &mut GenerationLogs, timeout: Duration) -> Drained {
    generation.drain(timeout).blocking_recv().unwrap()
}

/// Waits until a file is long enough.
fn await_length(path: &Path, is_enough: impl Fn(u64) -> bool) {
    let growth = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
    growth.add_watch(path, AddWatchFlags::IN_MODIFY).unwrap();
    while !is_enough(length(path)) {
        assert!(await_any(growth.as_fd(), PollFlags::POLLIN), "{} bytes", length(path));
        growth.read_events().unwrap();
    }
}

/// Waits until a descriptor is ready, and returns whether that came in time.
fn await_any(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    let timeout = PollTimeout::try_from(LONG_TIMEOUT).unwrap();
    loop {
        match poll(&mut [PollFd::new(fd, events)], timeout) {
            Err(Errno::EINTR) => {}
            ready => return ready.unwrap() > 0,
        }
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

/// The lines of one rank on the console, without their prefix.
fn lines_of(console: &[u8], prefix: &str) -> Vec<u8> {
    lines(console).iter().filter_map(|line| line.strip_prefix(prefix.as_bytes())).flatten().copied().collect()
}
