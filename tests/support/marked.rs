//! Processes known by a variable in their environment.
//!
//! A process may change its session, group and parent, but `/proc/<pid>/environ` shows what it was started
//! with, and its children are started with the same.

use std::fmt;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process with the marker.
#[derive(Clone, PartialEq, Eq)]
pub struct Marked {
    pub pid: i32,
    pub command: String,
}

impl fmt::Debug for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.pid, self.command)
    }
}

/// All living processes with `entry` (`NAME=value`) in their environment. Zombies have none.
#[must_use]
pub fn marked(entry: &str) -> Vec<Marked> {
    let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
    proc.flatten()
        .filter_map(|dir| dir.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|&byte| byte == 0).any(|one| one == entry.as_bytes())
        })
        .map(|pid: i32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            Marked { pid, command: String::from_utf8_lossy(&command).replace('\0', " ") }
        })
        .collect()
}

/// Kills them until there are none; a process may fork meanwhile.
pub fn sweep(entry: &str) {
    for _ in 0..100 {
        let left = marked(entry);
        if left.is_empty() {
            return;
        }
        for process in left {
            // It may be gone already.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
