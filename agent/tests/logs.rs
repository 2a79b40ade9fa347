//! The output path with real pipes, real threads and real child processes.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use agent::{
    Console, Drained, GenerationLogs, LogConfig, LogDir, LogError, Logs, Stream, Streams, TAIL_BYTES,
};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    pty::{OpenptyResult, openpty},
    sys::{
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

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG_TIMEOUT, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
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

/// Writes 3000 lines of many lengths to both streams, in pieces independent of lines.
const NOISE: &str = r#"
import os, random, sys, threading
rank = int(sys.argv[1])
def noise(fd):
    r = random.Random(rank * 10 + fd)
    data = b"".join(b"%d %d %d " % (fd, rank, i) + bytes([97 + i % 26]) * r.randrange(400) + b"\n" for i in range(3000))
    at = 0
    while at < len(data):
        at += os.write(fd, data[at:at + r.randrange(1, 9000)])
threads = [threading.Thread(target=noise, args=(fd,)) for fd in (1, 2)]
for t in threads: t.start()
for t in threads: t.join()
"#;

#[test]
fn eight_noisy_workers_lose_no_byte_and_split_no_line() {
    let folder = tempfile::tempdir().unwrap();
    // Both streams of the launcher are one pipe, as after `2>&1`.
    let (screen, end) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let console = Console::new(end.try_clone().unwrap(), end);
    let seen = reader(screen);
    let mut logs = logs(tee(&folder, BOTH, 8), console.clone());
    let mut generation = open(&mut logs, 0, 8);
    let workers: Vec<Child> = (0..8).map(|rank| python(&mut generation, rank, NOISE)).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    assert!(console.flush(LONG_TIMEOUT));
    let files: Vec<_> = (0..8).map(|rank| generation.log_files(LocalRank(rank))).collect();
    drop((generation, logs, console));

    let seen = seen.join().unwrap();
    assert_eq!(lines(&seen).len(), 8 * 2 * 3000);
    for (rank, (out, err)) in files.into_iter().enumerate() {
        let (out, err) = (fs::read(out.unwrap()).unwrap(), fs::read(err.unwrap()).unwrap());
        assert_eq!((lines(&out).len(), lines(&err).len()), (3000, 3000));
        assert!(lines_of(&seen, &format!("[default{rank}]:1 ")) == stripped(&out, b"1 "), "rank {rank}");
        assert!(lines_of(&seen, &format!("[default{rank}]:2 ")) == stripped(&err, b"2 "), "rank {rank}");
    }
}

fn stripped(file: &[u8], start: &[u8]) -> Vec<u8> {
    lines(file).iter().flat_map(|line| line.strip_prefix(start).unwrap()).copied().collect()
}

#[test]
fn unprefixed_standard_error_of_eight_workers_keeps_its_lines_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, err) = Screen::new().read();
    let mut logs = logs(config(&folder, 8), console.clone());
    let mut generation = open(&mut logs, 0, 8);
    let script = r#"
import os, sys
for i in range(2000):
    os.write(2, b"rank%s \xff %d\n" % (sys.argv[1].encode(), i))
"#;
    let workers: Vec<Child> = (0..8).map(|rank| python(&mut generation, rank, script)).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    drop((generation, logs, console));
    let seen = err.join().unwrap();
    assert_eq!(lines(&seen).len(), 8 * 2000);
    for rank in 0..8 {
        let expected: Vec<u8> =
            (0..2000).flat_map(|i| [b" \xff ", format!("{i}\n").as_bytes()].concat()).collect();
        assert!(lines_of(&seen, &format!("rank{rank}")) == expected, "rank {rank}");
    }
}

#[test]
fn a_stuck_console_blocks_the_worker_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let console = screen.console.clone();
    let mut logs = logs(tee(&folder, BOTH, 2), console.clone());
    let mut generation = open(&mut logs, 0, 2);
    let endless = "while :; do echo 0123456789012345678901234567890123456789; done";
    let mut worker = shell(&mut generation, 0, endless);
    let mut other = shell(&mut generation, 1, "echo quiet; echo words >&2");
    let file = generation.log_files(RANK_0).0.unwrap();
    // A full queue of 1 MiB, less the prefixes.
    wait_until("the file to grow", || length(&file) > 700 << 10);
    assert!(other.wait().unwrap().success(), "a worker that prints little is not held up");

    let start = Instant::now();
    (0..100_000).for_each(|i| console.print(format!("message {i}")));
    assert!(!console.flush(Duration::from_millis(10)));
    worker.kill().unwrap();
    worker.wait().unwrap();
    let drained = drain(&mut generation, Duration::from_millis(100));
    assert!(start.elapsed() < LONG_TIMEOUT);
    assert_eq!(drained.cut_off, [], "its pipe was read to the end, into the file");
    // The next generation starts nevertheless, and its files are written.
    let mut next = open(&mut logs, 1, 2);
    let mut worker = shell(&mut next, 0, "echo alive");
    assert!(worker.wait().unwrap().success());
    let next_file = next.log_files(RANK_0).0.unwrap();
    wait_until("the next file", || length(&next_file) == 6);
    let lost = drained.lost + drain(&mut next, Duration::from_millis(100)).lost;

    // The console is read again: everything queued arrives, also the last messages and the number of dropped ones.
    let (out, err) = (reader(screen.out), reader(screen.err));
    assert!(console.flush(LONG_TIMEOUT));
    drop((generation, next, logs, console, screen.console));
    let out = lines_of(&out.join().unwrap(), "[default0]:");
    let expected = fs::read(&file).unwrap();
    let missing = expected.len() + b"alive\n".len() - out.len();
    assert!(missing as u64 <= lost, "{missing} are missing, {lost} were counted");
    let err = String::from_utf8(err.join().unwrap()).unwrap();
    assert!(err.contains("earlier messages of the launcher were dropped"), "{err}");
    assert!(err.contains("\nmessage 99999\n"));
}

#[test]
fn back_pressure_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let console = screen.console.clone();
    let mut logs = logs(tee(&folder, OUT, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    // 16 MB are more than the queue, the pipes and the buffers hold.
    let mut worker = python(&mut generation, 0, "for i in range(200000): print(f'{i:079}')");
    let file = generation.log_files(RANK_0).0.unwrap();
    wait_until("the queue to fill", || length(&file) > 900 << 10);
    assert_eq!(worker.try_wait().unwrap(), None);
    let out = reader(screen.out);
    assert!(worker.wait().unwrap().success());
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    drop((generation, logs, console, screen.console));
    let expected: String = (0..200_000).map(|i| format!("{i:079}\n")).collect();
    assert!(fs::read(&file).unwrap() == expected.as_bytes());
    assert!(lines_of(&out.join().unwrap(), "[default0]:") == expected.as_bytes());
}

#[test]
fn a_non_blocking_console_gets_everything() {
    let folder = tempfile::tempdir().unwrap();
    let (screen, end) = pipe2(OFlag::O_CLOEXEC).unwrap();
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let console = Console::new(end.try_clone().unwrap(), end);
    let mut logs = logs(tee(&folder, OUT, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let mut worker = python(&mut generation, 0, "for i in range(40000): print(f'{i:079}')");
    let file = generation.log_files(RANK_0).0.unwrap();
    wait_until("the queue to fill", || length(&file) > 900 << 10);
    let seen = reader(screen);
    assert!(worker.wait().unwrap().success());
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    drop((generation, logs, console));
    assert_eq!(lines(&seen.join().unwrap()).len(), 40_000);
}

#[test]
fn workers_survive_a_closed_console() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let console = screen.console.clone();
    drop((screen.out, screen.err));
    let mut logs = logs(tee(&folder, OUT, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let mut worker = python(&mut generation, 0, "for i in range(100000): print(f'{i:079}')");
    assert!(worker.wait().unwrap().success());
    console.print("not read");
    assert!(console.flush(LONG_TIMEOUT), "there is nothing to wait for");
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    assert_eq!(length(&generation.log_files(RANK_0).0.unwrap()), 80 * 100_000);
}

#[test]
fn a_tee_keeps_bytes_that_are_not_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let (console, out, _err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let mut worker = python(&mut generation, 0, r#"import os; os.write(1, b"\xff\x00\xfe\r\n\xc3")"#);
    assert!(worker.wait().unwrap().success());
    drain(&mut generation, LONG_TIMEOUT);
    assert_eq!(fs::read(generation.log_files(RANK_0).0.unwrap()).unwrap(), b"\xff\x00\xfe\r\n\xc3");
    drop((generation, logs));
    assert_eq!(out.join().unwrap(), b"[default0]:\xff\x00\xfe\n[default0]:\xc3\n");
}

#[test]
fn the_last_state_of_a_progress_bar_is_always_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, err) = Screen::new().read();
    let mut logs = logs(tee(&folder, ERR, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let script = r#"
import os
for i in range(101): os.write(2, b"\r%3d%%" % i)
os.write(2, b"\nsaved\n\r 50%")
"#;
    assert!(python(&mut generation, 0, script).wait().unwrap().success());
    drain(&mut generation, LONG_TIMEOUT);
    drop((generation, logs));
    let seen = String::from_utf8(err.join().unwrap()).unwrap();
    // States in between are shown when this takes long.
    assert!(seen.ends_with("[default0]:100%\n[default0]:saved\n[default0]: 50%\n"), "{seen}");
    assert!(seen.lines().count() < 50);
}

#[test]
fn a_grandchild_that_holds_the_pipe_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let (console, out, err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 2), console);
    let mut generation = open(&mut logs, 0, 2);
    let script = "sleep 600 & echo $!; printf unfinished; echo oh no >&2";
    assert!(shell(&mut generation, 0, script).wait().unwrap().success());
    assert!(shell(&mut generation, 1, "echo fine").wait().unwrap().success());

    let start = Instant::now();
    let drained = drain(&mut generation, Duration::from_millis(300));
    let take_output = start.elapsed();
    let held = vec![(RANK_0, Stream::Out), (RANK_0, Stream::Err)];
    assert_eq!(drained, Drained { cut_off: held, lost: 0 });
    assert!(take_output >= Duration::from_millis(300) && take_output < LONG_TIMEOUT, "{take_output:?}");
    assert_eq!(generation.stderr_tail(RANK_0).unwrap(), b"oh no\n");
    let file = fs::read_to_string(generation.log_files(RANK_0).0.unwrap()).unwrap();
    let pid = file.lines().next().unwrap();
    assert_eq!(file, format!("{pid}\nunfinished"));
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    let expected = format!("[default0]:{pid}\n[default0]:unfinished\n");
    drop((generation, logs));
    let out = String::from_utf8(out.join().unwrap()).unwrap();
    assert!(out.replace("[default1]:fine\n", "") == expected, "{out}");
    assert_eq!(err.join().unwrap(), b"oh no\n");
}

#[test]
fn a_runtime_is_not_blocked_by_a_drain() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let stdio = generation.take_stdio(RANK_0).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let turns = runtime.block_on(async {
        let ticking = async {
            for turn in 0_u32.. {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if turn == 20 {
                    return turn;
                }
            }
            0
        };
        // The worker's end stays open, so the drain takes all of its timeout.
        let drained = generation.drain(LONG_TIMEOUT);
        let turns = ticking.await;
        drop(stdio);
        assert_eq!(drained.await.unwrap(), Drained::default());
        turns
    });
    assert_eq!(turns, 20);
}

#[test]
fn a_dropped_generation_closes_its_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let stdio = generation.take_stdio(RANK_0).unwrap();
    drop(generation);
    let mut end = File::from(stdio.out.unwrap());
    wait_until("the reader to go", || end.write(b"x\n").is_err());
}

#[test]
fn each_generation_has_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let config = LogConfig {
        redirects: vec![OUT, Streams::NONE],
        tee: vec![Streams::NONE, ERR],
        ..config(&folder, 2)
    };
    let mut logs = logs(config, console);
    let run_dir = logs.run_dir().unwrap().to_owned();
    assert!(run_dir.starts_with(folder.path()));
    for (restart_count, name) in [(0, "attempt_0"), (0, "attempt_0.1"), (1, "attempt_1"), (0, "attempt_0.2")]
    {
        let mut generation = open(&mut logs, restart_count, 2);
        let mut worker = shell(&mut generation, 0, &format!("echo {name}"));
        assert!(worker.wait().unwrap().success());
        drain(&mut generation, LONG_TIMEOUT);
        let attempt = run_dir.join(name);
        assert_eq!(generation.error_file(LocalRank(1)), attempt.join("1/error.json"));
        assert_eq!(generation.log_files(RANK_0), (Some(attempt.join("0/stdout.log")), None));
        assert_eq!(generation.log_files(LocalRank(1)), (None, Some(attempt.join("1/stderr.log"))));
    }
    let expected = ["0", "0/stdout.log", "1", "1/stderr.log"];
    for name in ["attempt_0", "attempt_0.1", "attempt_0.2", "attempt_1"] {
        let attempt = run_dir.join(name);
        assert_eq!(fs::read_to_string(attempt.join("0/stdout.log")).unwrap(), format!("{name}\n"));
        assert_eq!(tree(&attempt), expected.map(|path| attempt.join(path)).into());
    }
}

fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.insert(path);
    }
    found
}

#[test]
fn without_a_log_dir_there_are_no_files_and_output_stays_on_the_console() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, err) = Screen::new().read();
    let config = LogConfig {
        dir: LogDir::Nowhere,
        redirects: vec![BOTH],
        stdout_filters: vec!["x".into()],
        ..tee(&folder, BOTH, 1)
    };
    let mut logs = logs(config, console);
    assert_eq!(logs.run_dir(), None);
    let mut generation = open(&mut logs, 0, 1);
    assert_eq!(generation.error_file(RANK_0), PathBuf::new());
    assert_eq!(generation.log_files(RANK_0), (None, None));
    assert!(shell(&mut generation, 0, "echo seen >&2").wait().unwrap().success());
    drain(&mut generation, LONG_TIMEOUT);
    drop((generation, logs));
    assert_eq!(err.join().unwrap(), b"seen\n");
}

#[test]
fn a_log_dir_that_is_a_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let config = LogConfig { dir: LogDir::At(path.clone()), ..config(&folder, 1) };
    let error = Logs::new(config, "job", "default", Screen::new().console).unwrap_err();
    assert!(matches!(&error, LogError::NotADirectory { path: named } if *named == path));
}

#[test]
fn descriptors_can_be_taken_once_and_only_for_known_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let mut logs = logs(config(&folder, 1), Screen::new().console);
    let mut generation = open(&mut logs, 0, 1);
    let stdio = generation.take_stdio(RANK_0).unwrap();
    assert!(stdio.out.is_none(), "standard output is inherited");
    assert!(stdio.err.is_some());
    assert!(generation.take_stdio(RANK_0).is_none());
    assert!(generation.take_stdio(LocalRank(1)).is_none());
}

#[test]
fn exactly_the_last_64_kib_of_standard_error_are_kept() {
    let script = r#"
import os
data = bytes(i * 7 % 251 for i in range(200001))
at = 0
while at < len(data): at += os.write(2, data[at:at + 5000])
"#;
    let bytes: Vec<u8> = (0..200_001_u32).map(|i| (i * 7 % 251) as u8).collect();
    let folder = tempfile::tempdir().unwrap();
    let hidden = Some(BTreeSet::new());
    for config in [
        config(&folder, 1),
        LogConfig { console_ranks: hidden, ..config(&folder, 1) },
        LogConfig { redirects: vec![ERR], ..config(&folder, 1) },
        tee(&folder, ERR, 1),
    ] {
        let label = format!("{config:?}");
        let (console, _out, err) = Screen::new().read();
        let is_hidden = config.console_ranks.is_some();
        let mut logs = logs(config, console);
        let mut generation = open(&mut logs, 0, 1);
        assert_eq!(generation.stderr_tail(RANK_0).unwrap(), b"");
        assert!(python(&mut generation, 0, script).wait().unwrap().success());
        drain(&mut generation, LONG_TIMEOUT);
        assert!(generation.stderr_tail(RANK_0).unwrap() == bytes[bytes.len() - TAIL_BYTES..], "{label}");
        drop((generation, logs));
        assert!(!is_hidden || err.join().unwrap().is_empty());
    }
    let config = LogConfig { keep_stderr_tail: false, ..config(&folder, 1) };
    let mut logs = logs(config, Screen::new().console);
    let mut generation = open(&mut logs, 0, 1);
    assert_eq!(generation.stderr_tail(RANK_0), None);
    assert!(generation.take_stdio(RANK_0).unwrap().err.is_none(), "standard error is inherited");
}

#[test]
fn filtered_lines_of_all_tee_d_ranks_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let config = LogConfig { stdout_filters: vec!["loss".into()], ..tee(&folder, BOTH, 2) };
    let mut logs = logs(config, console);
    let mut generation = open(&mut logs, 0, 2);
    let script = "i=0; while [ $i -lt 500 ]; do echo loss $i; echo noise; i=$((i+1)); done; echo loss >&2";
    let workers = [0, 1].map(|rank| shell(&mut generation, rank, script));
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    drain(&mut generation, LONG_TIMEOUT);
    let attempt = logs.run_dir().unwrap().join("attempt_0");
    let filtered = fs::read(attempt.join("filtered_stdout.log")).unwrap();
    let expected: String = (0..500).map(|i| format!("loss {i}\n")).collect();
    assert_eq!(lines(&filtered).len(), 1000);
    for rank in [0, 1] {
        assert!(lines_of(&filtered, &format!("[default{rank}]:")) == expected.as_bytes());
    }
    assert!(!attempt.join("filtered_stderr.log").exists());
}

#[test]
fn a_log_file_that_is_emptied_meanwhile_has_no_hole() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let config = LogConfig { redirects: vec![OUT], ..config(&folder, 1) };
    let mut logs = logs(config, console);
    let mut generation = open(&mut logs, 0, 1);
    let file = generation.log_files(RANK_0).0.unwrap();
    let script = r#"
import os, time
os.write(1, b"first\n")
while os.fstat(1).st_size: time.sleep(0.001)
os.write(1, b"second\n")
"#;
    let mut worker = python(&mut generation, 0, script);
    wait_until("the first line", || length(&file) == 6);
    File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    assert!(worker.wait().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), b"second\n");
}

/// A terminal of the test: the screen's end, and the launcher's end in raw mode, 111 x 33.
fn terminal() -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    let mut settings = tcgetattr(&slave).unwrap();
    cfmakeraw(&mut settings);
    tcsetattr(&slave, SetArg::TCSANOW, &settings).unwrap();
    for fd in [&master, &slave] {
        fcntl(fd, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).unwrap();
    }
    (File::from(master), slave)
}

#[test]
fn on_a_terminal_standard_error_is_a_terminal_for_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let (mut screen, end) = terminal();
    let console = Console::new(end.try_clone().unwrap(), end);
    let mut logs = logs(config(&folder, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let script = r#"
import os, sys, time
os.setsid()
def say(text): os.write(2, text.encode())
size = os.get_terminal_size(2)
say(f"{os.isatty(2)} {size.columns}x{size.lines}\n")
try:
    os.open("/dev/tty", os.O_RDWR)
    say("controlling")
except OSError:
    say("not controlling")
os.write(2, b"\r 50%\r100%\xff\x03\x04\n")
while os.get_terminal_size(2) == size: time.sleep(0.001)
size = os.get_terminal_size(2)
say(f"{size.columns}x{size.lines}\n")
os.write(2, b"z" * 100000)
"#;
    let mut worker = python(&mut generation, 0, script);
    let before = b"True 111x33\nnot controlling\r 50%\r100%\xff\x03\x04\n";
    let mut seen = vec![0; before.len()];
    screen.read_exact(&mut seen).unwrap();
    assert_eq!(seen, before);

    let size = libc::winsize { ws_row: 20, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and TIOCSWINSZ reads one winsize.
    assert_eq!(unsafe { libc::ioctl(screen.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
    generation.resize();
    let after = [b"60x20\n".as_slice(), &[b'z'; 100_000]].concat();
    let mut seen = vec![0; after.len()];
    screen.read_exact(&mut seen).unwrap();
    assert!(seen == after);
    assert!(worker.wait().unwrap().success());
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    assert!(generation.stderr_tail(RANK_0).unwrap() == [b'z'; TAIL_BYTES]);
}

#[test]
fn a_prompt_and_the_launchers_messages_reach_the_screen_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let mut err = File::from(screen.err);
    let mut logs = logs(config(&folder, 1), screen.console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let mut end = File::from(generation.take_stdio(RANK_0).unwrap().err.unwrap());
    end.write_all(b"(Pdb) ").unwrap();
    let mut seen = [0; 6];
    err.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"(Pdb) ");
    // The launcher does not write into the unfinished line.
    screen.console.print("stopping");
    let mut seen = [0; 10];
    err.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"\nstopping\n");
}
