//! The state of a process, which is read before its stacks: ptrace would change it.

use std::{fs, io::Read as _};

use processes::{
    program::{below_wrapper, whose_stacks},
    tree::{self, Process},
};

use super::{access, syscalls};
use crate::wire::stacks::{ProcessPart, StackTarget};

/// Files of `/proc` that are read here are shorter.
const LONGEST_FILE: u64 = 64 << 10;

/// Kernel functions and the like are shorter.
const LONGEST_NAME: usize = 100;

/// What a first look has shown.
pub(super) enum Looked {
    /// Its stacks may be read, by the number of a thread that has not ended.
    Readable { pid: i32, by: i32, part: ProcessPart, notes: Vec<String> },
    /// There are no stacks to read, and why.
    Unreadable { part: ProcessPart, notes: Vec<String> },
}

impl Looked {
    pub(super) const fn part(&self) -> &ProcessPart {
        let (Self::Readable { part, .. } | Self::Unreadable { part, .. }) = self;
        part
    }

    pub(super) fn notes(&self) -> &[String] {
        let (Self::Readable { notes, .. } | Self::Unreadable { notes, .. }) = self;
        notes
    }
}

/// The process whose stacks are taken, and which one that is where it is not that of the target: the Python program that
/// a shell or the like has started.
pub(super) fn resolve(target: &StackTarget) -> (StackTarget, Option<String>) {
    let is_meant = |process: &Process| target.started.is_none_or(|started| started == process.started);
    let worker = i32::try_from(target.pid).ok().and_then(tree::process);
    let worker = worker.filter(|worker| target.may_be_wrapper && is_meant(worker));
    // What has ended has started nothing that trains, and what is in uninterruptible sleep cannot be looked at.
    let worker = worker.filter(|worker| !matches!(worker.state, 'D' | 'Z' | 'X'));
    match worker.and_then(|worker| Some((below_wrapper(&worker)?, worker))) {
        Some((program, worker)) => {
            let note = whose_stacks((worker.pid, &worker.name), (program.pid, &program.name));
            let (pid, started) = (program.pid.unsigned_abs(), Some(program.started));
            (StackTarget { pid, started, ..target.clone() }, Some(note))
        }
        None => (target.clone(), None),
    }
}

/// Reads the state of a process, and whether its stacks can be read.
pub(super) fn look(target: &StackTarget) -> Looked {
    let unreadable = |part, note: String| Looked::Unreadable { part, notes: vec![note] };
    let gone = || ProcessPart { gone: true, ..ProcessPart::default() };
    let number = target.pid;
    let Some(pid) = i32::try_from(number).ok().filter(|pid| *pid > 0) else {
        return unreadable(ProcessPart::default(), format!("{number} is not a process id"));
    };
    let Some(process) = tree::process(pid) else {
        return unreadable(gone(), format!("process {pid} has ended"));
    };
    if target.started.is_some_and(|started| started != process.started) {
        return unreadable(
            gone(),
            format!("process {pid} has ended; its process id belongs to another process now"),
        );
    }
    let Some(status) = text(&format!("/proc/{pid}/status")) else {
        return unreadable(gone(), format!("process {pid} has ended"));
    };
    let part = ProcessPart {
        pid: Some(number),
        gone: !process.is_alive(),
        state: line_of(&status, "State:").map(str::to_owned),
        wchan: text(&format!("/proc/{pid}/wchan")).and_then(|text| wchan(&text)),
        syscall: text(&format!("/proc/{pid}/syscall")).and_then(|text| syscalls::name_of_line(&text)),
    };
    if part.gone {
        let note = format!("process {pid} has exited and has not been reaped");
        return unreadable(part, note);
    }
    // Whatever is read of its memory would wait too.
    if process.state == 'D' {
        return unreadable(part, "no stacks: the process is in uninterruptible sleep".to_owned());
    }
    let mut notes = Vec::new();
    let mut by = pid;
    if process.state == 'Z' {
        let ended = format!("the main thread of process {pid} has ended");
        let Some(thread) = running_thread(pid) else {
            let note =
                format!("{ended}; no stacks: all other threads are in uninterruptible sleep, or are ending");
            return unreadable(part, note);
        };
        by = thread;
        notes.push(format!("{ended}; other threads keep running"));
    }
    if let Err(error) = access::check(by) {
        notes.push(format!("stacks: {}", access::refusal(by, &status, &error)));
        return Looked::Unreadable { part, notes };
    }
    if let Some(tracer) = tracer(&status) {
        notes.push(format!("process {pid} is traced by process {tracer}"));
    }
    Looked::Readable { pid, by, part, notes }
}

/// A thread by which the memory of a process can be read whose main thread has ended.
fn running_thread(pid: i32) -> Option<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut threads = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    threads.find(|tid| {
        let thread =
            text(&format!("/proc/{pid}/task/{tid}/stat")).and_then(|stat| Process::parse(*tid, &stat));
        thread.is_some_and(|thread| !matches!(thread.state, 'D' | 'Z' | 'X'))
    })
}

/// Whether the process of a target is no longer the one that it names.
pub(super) fn is_another(target: &StackTarget) -> bool {
    let now = i32::try_from(target.pid).ok().and_then(tree::process);
    match target.started {
        Some(started) => now.is_none_or(|now| now.started != started || !now.is_alive()),
        None => now.is_none_or(|now| !now.is_alive()),
    }
}

/// A short file of `/proc`; `None` when it cannot be read.
pub(super) fn text(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(LONGEST_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line of `/proc/PID/status`.
pub(super) fn line_of<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The process that traces this one.
pub(super) fn tracer(status: &str) -> Option<u32> {
    line_of(status, "TracerPid:")?.parse().ok().filter(|tracer| *tracer > 0)
}

/// A kernel function; `0` stands for none, and for one that may not be read.
fn wchan(text: &str) -> Option<String> {
    let name = text.trim();
    let is_name = !name.is_empty() && name.bytes().any(|byte| byte.is_ascii_alphabetic());
    is_name.then(|| name.chars().take(LONGEST_NAME).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wchan_is_a_name_or_nothing() {
        assert_eq!(wchan("hrtimer_nanosleep"), Some("hrtimer_nanosleep".to_owned()));
        assert_eq!(wchan("do_poll.constprop.0\n"), Some("do_poll.constprop.0".to_owned()));
        assert_eq!(wchan("0"), None);
        assert_eq!(wchan(""), None);
    }

    #[test]
    fn lines_of_the_status_are_found_by_their_names() {
        let status = "Name:\tpython3\nState:\tS (sleeping)\nTracerPid:\t0\n";
        assert_eq!(line_of(status, "State:"), Some("S (sleeping)"));
        assert_eq!(tracer(status), None);
        assert_eq!(tracer("TracerPid:\t17\n"), Some(17));
    }

    #[test]
    fn a_number_that_is_no_process_is_said_so() {
        for (pid, part) in [(0, false), (u32::MAX, false), (i32::MAX as u32, true)] {
            let looked = look(&StackTarget { pid, ..StackTarget::default() });
            let Looked::Unreadable { part: found, notes } = looked else { panic!("{pid} is readable") };
            assert_eq!((found.gone, notes.len()), (part, 1), "{pid}");
        }
    }

    #[test]
    fn a_reused_number_is_noticed() {
        let pid = std::process::id();
        let started = tree::process(i32::try_from(pid).unwrap()).unwrap().started;
        let this = StackTarget { pid, started: Some(started), ..StackTarget::default() };
        assert!(matches!(look(&this), Looked::Readable { .. }));
        assert!(!is_another(&this));
        let former = StackTarget { started: Some(started - 1), ..this };
        assert!(matches!(look(&former), Looked::Unreadable { part, .. } if part.gone));
        assert!(is_another(&former));
    }
}
