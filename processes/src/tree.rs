//! The processes below one process, read from /proc, and how to signal or kill all of them.
//!
//! Parent links in /proc are complete because the process at the root is a subreaper: orphans become its children.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read as _,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rules::failure::UnkillableProcess;

/// Room for the first 22 fields of `/proc/<pid>/stat`.
const STAT_BYTES: usize = 1024;

/// Between two passes of killing.
const BETWEEN_PASSES: Duration = Duration::from_millis(5);

/// The used fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// Name, at most 15 bytes.
    pub name: String,
    pub state: char,
    /// Parent's process id.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Threads that have not ended, the first one always counted.
    pub threads: u32,
    /// Start, in clock ticks since boot: distinguishes processes that had the same process id.
    pub started: u64,
}

impl Process {
    /// Whether it is running. A zombie is not, unless only its first thread has ended: the state is that thread's.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }

    /// Parses `/proc/<pid>/stat`.
    #[must_use]
    pub fn parse(pid: i32, stat: &str) -> Option<Self> {
        // The name is in parentheses and may itself contain blanks and parentheses.
        let open = stat.find('(')?;
        let close = stat.rfind(')')?;
        let name = stat.get(open + 1..close)?.to_owned();
        let mut fields = stat.get(close + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        // Fields 7 to 19 lie between the session (6) and the threads (20), one before the start time (22).
        let threads = fields.nth(13)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { pid, name, state, parent, group, session, threads, started })
    }
}

/// The process with this id, if it exists.
#[must_use]
pub fn process(pid: i32) -> Option<Process> {
    // One call reads the whole line. `fs::read` makes five times as many, since files in /proc have no length, and
    // this is done for every process of the host while workers are stopped.
    let mut stat = [0; STAT_BYTES];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    Process::parse(pid, &String::from_utf8_lossy(&stat[..length]))
}

/// CPU time of all threads of a process, and of its children that have been waited for, in user and in kernel mode, in
/// clock ticks (`sysconf(_SC_CLK_TCK)`, 100 a second).
#[must_use]
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let mut stat = [0; STAT_BYTES];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    cpu_ticks_of(&String::from_utf8_lossy(&stat[..length]))
}

fn cpu_ticks_of(stat: &str) -> Option<u64> {
    // The name, in parentheses, may have spaces and parentheses too. After it: the third field and on.
    let fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    // utime, stime, cutime, cstime.
    let times: Vec<u64> = fields.skip(11).take(4).map(str::parse).collect::<Result<_, _>>().ok()?;
    (times.len() == 4).then(|| times.into_iter().fold(0, u64::saturating_add))
}

/// Every process id in this namespace.
pub fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Every process below `root`, including zombies.
#[must_use]
pub fn below(root: i32) -> Vec<Process> {
    let processes: Vec<Process> = all_pids().filter_map(process).collect();
    let mut children: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (index, process) in processes.iter().enumerate() {
        children.entry(process.parent).or_default().push(index);
    }
    let mut found = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for &index in children.get(&parent).into_iter().flatten() {
            if found.insert(index) {
                parents.push(processes[index].pid);
            }
        }
    }
    found.into_iter().map(|index| processes[index].clone()).collect()
}

/// Sends `signal` to one process. Errors are ignored: it may have ended, or be another user's.
pub fn signal_one(pid: i32, signal: Signal) {
    let _gone = kill(Pid::from_raw(pid), signal);
}

/// Sends `signal` to all of `processes`: to the groups of `leaders` as groups, to all others one by one, and to none twice
/// (a second SIGINT interrupts the clean-up after the first). Stopped processes are continued.
pub fn ask(processes: Vec<Process>, leaders: &BTreeSet<i32>, signal: Signal) {
    for leader in leaders {
        signal_one(-leader, signal);
        signal_one(-leader, Signal::SIGCONT);
    }
    for process in processes {
        if process.is_alive() && !leaders.contains(&process.group) {
            signal_one(process.pid, signal);
            signal_one(process.pid, Signal::SIGCONT);
        }
    }
}

/// Kills what `which` yields, once: all are stopped first, until no new process appears, so that none forks while the
/// others are killed. Returns how many were alive.
pub fn kill_pass<P: IntoIterator<Item = Process>>(which: impl Fn() -> P) -> usize {
    let mut stopped: BTreeMap<i32, u64> = BTreeMap::new();
    // A fork bomb adds processes in each pass; the bound limits the passes before the kill.
    for _ in 0..20 {
        let mut found_new = false;
        for process in which().into_iter().filter(Process::is_alive) {
            if stopped.insert(process.pid, process.started).is_none() {
                signal_one(process.pid, Signal::SIGSTOP);
                found_new = true;
            }
        }
        if !found_new {
            break;
        }
    }
    for pid in stopped.keys() {
        signal_one(*pid, Signal::SIGKILL);
    }
    stopped.len()
}

/// Kills the processes that `which` yields, pass after pass, until `is_gone` or `timeout` has passed. Blocks. Returns the
/// processes that are left.
pub fn kill_until_gone<P: IntoIterator<Item = Process>>(
    timeout: Duration,
    which: impl Fn() -> P,
    mut is_gone: impl FnMut() -> bool,
) -> Vec<Process> {
    let deadline = Instant::now() + timeout;
    while !is_gone() {
        if Instant::now() >= deadline {
            return which().into_iter().filter(Process::is_alive).collect();
        }
        kill_pass(&which);
        thread::sleep(BETWEEN_PASSES);
    }
    Vec::new()
}

/// Describes the processes that survived SIGKILL.
#[must_use]
pub fn unkillable(processes: Vec<Process>) -> Vec<UnkillableProcess> {
    processes
        .into_iter()
        .filter(Process::is_alive)
        .map(|process| UnkillableProcess {
            pid: process.pid,
            wait_channel: fs::read_to_string(format!("/proc/{}/wchan", process.pid)).unwrap_or_default(),
            name: process.name,
            state: process.state,
        })
        .collect()
}

/// Where in the kernel a process waits, for messages: a function, or `unknown`.
#[must_use]
pub fn wait_channel(pid: i32) -> String {
    let wchan = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    function_of(&wchan).to_owned()
}

/// The function in the content of `wchan`, where `0` stands for none, and for one that may not be read.
fn function_of(wchan: &str) -> &str {
    match wchan {
        "" | "0" => "unknown",
        function => function,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "12 (a) b (c) S 3 4 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987 1000 10";
        assert_eq!(
            Process::parse(12, stat),
            Some(Process {
                pid: 12,
                name: "a) b (c".into(),
                state: 'S',
                parent: 3,
                group: 4,
                session: 5,
                threads: 1,
                started: 987
            })
        );
        assert_eq!(Process::parse(12, "12 (a S 3"), None);
        assert_eq!(Process::parse(12, ""), None);
    }

    #[test]
    fn cpu_time_is_that_of_four_fields() {
        let stat = "12 (a) 1 (b c) S 3 4 5 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 987 1000 10";
        assert_eq!(cpu_ticks_of(stat), Some(50 + 6 + 7 + 8));
        for bad in [
            "",
            "12 (a",
            "12 (a) S 3 4",
            "12 (a) S 3 4 5 0 -1 4194560 1 2 3 4 50 6 7",
            "12 (a) S 3 4 5 0 -1 4194560 1 2 3 4 x 6 7",
        ] {
            assert_eq!(cpu_ticks_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive_and_killed() {
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                      ctypes.CDLL(None).syscall(int(__import__('sys').argv[1]), 0)";
        // SYS_exit ends the thread that calls it, and no other.
        let exit = nix::libc::SYS_exit.to_string();
        let mut child = Command::new("python3").args(["-c", script, &exit]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let headless = loop {
            match process(pid) {
                Some(process) if process.state == 'Z' => break process,
                _ => std::thread::yield_now(),
            }
        };
        assert!(headless.is_alive(), "{headless:?}");
        assert_eq!(kill_pass(|| process(pid)), 1);
        child.wait().unwrap();
    }

    #[test]
    fn a_wait_channel_is_a_function_or_unknown() {
        assert_eq!(function_of("rpc_wait_bit_killable"), "rpc_wait_bit_killable");
        assert_eq!(function_of("0"), "unknown");
        assert_eq!(function_of(""), "unknown");
        assert_eq!(wait_channel(i32::MAX), "unknown", "there is no such process");
    }

    #[test]
    fn a_grandchild_is_found_and_killed() {
        // `sh` waits for `sleep`, so there are two generations.
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & echo started; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut reader = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
        let shell_pid = i32::try_from(shell.id()).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(below(me).iter().any(|process| process.parent == shell_pid));
        let of_shell = || {
            below(me)
                .into_iter()
                .filter(|process| process.pid == shell_pid || process.parent == shell_pid)
                .collect::<Vec<_>>()
        };
        assert_eq!(kill_pass(of_shell), 2);
        shell.wait().unwrap();
        assert!(below(me).iter().all(|process| process.parent != shell_pid));
    }
}
