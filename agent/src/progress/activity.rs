//! What the kernel knows of a process that declares no progress: its CPU time and its output.

use std::{fs::File, io::Read as _};

use processes::tree::{self, Process};

/// More than either file has: names of processes are short, and numbers have 20 digits.
const LONGEST: u64 = 4096;

/// What one process has used, or several of them together. A value is missing where it cannot be read of any of them:
/// `/proc` may show it to other users only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// CPU time of all its threads, and of its children that have been waited for, in user and in kernel mode, in clock
    /// ticks (`sysconf(_SC_CLK_TCK)`, 100 a second).
    pub cpu_ticks: Option<u64>,
    /// Bytes that it, and its children that have been waited for, have given to `write` and the like: to files, pipes and
    /// terminals, and no messages of sockets.
    pub written_bytes: Option<u64>,
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

/// Returns the activity of each of these processes and of all below it: the worker may be a shell that only waits for the
/// program that trains.
#[must_use]
pub fn activity_below(pids: &[i32]) -> Vec<Activity> {
    let below = tree::below_each(pids);
    let of_tree = |(pid, below): (&i32, Vec<Process>)| {
        let pids = below.iter().map(|process| process.pid);
        pids.fold(activity(*pid), |sum, pid| sum.with(activity(pid)))
    };
    pids.iter().zip(below).map(of_tree).collect()
}

fn activity(pid: i32) -> Activity {
    Activity {
        cpu_ticks: read(pid, "stat").as_deref().and_then(cpu_ticks),
        written_bytes: read(pid, "io").as_deref().and_then(written_bytes),
    }
}

fn read(pid: i32, file: &str) -> Option<String> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/{file}")).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    // The name of a process is its own choice.
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name, in parentheses, may have spaces and parentheses too. After it: the third field and on.
    let fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    // utime, stime, cutime, cstime.
    let times: Vec<u64> = fields.skip(11).take(4).map(str::parse).collect::<Result<_, _>>().ok()?;
    (times.len() == 4).then(|| times.into_iter().fold(0, u64::saturating_add))
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
    fn the_name_of_a_process_may_have_parentheses() {
        let stat = "12 (a) 1 (b c) S 3 4 5 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 987 1000 10";
        assert_eq!(cpu_ticks(stat), Some(50 + 6 + 7 + 8));
        for bad in [
            "",
            "12 (a",
            "12 (a) S 3 4",
            "12 (a) S 3 4 5 0 -1 4194560 1 2 3 4 50 6 7",
            "12 (a) S 3 4 5 0 -1 4194560 1 2 3 4 x 6 7",
        ] {
            assert_eq!(cpu_ticks(bad), None, "{bad}");
        }
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

    /// That of the child of a shell which only waits for it.
    #[test]
    fn output_and_cpu_time_of_what_a_process_has_started_grow() {
        let script =
            "while read -r _; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo 0123456789; done";
        let mut sh = Command::new("sh");
        let wrapper = ["-c", "sh -c \"$1\"; true", "sh", script];
        let mut child = sh.args(wrapper).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        ask(&mut child, &mut output);
        let pid = i32::try_from(child.id()).unwrap();
        let now = || activity_below(&[pid])[0];
        let first = now();
        let mut last = first;
        let mut lines = 0;
        while last.cpu_ticks == first.cpu_ticks {
            ask(&mut child, &mut output);
            lines += 1;
            assert!(lines < 10_000, "{last:?}");
            last = now();
        }
        assert_eq!(last.written_bytes, first.written_bytes.map(|bytes| bytes + 11 * lines));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(now(), Activity::default());
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
