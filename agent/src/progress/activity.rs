//! What the kernel knows of a process that declares no progress: its CPU time and its output.

use std::{
    fs::File,
    io::Read as _,
    thread,
    time::{Duration, Instant},
};

use processes::{program::that_work, tree};
use tokio::sync::oneshot::{self, error::TryRecvError};

/// More than the file has: numbers have 20 digits.
const LONGEST: u64 = 4096;

/// Enough to read /proc.
const STACK_BYTES: usize = 512 << 10;

/// How long the same processes are read. To find them, all processes of the host are looked at.
const SAME_PROGRAM: Duration = Duration::from_secs(5);

/// What one process has used, or several of them together. A value is missing where it cannot be read of any of them:
/// `/proc` may show it to other users only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Activity {
    /// CPU time of all its threads, and of its children that have been waited for, in user and in kernel mode, in clock
    /// ticks (`sysconf(_SC_CLK_TCK)`, 100 a second).
    pub(crate) cpu_ticks: Option<u64>,
    /// Bytes that it, and its children that have been waited for, have given to `write` and the like: to files, pipes and
    /// terminals, and no messages of sockets.
    pub(crate) written_bytes: Option<u64>,
}

impl Activity {
    fn with(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        Self {
            cpu_ticks: sum(self.cpu_ticks, other.cpu_ticks),
            written_bytes: sum(self.written_bytes, other.written_bytes),
        }
    }
}

/// Whose activity is that of a worker: a shell only waits for the program that trains, and what that has started, such as a
/// monitor, does not train.
#[derive(Debug, Clone)]
struct Whose {
    pids: Vec<i32>,
    since: Instant,
}

impl Whose {
    fn of(worker: i32) -> Self {
        Self { pids: that_work(worker), since: Instant::now() }
    }
}

/// Reads the activity of one worker, in a thread of its own: what is read of a process may wait for the file system of the
/// program that it is being replaced by.
#[derive(Debug)]
pub(crate) struct ActivityReader {
    worker: i32,
    latest: Activity,
    whose: Option<Whose>,
    /// What is being read now.
    reading: Option<oneshot::Receiver<(Whose, Activity)>>,
}

impl ActivityReader {
    pub(crate) const fn new(worker: i32) -> Self {
        Self { worker, latest: Activity { cpu_ticks: None, written_bytes: None }, whose: None, reading: None }
    }

    /// The newest activity that is known, which is that of the call before. Never waits, and has it read anew; as long
    /// as that takes, no other read is begun.
    pub(crate) fn next(&mut self) -> Activity {
        match self.reading.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return self.latest,
            Some(Ok((whose, activity))) => (self.whose, self.latest) = (Some(whose), activity),
            Some(Err(TryRecvError::Closed)) | None => {}
        }
        let (send, reading) = oneshot::channel();
        let (worker, whose) = (self.worker, self.whose.clone());
        let read = move || {
            let known = whose.filter(|whose| whose.since.elapsed() < SAME_PROGRAM);
            let whose = known.unwrap_or_else(|| Whose::of(worker));
            let activity = whose.pids.iter().fold(Activity::default(), |sum, pid| sum.with(activity(*pid)));
            let _ended = send.send((whose, activity));
        };
        // Without room for a thread it is read the next time.
        let started = thread::Builder::new().name("activity".into()).stack_size(STACK_BYTES).spawn(read);
        self.reading = started.is_ok().then_some(reading);
        self.latest
    }
}

fn activity(pid: i32) -> Activity {
    Activity {
        cpu_ticks: tree::cpu_ticks(pid),
        written_bytes: read(pid, "io").as_deref().and_then(written_bytes),
    }
}

fn read(pid: i32, file: &str) -> Option<String> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/{file}")).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn written_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("wchar:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write as _},
        process::{Child, Command, Stdio},
    };

    use super::*;

    #[test]
    fn output_is_that_of_all_calls() {
        assert_eq!(written_bytes("rchar: 1\nwchar: 20\nsyscr: 3\n"), Some(20));
        assert_eq!(written_bytes("rchar: 1\nwchar: \n"), None);
    }

    /// Asks for a line and waits until it is there.
    fn ask(child: &mut Child, output: &mut impl BufRead) {
        let mut line = String::new();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "0123456789\n");
    }

    /// The activity of now: that of a read which has begun since.
    async fn now(reader: &mut ActivityReader) -> Activity {
        for _ in 0..2 {
            let _before = reader.next();
            while reader.reading.as_ref().is_some_and(oneshot::Receiver::is_empty) {
                tokio::task::yield_now().await;
            }
        }
        reader.next()
    }

    fn piped(program: &str, arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    }

    /// That of the child of a shell which only waits for it.
    #[tokio::test]
    async fn output_and_cpu_time_of_what_a_shell_has_started_grow() {
        let script =
            "while read -r _; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo 0123456789; done";
        let (mut child, mut output) = piped("sh", &["-c", "sh -c \"$1\"; true", "sh", script]);
        ask(&mut child, &mut output);
        let mut reader = ActivityReader::new(i32::try_from(child.id()).unwrap());
        let first = now(&mut reader).await;
        let mut last = first;
        let mut lines = 0;
        while last.cpu_ticks == first.cpu_ticks {
            ask(&mut child, &mut output);
            lines += 1;
            assert!(lines < 10_000, "{last:?}");
            last = now(&mut reader).await;
        }
        assert_eq!(last.written_bytes, first.written_bytes.map(|bytes| bytes + 11 * lines));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(now(&mut reader).await, Activity::default());
    }

    /// Such as a monitor: the program itself may hang.
    #[tokio::test]
    async fn output_of_a_helper_is_not_that_of_its_worker() {
        let helper = "while read -r _; do echo 0123456789; done";
        let python = format!("import subprocess\nsubprocess.run(['sh', '-c', {helper:?}])");
        let shell = "python3 -c \"$1\"; true";
        for (program, arguments) in [("python3", &["-c", &python][..]), ("sh", &["-c", shell, "sh", &python])]
        {
            let (mut child, mut output) = piped(program, arguments);
            ask(&mut child, &mut output);
            let mut reader = ActivityReader::new(i32::try_from(child.id()).unwrap());
            let first = now(&mut reader).await;
            ask(&mut child, &mut output);
            assert!(first.written_bytes.is_some());
            assert_eq!(now(&mut reader).await.written_bytes, first.written_bytes, "{program}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    /// The file system of a program that is being executed may hang.
    #[tokio::test]
    async fn a_read_that_hangs_is_not_waited_for() {
        let (hanging, reading) = oneshot::channel();
        let known = Activity { cpu_ticks: Some(3), written_bytes: None };
        let own = i32::try_from(std::process::id()).unwrap();
        let mut reader = ActivityReader { latest: known, reading: Some(reading), ..ActivityReader::new(own) };
        for _ in 0..3 {
            assert_eq!(reader.next(), known);
        }
        drop(hanging);
        assert_ne!(now(&mut reader).await, known);
    }

    /// A process of another user shows its CPU time and no output.
    #[test]
    fn a_value_that_cannot_be_read_costs_no_other() {
        let known = Activity { cpu_ticks: Some(3), written_bytes: Some(5) };
        let without_output = Activity { cpu_ticks: Some(7), written_bytes: None };
        let together = Activity { cpu_ticks: Some(10), written_bytes: Some(5) };
        assert_eq!(known.with(without_output), together);
        assert_eq!(without_output.with(known), together);
        assert_eq!(without_output.with(Activity::default()), without_output);
    }
}
