//! What the kernel knows of a process that declares no progress: its CPU time and its output.

use std::{fs::File, io::Read as _};

/// More than either file has: names of processes are short, and numbers have 20 digits.
const LONGEST: u64 = 4096;

/// Both only grow while a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// CPU time of all its threads in user and in kernel mode, in clock ticks (`sysconf(_SC_CLK_TCK)`, 100 a second).
    pub cpu_ticks: u64,
    /// Bytes that it has given to `write` and the like: to files, pipes and terminals, and no messages of sockets.
    pub written_bytes: u64,
}

/// Returns the activity of a process, or nothing where it has ended, or `/proc` shows it to other users only.
#[must_use]
pub fn activity(pid: u32) -> Option<Activity> {
    Some(Activity {
        cpu_ticks: cpu_ticks(&read(pid, "stat")?)?,
        written_bytes: written_bytes(&read(pid, "io")?)?,
    })
}

fn read(pid: u32, file: &str) -> Option<String> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/{file}")).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    // The name of a process is its own choice.
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name, in parentheses, may have spaces and parentheses too. After it: the third field and on.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    user.checked_add(fields.next()?.parse().ok()?)
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
        assert_eq!(cpu_ticks(stat), Some(56));
        for bad in ["", "12 (a", "12 (a) S 3 4", "12 (a) S 3 4 5 0 -1 4194560 1 2 3 4 x 6 7"] {
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

    #[test]
    fn output_and_cpu_time_of_a_process_grow() {
        let script =
            "while read -r _; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo 0123456789; done";
        let mut sh = Command::new("sh");
        let mut child = sh.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        ask(&mut child, &mut output);
        let first = activity(child.id()).unwrap();
        let mut last = first;
        let mut lines = 0;
        while last.cpu_ticks == first.cpu_ticks {
            ask(&mut child, &mut output);
            lines += 1;
            assert!(lines < 10_000, "{last:?}");
            last = activity(child.id()).unwrap();
        }
        assert_eq!(last.written_bytes, first.written_bytes + 11 * lines);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(activity(child.id()), None);
    }
}
