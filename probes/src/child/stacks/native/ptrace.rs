//! Stops the threads of a process one after the other, copies registers and stack, and lets them run on.
//!
//! `PTRACE_SEIZE` and `PTRACE_INTERRUPT` send no signal, so that a system call that was waited in is taken up again. The
//! few calls that are not are read without a stop. A tracer that dies, for example when this probe is killed, releases
//! what it has stopped.

use std::{
    fs,
    mem::MaybeUninit,
    thread,
    time::{Duration, Instant},
};

use nix::{errno::Errno, libc};

use super::{
    super::{
        access,
        process::{line_of, text, tracer},
        syscalls,
    },
    maps::{self, Mapping},
    memory,
    registers::Registers,
};

/// Threads of one process that are read.
const MAX_THREADS: usize = 1024;

/// The innermost part of a stack that is read.
const MAX_STACK: u64 = 512 << 10;

/// How long a thread may take to stop: one that has just gone into uninterruptible sleep does not.
const STOP_TIMEOUT: Duration = Duration::from_millis(300);

/// Threads that may exceed it before the rest is given up.
const MAX_UNSTOPPED: usize = 4;

/// Looks at a thread without a pause before there are pauses.
const QUICK_LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);

/// A thread at one moment.
#[derive(Debug)]
pub(super) struct CapturedThread {
    pub(super) name: String,
    pub(super) registers: Registers,
    /// Its stack, from the stack pointer on.
    pub(super) stack: Vec<u8>,
}

/// What could be read of a process.
#[derive(Debug, Default)]
pub(super) struct Captured {
    pub(super) threads: Vec<CapturedThread>,
    pub(super) notes: Vec<String>,
}

impl Captured {
    pub(super) fn failed(why: &str) -> Self {
        Self { threads: Vec::new(), notes: vec![format!("native stacks: {why}")] }
    }
}

/// Why a thread could not be read.
enum Missed {
    Ended,
    Uninterruptible,
    DidNotStop,
    Refused(Errno),
}

/// Reads all threads of a process, the main one first.
pub(super) fn capture(pid: i32, maps: &[Mapping]) -> Captured {
    let mut captured = Captured::default();
    let mut uninterruptible = 0;
    let mut unstopped = 0;
    let mut unread = 0;
    let threads = threads(pid);
    for (place, tid) in (1..).zip(&threads) {
        match read(pid, *tid, maps) {
            Ok(thread) => captured.threads.push(thread),
            Err(Missed::Ended) => {}
            Err(Missed::Uninterruptible) => uninterruptible += 1,
            Err(Missed::DidNotStop) => {
                unstopped += 1;
                if unstopped == MAX_UNSTOPPED {
                    unread = threads.len() - place;
                    break;
                }
            }
            Err(Missed::Refused(error)) => {
                captured.notes.push(format!("native stacks: {}", refusal(pid, &error)));
                break;
            }
        }
    }
    for (count, why) in [
        (uninterruptible, "in uninterruptible sleep"),
        (unstopped, "without a stack: not stopped within 0.3 s"),
        (unread, "not read, because too many others did not stop"),
    ] {
        if count > 0 {
            let threads = diagnosis::counted::counted(count, "thread");
            captured.notes.push(format!("native stacks: {threads} {why}"));
        }
    }
    captured
}

fn refusal(pid: i32, error: &Errno) -> String {
    let status = text(&format!("/proc/{pid}/status")).unwrap_or_default();
    match tracer(&status) {
        Some(tracer) => {
            let name = text(&format!("/proc/{tracer}/comm")).unwrap_or_default();
            format!(
                "the process is traced by process {tracer} ({}); detach or end that process first",
                name.trim()
            )
        }
        None => access::refusal(pid, &status, error),
    }
}

/// The main thread first: its number is that of the process.
fn threads(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let mut threads: Vec<i32> = numbers.take(MAX_THREADS).collect();
    threads.sort_unstable_by_key(|tid| (*tid != pid, *tid));
    threads
}

fn read(pid: i32, tid: i32, maps: &[Mapping]) -> Result<CapturedThread, Missed> {
    let folder = format!("/proc/{pid}/task/{tid}");
    let status = text(&format!("{folder}/status")).ok_or(Missed::Ended)?;
    match line_of(&status, "State:").and_then(|state| state.chars().next()) {
        Some('D') => return Err(Missed::Uninterruptible),
        Some('Z' | 'X') | None => return Err(Missed::Ended),
        Some(_) => {}
    }
    let name = text(&format!("{folder}/comm")).unwrap_or_default().trim().to_owned();
    if let Some((registers, stack)) = without_a_stop(pid, &folder, maps) {
        return Ok(CapturedThread { name, registers, stack });
    }
    let stopped = Stopped::stop(tid)?;
    let registers = stopped.registers()?;
    let stack = stack(pid, registers.stack, maps);
    drop(stopped);
    Ok(CapturedThread { name, registers, stack })
}

/// Reads a thread that waits in a call which a stop would end, as it waits. `None` for any other thread.
fn without_a_stop(pid: i32, folder: &str, maps: &[Mapping]) -> Option<(Registers, Vec<u8>)> {
    let path = format!("{folder}/syscall");
    let before = text(&path)?;
    let (pointer, instruction) = syscalls::not_to_be_stopped(&before)?;
    let stack = stack(pid, pointer, maps);
    // It may have gone on meanwhile.
    (text(&path)? == before).then(|| (Registers::of_waiting(pointer, instruction), stack))
}

/// The innermost part of a stack, to the end of its mapping.
fn stack(pid: i32, from: u64, maps: &[Mapping]) -> Vec<u8> {
    let size = maps::at(maps, from).map_or(64 << 10, |mapping| mapping.end - from).min(MAX_STACK);
    let mut stack = vec![0; usize::try_from(size).unwrap_or(0)];
    let read = memory::read(pid, from, &mut stack).unwrap_or(0);
    stack.truncate(read);
    stack
}

/// A thread that is stopped until this is dropped.
struct Stopped {
    tid: i32,
    /// The signal that it was about to receive, which it then does.
    signal: i32,
}

impl Stopped {
    fn stop(tid: i32) -> Result<Self, Missed> {
        let missed = |error| match error {
            Errno::ESRCH => Missed::Ended,
            error => Missed::Refused(error),
        };
        request(libc::PTRACE_SEIZE, tid, 0).map_err(missed)?;
        request(libc::PTRACE_INTERRUPT, tid, 0).map_err(missed)?;
        let began = Instant::now();
        let mut looks = 0;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a place for the result. Only this thread waits for this number.
            let found = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            match Errno::result(found) {
                Ok(0) => {}
                Ok(_) if libc::WIFSTOPPED(status) => {
                    // Any stop will do: one of ours has an event, and one by a signal has none.
                    let is_by_signal = status >> 16 == 0;
                    let signal = if is_by_signal { libc::WSTOPSIG(status) } else { 0 };
                    return Ok(Self { tid, signal });
                }
                Ok(_) => return Err(Missed::Ended),
                Err(Errno::EINTR) => {}
                Err(_) => return Err(Missed::Ended),
            }
            if began.elapsed() > STOP_TIMEOUT {
                // It stays seized until this thread of ours ends; then the kernel releases it.
                return Err(Missed::DidNotStop);
            }
            looks += 1;
            if looks > QUICK_LOOKS {
                thread::sleep(BETWEEN_LOOKS);
            } else {
                thread::yield_now();
            }
        }
    }

    fn registers(&self) -> Result<Registers, Missed> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
        let size = size_of::<libc::user_regs_struct>();
        let mut place = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size };
        // SAFETY: `place` is as large as it says, and the kernel writes no more than that.
        let outcome = unsafe {
            libc::ptrace(libc::PTRACE_GETREGSET, self.tid, libc::NT_PRSTATUS as usize, &raw mut place)
        };
        Errno::result(outcome).map_err(|_| Missed::Ended)?;
        if place.iov_len != size {
            // A program for 32 bits has fewer.
            return Err(Missed::Refused(Errno::ENOEXEC));
        }
        // SAFETY: all zero is a valid value, and so is what the kernel has written.
        Ok(Registers::of(unsafe { registers.assume_init_ref() }))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ended = request(libc::PTRACE_DETACH, self.tid, self.signal);
    }
}

fn request(request: libc::c_uint, tid: i32, data: i32) -> Result<(), Errno> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take no address, and a number as data.
    Errno::result(unsafe { libc::ptrace(request, tid, none, data as usize) }).map(drop)
}
