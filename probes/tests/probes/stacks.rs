//! Stacks of real processes, as an agent takes them.

mod odd;
mod refused;
mod unharmed;

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use probes::{StackTarget, StacksPlan, take_stacks};
use stacks::{RankDump, Thread};

use crate::support::{TIMEOUT, in_time, program};

/// A Python program that is killed when the test is over.
pub struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Python {
    /// Starts a program, which has a file of its own so that its frames have names, and waits for its first line.
    pub fn start(text: &str) -> Self {
        Self::with_environment(text, &[])
    }

    pub fn with_environment(text: &str, environment: &[(&str, &OsStr)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("train.py");
        fs::write(&file, text).unwrap();
        let mut command = Command::new("python3");
        command.arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut python = Self { child, stdin, stdout, _folder: folder };
        assert_eq!(python.line(), "ready");
        python
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Gives it a line.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
        self.stdin.flush().unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn target(&self) -> StackTarget {
        target(self.pid())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub fn target(pid: u32) -> StackTarget {
    let (started, step, host) = (None, Some(7), "node-3".into());
    StackTarget { rank: 3, world_size: 8, pid, started, step, host, may_be_wrapper: false }
}

pub fn plan(targets: Vec<StackTarget>) -> StacksPlan {
    StacksPlan { targets, native: true, collect_in: Vec::new(), limit: TIMEOUT, program: program() }
}

pub async fn dump(target: &StackTarget) -> RankDump {
    let dumps = in_time(take_stacks(plan(vec![target.clone()]))).await;
    let [dump] = <[RankDump; 1]>::try_from(dumps).unwrap();
    assert_eq!((dump.rank, dump.world_size, dump.pid), (3, 8, Some(target.pid)));
    assert_eq!((dump.step, dump.host.as_str()), (Some(7), "node-3"));
    dump
}

/// Dumps it until it is where it is going.
pub async fn dump_until(target: &StackTarget, is_there: impl Fn(&RankDump) -> bool) -> RankDump {
    let began = Instant::now();
    loop {
        let dump = dump(target).await;
        if is_there(&dump) {
            return dump;
        }
        assert!(began.elapsed() < TIMEOUT, "never there: {dump:#?}");
    }
}

/// The functions of a thread that are not of a library, innermost first.
pub fn own(thread: &Thread) -> Vec<&str> {
    let own = thread.frames.iter().filter(|frame| frame.file.ends_with("/train.py"));
    own.map(|frame| frame.function.as_str()).collect()
}

pub fn functions(thread: &Thread) -> Vec<&str> {
    thread.frames.iter().map(|frame| frame.function.as_str()).collect()
}

/// Whether the main thread is in this function of the program.
pub fn is_in(function: &'static str) -> impl Fn(&RankDump) -> bool {
    move |dump| dump.python.first().is_some_and(|thread| own(thread).first() == Some(&function))
}

/// Whether the main thread waits in this system call.
pub fn waits_in(calls: &'static [&'static str]) -> impl Fn(&RankDump) -> bool {
    move |dump| dump.syscall.as_deref().is_some_and(|call| calls.contains(&call))
}

#[tokio::test]
async fn a_sleep_in_a_function() {
    let python = Python::start(
        "import time\n\
         def inner():\n    time.sleep(1000)\n\
         def step():\n    inner()\n\
         print('ready', flush=True)\n\
         step()\n",
    );
    let dump =
        dump_until(&python.target(), waits_in(&["clock_nanosleep", "nanosleep", "select", "pselect6"])).await;
    assert_eq!(dump.state.as_deref(), Some("S (sleeping)"));
    assert_eq!(dump.notes, [""; 0]);
    assert!(!dump.gone);
    let main = &dump.python[0];
    assert_eq!((main.name.as_str(), dump.python.len()), ("MainThread", 1));
    assert_eq!(own(main), ["inner", "step", "<module>"]);
    let lines: Vec<_> = main.frames.iter().map(|frame| frame.line).collect();
    assert_eq!(lines, [Some(3), Some(5), Some(7)]);
    let native = &dump.native[0];
    assert!(native.frames.len() >= 4, "{native:#?}");
    assert!(native.frames[0].file.contains("/libc"), "{native:#?}");
    // The root is reached, through frames of the interpreter.
    assert!(native.frames.iter().any(|frame| frame.file.contains("python")), "{native:#?}");
    assert!(
        functions(native).iter().any(|name| ["_start", "__libc_start_main"].contains(name)),
        "{native:#?}"
    );
}

#[tokio::test]
async fn a_lock_that_is_never_released() {
    let python = Python::start(
        "import threading\n\
         lock = threading.Lock()\n\
         def save():\n    lock.acquire()\n    lock.acquire()\n\
         print('ready', flush=True)\n\
         save()\n",
    );
    let dump = dump_until(&python.target(), is_in("save")).await;
    let dump =
        if dump.syscall.is_some() { dump } else { dump_until(&python.target(), waits_in(&["futex"])).await };
    assert_eq!(dump.syscall.as_deref(), Some("futex"));
    assert_eq!(dump.python[0].frames[0].line, Some(5));
}

#[tokio::test]
async fn a_thread_that_is_stuck_has_its_name() {
    let python = Python::start(
        "import threading\n\
         def next_batch():\n    threading.Event().wait()\n\
         loader = threading.Thread(target=next_batch, name='loader')\n\
         loader.start()\n\
         def wait_for_data():\n    loader.join()\n\
         print('ready', flush=True)\n\
         wait_for_data()\n",
    );
    let dump = dump_until(&python.target(), is_in("wait_for_data")).await;
    let names: Vec<&str> = dump.python.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(names, ["MainThread", "loader"]);
    assert_eq!(own(&dump.python[1]), ["next_batch"]);
    assert_eq!(dump.native.len(), 2);
}

#[tokio::test]
async fn a_busy_loop_is_running() {
    let python = Python::start(
        "def spin():\n    n = 0\n    while True:\n        n += 1\n\
         print('ready', flush=True)\n\
         spin()\n",
    );
    let dump = dump_until(&python.target(), is_in("spin")).await;
    assert_eq!((dump.state.as_deref(), dump.syscall.as_deref()), (Some("R (running)"), None));
    assert_eq!(own(&dump.python[0]), ["spin", "<module>"]);
    assert!(!dump.native[0].frames.is_empty());
}

#[tokio::test]
async fn a_native_call_that_holds_the_interpreter() {
    let python = Python::start(
        "import ctypes\n\
         libc = ctypes.PyDLL(None)\n\
         def kernel():\n    libc.sleep(1000)\n\
         print('ready', flush=True)\n\
         kernel()\n",
    );
    let dump = dump_until(&python.target(), waits_in(&["clock_nanosleep", "nanosleep"])).await;
    assert_eq!(own(&dump.python[0]), ["kernel", "<module>"]);
    let native = functions(&dump.native[0]);
    assert!(native.contains(&"sleep"), "{native:?}");
}

#[tokio::test]
async fn a_deep_stack_comes_in_pieces_and_is_whole() {
    let python = Python::start(
        "import time\n\
         def fall(depth):\n    if depth == 0:\n        time.sleep(1000)\n    fall(depth - 1)\n\
         print('ready', flush=True)\n\
         fall(700)\n",
    );
    let dump =
        dump_until(&python.target(), |dump| dump.python.first().is_some_and(|main| main.frames.len() >= 702))
            .await;
    let main = &dump.python[0];
    assert_eq!(main.frames.len(), 702);
    assert_eq!((main.frames[0].line, main.frames[1].line), (Some(4), Some(5)));
    assert_eq!(main.frames[701].function, "<module>");
}

#[tokio::test]
async fn a_program_without_python_has_native_stacks() {
    let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
    let dump = dump_until(&target(sleep.id()), waits_in(&["clock_nanosleep", "nanosleep"])).await;
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert!(dump.python.is_empty());
    assert_eq!(dump.notes.len(), 1);
    assert!(
        dump.notes[0].starts_with("Python stacks: the process is not a Python program (/"),
        "{:?}",
        dump.notes
    );
    assert!(functions(&dump.native[0]).iter().any(|name| name.contains("nanosleep")), "{:?}", dump.native);
}

#[tokio::test]
async fn many_ranks_are_in_their_order_and_the_missing_one_is_gone() {
    let text = "import time\nprint('ready', flush=True)\ntime.sleep(1000)\n";
    let pythons: Vec<Python> = (0..3).map(|_| Python::start(text)).collect();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let pids = [pythons[2].pid(), ended.id(), pythons[0].pid(), pythons[1].pid()];
    let targets = pids.iter().zip(0..).map(|(pid, rank)| StackTarget { rank, ..target(*pid) });
    let mut plan = plan(targets.collect());
    plan.native = false;
    let dumps = in_time(take_stacks(plan)).await;
    let found: Vec<_> = dumps.iter().map(|dump| (dump.rank, dump.pid.unwrap(), dump.gone)).collect();
    let expected: Vec<_> = pids.iter().zip(0..).map(|(pid, rank)| (rank, *pid, rank == 1)).collect();
    assert_eq!(found, expected);
    assert_eq!(dumps[1].notes, [format!("process {} has ended", ended.id())]);
    assert!(dumps.iter().all(|dump| dump.gone || dump.python.len() == 1 && dump.native.is_empty()));
    assert!(in_time(take_stacks(self::plan(Vec::new()))).await.is_empty());
}

#[tokio::test]
async fn what_was_not_read_in_time_is_said() {
    let text = "import time\nprint('ready', flush=True)\ntime.sleep(1000)\n";
    let python = Python::start(text);
    let mut plan = plan(vec![python.target()]);
    plan.limit = Duration::from_millis(0);
    let dumps = in_time(take_stacks(plan)).await;
    let [note] = &dumps[0].notes[..] else { panic!("{dumps:?}") };
    assert!(note.ends_with("stacks: not read within 0 s"), "{note}");
    let mut plan = self::plan(vec![python.target()]);
    plan.program.path = Path::new("/none").to_owned();
    let dumps = in_time(take_stacks(plan)).await;
    assert_eq!(dumps[0].notes.len(), 1);
    assert!(dumps[0].notes[0].starts_with("state and stacks: cannot start the probe"), "{dumps:?}");
}
