//! The program that trains, where the worker is a shell or another program that has started it.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
};

use nix::libc;

use crate::tree::{self, Process};

/// Shells, and programs that start another one and wait for it in whatever way.
const WRAPPERS: [&str; 28] = [
    "sh",
    "bash",
    "dash",
    "ash",
    "zsh",
    "ksh",
    "mksh",
    "fish",
    "busybox",
    "uv",
    "uvx",
    "pixi",
    "mamba",
    "micromamba",
    "tini",
    "dumb-init",
    "catatonit",
    "timeout",
    "sudo",
    "su",
    "srun",
    "mpirun",
    "mpiexec",
    "nsys",
    "ncu",
    "perf",
    "strace",
    "gdb",
];

/// A list of mappings is not longer.
const LONGEST_MAPS: u64 = 16 << 20;

/// A process, as far as the search for the Python program is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub pid: i32,
    pub parent: i32,
    pub is_python: bool,
    /// CPU time that it has used, as [`tree::cpu_ticks`].
    pub cpu_ticks: u64,
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
    program_name(process).contains("python")
}

/// Whether a process only waits for what it has started: a shell, or what waits for a child right now. A program that
/// trains may have started a Python program, too, which is then only its helper. Does not wait.
#[must_use]
pub fn is_wrapper(process: &Process) -> bool {
    WRAPPERS.contains(&program_name(process).as_str()) || waits_for_a_child(process.pid)
}

/// The name of the file that a process runs; where that cannot be read, the name of the process.
fn program_name(process: &Process) -> String {
    let program = fs::read_link(format!("/proc/{}/exe", process.pid)).ok();
    let name = program.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into());
    name.unwrap_or_else(|| process.name.clone())
}

fn waits_for_a_child(pid: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    match call.split_ascii_whitespace().next().and_then(|number| number.parse::<libc::c_long>().ok()) {
        Some(number) => [libc::SYS_wait4, libc::SYS_waitid].contains(&number),
        None => tree::wait_channel(pid) == "do_wait",
    }
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

/// The outermost Python program below a process. Of several that are in no other, that which has used the most CPU time:
/// others watch it; then the nearest, then that with the lowest number. `link` tells of a member what it is.
pub fn outermost_python<T>(root: i32, members: &[T], link: impl Fn(&T) -> Link) -> Option<&T> {
    let mut level = vec![root];
    let mut seen = BTreeSet::from([root]);
    let mut found = Vec::new();
    for depth in 0.. {
        let of_level = |member: &&T| level.contains(&link(member).parent);
        let below: Vec<&T> =
            members.iter().filter(of_level).filter(|member| seen.insert(link(member).pid)).collect();
        if below.is_empty() {
            break;
        }
        let (python, others): (Vec<&T>, Vec<&T>) =
            below.into_iter().partition(|member| link(member).is_python);
        found.extend(python.into_iter().map(|member| (depth, member)));
        level = others.into_iter().map(|member| link(member).pid).collect();
    }
    let order = |(depth, member): &(usize, &T)| (Reverse(link(member).cpu_ticks), *depth, link(member).pid);
    found.into_iter().min_by_key(order).map(|(_, member)| member)
}

/// Whose stacks are taken, where the worker has only started the program that trains: process id and name of both.
#[must_use]
pub fn whose_stacks(worker: (i32, &str), program: (i32, &str)) -> String {
    format!(
        "the worker is process {} ({}); the stacks are those of process {} ({}), which it has started",
        worker.0, worker.1, program.0, program.1
    )
}

/// The outermost Python program below a process that is a wrapper. May wait, as [`is_python`].
#[must_use]
pub fn below_wrapper(root: &Process) -> Option<Process> {
    if is_wrapper_of_another(root) { python_below(root) } else { None }
}

fn is_wrapper_of_another(root: &Process) -> bool {
    !is_python(root) && is_wrapper(root)
}

fn python_below(root: &Process) -> Option<Process> {
    let alive = tree::below(root.pid).into_iter().filter(Process::is_alive);
    let members: Vec<(Link, Process)> = alive.map(|process| (link(&process), process)).collect();
    outermost_python(root.pid, &members, |(link, _)| *link).map(|(_, process)| process.clone())
}

fn link(process: &Process) -> Link {
    Link {
        pid: process.pid,
        parent: process.parent,
        is_python: is_python(process),
        cpu_ticks: tree::cpu_ticks(process.pid).unwrap_or_default(),
    }
}

/// The processes that do the work of a worker: itself, or what a wrapper has started for it: the program of
/// [`below_wrapper`], or all that there is. What a program that trains has started, such as a monitor, is not among them.
/// May wait, as [`is_python`].
#[must_use]
pub fn that_work(worker: i32) -> Vec<i32> {
    let Some(root) = tree::process(worker).filter(is_wrapper_of_another) else { return vec![worker] };
    if let Some(program) = python_below(&root) {
        return vec![program.pid];
    }
    [worker].into_iter().chain(tree::below(worker).into_iter().map(|process| process.pid)).collect()
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
        let of = |pid, parent, is_python| Link { pid, parent, is_python, cpu_ticks: 0 };
        let members =
            [of(13, 12, true), of(12, 11, true), of(14, 10, false), of(11, 10, false), of(20, 2, true)];
        assert_eq!(outermost_python(10, &members, link), Some(&of(12, 11, true)));
        assert_eq!(outermost_python(13, &members, link), None);
        // A monitor beside it, or even nearer, has used less CPU time.
        let monitor = Link { cpu_ticks: 3, ..of(9, 10, true) };
        let trainer = Link { cpu_ticks: 70, ..of(12, 11, true) };
        let loader = Link { cpu_ticks: 900, ..of(13, 12, true) };
        let beside = [monitor, of(11, 10, false), trainer, loader];
        assert_eq!(outermost_python(10, &beside, link), Some(&trainer));
        // Numbers that are used again may make a loop.
        let around = [of(11, 10, false), of(10, 11, false)];
        assert_eq!(outermost_python(10, &around, link), None);
    }

    /// A program that trains, and is no Python program, may have started one.
    #[test]
    fn only_what_waits_for_a_child_is_a_wrapper() {
        let start = |script: &str| {
            let mut command = Command::new("python3");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut child = start("import sys; print(flush=True); sys.stdin.read()");
        let of = |child: &std::process::Child| tree::process(i32::try_from(child.id()).unwrap()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!is_wrapper(&of(&child)), "it reads");
        child.kill().unwrap();
        child.wait().unwrap();
        let script = "import os, signal\n\
                      pid = os.fork()\n\
                      if pid == 0:\n    signal.pause()\n\
                      print(pid, flush=True)\n\
                      os.waitpid(pid, 0)";
        let mut child = start(script);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        while !is_wrapper(&of(&child)) {
            std::thread::yield_now();
        }
        tree::signal_one(line.trim().parse().unwrap(), nix::sys::signal::Signal::SIGKILL);
        child.wait().unwrap();
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
        assert_eq!(that_work(root.pid), [found.pid]);
        assert_eq!(that_work(found.pid), [found.pid]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
