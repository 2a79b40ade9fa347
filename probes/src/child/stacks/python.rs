//! Python's stacks, by py-spy. The process is not stopped: its memory is read while it runs, and read again when that has
//! shown a state between two.

use std::{fs, thread, time::Duration};

use py_spy::{Config, PythonSpy, StackTrace, config::LockingStrategy};
use stacks::{Frame, Thread};

use super::{native::maps, process::text};

/// How often the memory of a process that runs is read before that is given up.
const TRIES: u32 = 8;

/// Between two of them.
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// The name by which the main thread is recognised.
const MAIN: &str = "MainThread";

/// Reads the Python stacks of a process, the main thread first, and says why there are none. `by`: a thread of it that has
/// not ended.
pub(super) fn stacks(pid: i32, by: i32) -> (Vec<Thread>, Option<String>) {
    if !is_python(by) {
        let program = fs::read_link(format!("/proc/{by}/exe"));
        let program =
            program.map_or_else(|_| "an unknown program".to_owned(), |path| path.display().to_string());
        return (Vec::new(), Some(format!("Python stacks: the process is not a Python program ({program})")));
    }
    match traces(by) {
        Ok(traces) => (in_order(pid, traces), None),
        Err(error) => (Vec::new(), Some(format!("Python stacks: {error}"))),
    }
}

/// Whether an interpreter or a library of Python is mapped.
fn is_python(pid: i32) -> bool {
    let has_name = |path: &str| path.rsplit('/').next().is_some_and(|name| name.contains("python"));
    let of_program = fs::read_link(format!("/proc/{pid}/exe"));
    of_program.is_ok_and(|path| has_name(&path.to_string_lossy()))
        || maps::of(pid).iter().any(|mapping| mapping.is_executable && has_name(&mapping.path))
}

fn traces(pid: i32) -> Result<Vec<StackTrace>, String> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let mut last = String::new();
    let mut spy = None;
    for attempt in 0..TRIES {
        if attempt > 0 {
            thread::sleep(BETWEEN_TRIES);
        }
        let opened = match &mut spy {
            Some(opened) => opened,
            None => match PythonSpy::new(pid, &config) {
                Ok(opened) => spy.insert(opened),
                Err(error) => {
                    last = one_line(&format!("{error:#}"));
                    continue;
                }
            },
        };
        match opened.get_stack_traces() {
            // An interpreter always has a thread: what has none is being made or taken down.
            Ok(traces) if traces.is_empty() => "the interpreter has no threads".clone_into(&mut last),
            Ok(traces) => return Ok(traces),
            Err(error) => last = one_line(&format!("{error:#}")),
        }
    }
    Err(last)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The threads as a dump has them: the main one first and under its name, the others in the order of their start.
fn in_order(pid: i32, mut traces: Vec<StackTrace>) -> Vec<Thread> {
    // py-spy has the youngest first.
    traces.reverse();
    let main = main_of(pid, &traces);
    let mut threads = Vec::with_capacity(traces.len());
    for (index, trace) in traces.into_iter().enumerate() {
        let name = match trace.thread_name {
            _ if Some(index) == main => MAIN.to_owned(),
            Some(name) => name,
            None => trace.os_thread_id.map_or_else(|| "unknown".to_owned(), |tid| nameless(pid, tid)),
        };
        let frames = trace.frames.into_iter().map(|frame| Frame {
            function: frame.name,
            file: frame.filename,
            line: u32::try_from(frame.line).ok().filter(|line| *line > 0),
        });
        let thread = Thread { name, frames: frames.collect() };
        if Some(index) == main {
            threads.insert(0, thread);
        } else {
            threads.push(thread);
        }
    }
    threads
}

/// A thread that Python has not started and does not know by name: its name in the kernel, as torch gives one to those that
/// run `backward` (`pt_autograd_0`), and its number.
fn nameless(pid: i32, tid: u64) -> String {
    let name = text(&format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    let known = Some(name.trim()).filter(|name| name.starts_with("pt_"));
    known.map_or_else(|| format!("thread {tid}"), |name| format!("{name} (thread {tid})"))
}

/// The thread whose number is that of the process; before Python 3.11 its number is not known, and its name is, once
/// `threading` is imported.
fn main_of(pid: i32, traces: &[StackTrace]) -> Option<usize> {
    let own = u64::try_from(pid).ok();
    let by_number = traces.iter().position(|trace| trace.os_thread_id.is_some() && trace.os_thread_id == own);
    let by_name = || traces.iter().position(|trace| trace.thread_name.as_deref() == Some(MAIN));
    by_number.or_else(by_name).or((traces.len() == 1).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(name: Option<&str>, number: Option<u64>) -> StackTrace {
        StackTrace {
            pid: 7,
            thread_id: 1,
            thread_name: name.map(str::to_owned),
            os_thread_id: number,
            active: true,
            owns_gil: false,
            frames: Vec::new(),
            process_info: None,
        }
    }

    fn names(traces: Vec<StackTrace>) -> Vec<String> {
        in_order(7, traces).into_iter().map(|thread| thread.name).collect()
    }

    #[test]
    fn the_main_thread_is_first_by_its_number_then_by_its_name() {
        let traces = vec![trace(Some("b"), Some(9)), trace(None, Some(7)), trace(Some("a"), Some(8))];
        assert_eq!(names(traces), ["MainThread", "a", "b"]);
        let traces = vec![trace(Some("b"), None), trace(Some("a"), None), trace(Some("MainThread"), None)];
        assert_eq!(names(traces), ["MainThread", "a", "b"]);
        assert_eq!(names(vec![trace(None, None)]), ["MainThread"]);
        assert_eq!(names(vec![trace(None, Some(9)), trace(None, None)]), ["unknown", "thread 9"]);
    }
}
