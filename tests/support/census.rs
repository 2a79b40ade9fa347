//! Which processes of a run are alive: by the markers in their environment, and by the process ids that
//! `trainers/breeder.py` wrote down. It asks the kernel by itself and shares no code with the launcher, which it
//! judges.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::marked::marked;

/// The marker that our launcher gives to every process of a run.
pub const LAUNCHER_ID: &str = "DLROVER_LAUNCHER_ID";

/// A process as `/proc/<pid>/stat` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub name: String,
    pub state: char,
    pub parent: i32,
    /// In clock ticks since boot: the process id alone may be another process's by now.
    pub started: u64,
}

impl Process {
    /// The process with this id.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let mut fields = tail.split_ascii_whitespace();
        Some(Self {
            pid,
            name: head.split_once('(')?.1.to_owned(),
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            started: fields.nth(17)?.parse().ok()?,
        })
    }

    /// All of this process namespace and those below it.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
        proc.flatten().filter_map(|dir| Self::of(dir.file_name().to_str()?.parse().ok()?)).collect()
    }

    /// A zombie only waits for its parent to reap it.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// Returns whether this process is still alive.
    #[must_use]
    pub fn still_lives(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.started == self.started && now.is_alive())
    }

    /// Sends it a signal, unless it is gone.
    pub fn signal(&self, signal: Signal) {
        let _gone = kill(Pid::from_raw(self.pid), signal);
    }

    /// A variable of the environment that it was started with.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        let environ = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        environ.split(|&byte| byte == 0).find_map(|entry| {
            let text = String::from_utf8_lossy(entry);
            text.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
        })
    }
}

/// A process that recorded itself.
#[derive(Clone, Debug)]
pub struct Enlisted {
    pub process: Process,
    pub kind: String,
}

/// What a run of `trainers/breeder.py` left in its directory. Dropped, it kills those that are alive.
#[derive(Debug)]
pub struct Census {
    dir: PathBuf,
    mark: String,
    launcher_id: Option<String>,
    /// Of the directory at the last read: it may be removed before the last inspection.
    enlisted: Vec<Enlisted>,
}

impl Census {
    /// Of the run with this directory and processes with `mark` (`NAME=value`).
    #[must_use]
    pub fn of(dir: &Path, mark: &str) -> Self {
        Self { dir: dir.to_owned(), mark: mark.to_owned(), launcher_id: None, enlisted: Vec::new() }
    }

    /// Searches for this marker of the launcher too. `-`: none, as torchrun gives none.
    pub fn also(&mut self, launcher_id: &str) {
        self.launcher_id = (launcher_id != "-").then(|| launcher_id.to_owned());
    }

    /// The processes that have recorded themselves.
    pub fn enlisted(&mut self) -> &[Enlisted] {
        if let Ok(text) = fs::read_to_string(self.dir.join("pids")) {
            self.enlisted = text.lines().filter_map(read_line).collect();
        }
        if self.launcher_id.is_none() {
            let own = marked(&self.mark).into_iter().filter_map(|one| Process::of(one.pid));
            self.launcher_id = own.filter_map(|process| process.variable(LAUNCHER_ID)).next();
        }
        &self.enlisted
    }

    /// The launcher's id in the environment of its workers, if any of them has been seen.
    #[must_use]
    pub fn launcher_id(&self) -> Option<&str> {
        self.launcher_id.as_deref()
    }

    /// A list of processes is not atomic, so a hopper may be missed. Its lock is checked.
    fn hoppers_live(&self) -> bool {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut locks = files.filter(|file| file.file_name().to_string_lossy().starts_with("hoppers."));
        locks.any(|lock| {
            let file = fs::File::open(lock.path());
            file.is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
        })
    }

    /// All that live, described, by process id: those with the launcher's own marker, those that recorded themselves
    /// down, and with `every_mark` also those that only carry the test's mark, as launcher and guard do.
    #[must_use]
    pub fn living(&mut self, every_mark: bool) -> BTreeMap<i32, String> {
        let mut living = BTreeMap::new();
        for one in self.enlisted() {
            if one.process.still_lives() {
                living.insert(one.process.pid, format!("{} (wrote itself down)", one.kind));
            }
        }
        if self.hoppers_live() {
            living.insert(0, "hopper (its lock is held)".to_owned());
        }
        if let Some(id) = &self.launcher_id {
            for one in marked(&format!("{LAUNCHER_ID}={id}")) {
                living.insert(one.pid, format!("`{}` (the launcher's mark)", one.command.trim()));
            }
        }
        if every_mark {
            for one in marked(&self.mark) {
                living.entry(one.pid).or_insert(format!("`{}` (the test's mark)", one.command.trim()));
            }
        }
        living
    }

    /// Waits until none is alive; returns those that are when `patience` is over.
    #[must_use]
    pub fn left_after(&mut self, timeout: Duration) -> BTreeMap<i32, String> {
        let start = Instant::now();
        loop {
            let left = self.living(true);
            if left.is_empty() || start.elapsed() > timeout {
                return left;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        // A hopper outruns a sweep; this stops it.
        let _no_folder = fs::write(self.dir.join("calm"), "");
        for one in self.enlisted().to_vec() {
            if one.process.still_lives() {
                one.process.signal(Signal::SIGKILL);
            }
        }
        crate::marked::sweep(&self.mark);
    }
}

fn read_line(line: &str) -> Option<Enlisted> {
    let mut words = line.split(' ');
    let pid = words.next()?.parse().ok()?;
    let started = words.next()?.parse().ok()?;
    let kind = words.next()?.to_owned();
    let process = Process { pid, name: String::new(), state: '?', parent: 0, started };
    Some(Enlisted { process, kind })
}

/// What a worker writes when all its descendants are there.
#[derive(Clone, Debug)]
pub struct Worker {
    pub process: Process,
    pub launcher_id: String,
}

impl Worker {
    /// Reads `worker.<rank>.<attempt>`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let pid = words.next()?.parse().ok()?;
        let started = words.next()?.parse().ok()?;
        let parent = words.next()?.parse().ok()?;
        let process = Process { pid, name: String::new(), state: '?', parent, started };
        Some(Self { process, launcher_id: words.next()?.to_owned() })
    }
}
