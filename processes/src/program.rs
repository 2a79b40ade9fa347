//! The program that trains, where the worker is a shell or another program that has started it.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
};

use crate::tree::{self, Process};

/// A list of mappings is not longer.
const LONGEST_MAPS: u64 = 16 << 20;

/// A process, as far as the search for the Python program is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub pid: i32,
    pub parent: i32,
    pub is_python: bool,
}

/// Whether a process runs a Python interpreter, by the name of its program, or by a library of Python that is mapped. May
/// wait where the memory of the process cannot be looked at.
#[must_use]
pub fn is_python(process: &Process) -> bool {
    is_python_by_name(process) || (process.state != 'D' && has_python_mapped(process.pid))
}

/// Whether the program of a process is named like a Python interpreter. Does not wait.
#[must_use]
pub fn is_python_by_name(process: &Process) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid)).ok();
    let name = program.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    name.map_or_else(|| process.name.contains("python"), |name| name.contains("python"))
}

fn has_python_mapped(pid: i32) -> bool {
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return false };
    let mut lines = BufReader::new(file.take(LONGEST_MAPS)).split(b'\n').map_while(Result::ok);
    lines.any(|line| is_python_mapping(&String::from_utf8_lossy(&line)))
}

/// Whether a line of `/proc/PID/maps` is code of a file that is named like Python.
fn is_python_mapping(line: &str) -> bool {
    let is_code = line.split(' ').nth(1).is_some_and(|access| access.contains('x'));
    is_code && line.rsplit_once('/').is_some_and(|(_, name)| name.contains("python"))
}

/// The outermost Python program below a process; of several that are as near, that with the lowest number. `link` tells
/// of a member what it is.
pub fn outermost_python<T>(root: i32, members: &[T], link: impl Fn(&T) -> Link) -> Option<&T> {
    let mut level = vec![root];
    let mut seen = BTreeSet::from([root]);
    while !level.is_empty() {
        let is_below = |member: &&T| level.contains(&link(member).parent);
        let below: Vec<&T> = members.iter().filter(is_below).collect();
        let found =
            below.iter().filter(|member| link(member).is_python).min_by_key(|member| link(member).pid);
        if let Some(python) = found {
            return Some(python);
        }
        level = below.iter().map(|member| link(member).pid).filter(|pid| seen.insert(*pid)).collect();
    }
    None
}

/// Whose stacks are taken, where the worker has only started the program that trains: process id and name of both.
#[must_use]
pub fn whose_stacks(worker: (i32, &str), program: (i32, &str)) -> String {
    format!(
        "the worker is process {} ({}); the stacks are those of process {} ({}), which it has started",
        worker.0, worker.1, program.0, program.1
    )
}

/// The outermost Python program below a process that is none itself. May wait, as [`is_python`].
#[must_use]
pub fn below_wrapper(root: &Process) -> Option<Process> {
    if is_python(root) {
        return None;
    }
    let alive = tree::below(root.pid).into_iter().filter(Process::is_alive);
    let members: Vec<(bool, Process)> = alive.map(|process| (is_python(&process), process)).collect();
    let link = |(is_python, process): &(bool, Process)| Link {
        pid: process.pid,
        parent: process.parent,
        is_python: *is_python,
    };
    outermost_python(root.pid, &members, link).map(|(_, process)| process.clone())
}

#[cfg(test)]
mod tests {
    use std::{
        io::BufRead as _,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn a_mapping_is_python_by_the_name_of_its_code() {
        for (line, expected) in [
            ("7f0-7f1 r-xp 00000000 08:01 7  /usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", true),
            ("7f0-7f1 r--p 00000000 08:01 7  /usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", false),
            ("7f0-7f1 r-xp 00000000 08:01 7  /usr/lib/python3/dist-packages/a.so", false),
            ("7f0-7f1 r-xp 00000000 00:00 0", false),
            ("", false),
        ] {
            assert_eq!(is_python_mapping(line), expected, "{line}");
        }
    }

    #[test]
    fn the_nearest_python_program_is_the_outermost() {
        let link = |link: &Link| *link;
        let of = |pid, parent, is_python| Link { pid, parent, is_python };
        let members =
            [of(13, 12, true), of(12, 11, true), of(14, 10, false), of(11, 10, false), of(20, 2, true)];
        assert_eq!(outermost_python(10, &members, link), Some(&of(12, 11, true)));
        assert_eq!(outermost_python(13, &members, link), None);
        // Numbers that are used again may make a loop.
        let around = [of(11, 10, false), of(10, 11, false)];
        assert_eq!(outermost_python(10, &around, link), None);
    }

    #[test]
    fn below_a_shell_is_its_python_program() {
        let python = "import sys; print(flush=True); sys.stdin.read()";
        let script = format!("python3 -c '{python}'; true");
        let mut shell = Command::new("bash");
        let mut shell =
            shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = tree::process(i32::try_from(shell.id()).unwrap()).unwrap();
        let found = below_wrapper(&root).unwrap();
        assert_eq!(found.parent, root.pid, "{found:?}");
        assert_eq!(below_wrapper(&found), None, "it is one itself");
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
