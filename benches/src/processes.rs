//! Resources of a process, from /proc.

use std::{fs, path::Path};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};

use crate::Outcome;

/// Kibibytes of one process; shared pages are divided among the processes that share them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    pub pss: u64,
    pub pss_anon: u64,
    pub pss_file: u64,
    /// Shared pages counted whole.
    pub rss: u64,
}

impl Memory {
    /// Reads the memory of a process.
    ///
    /// # Errors
    /// The process is gone.
    pub fn of(pid: i32) -> Outcome<Self> {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let field = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
        };
        Ok(Self {
            pss: field("Pss"),
            pss_anon: field("Pss_Anon"),
            pss_file: field("Pss_File"),
            rss: field("Rss"),
        })
    }
}

/// Returns the peak resident size of a process, in kibibytes.
#[must_use]
pub fn peak_rss(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// What a process has used since it started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    pub cpu_ns: u64,
    /// How often it went to sleep by itself, which is how often it was woken.
    pub voluntary_switches: u64,
}

impl Used {
    /// Reads the use of all present threads of a process.
    ///
    /// # Errors
    /// The process is gone.
    pub fn of(pid: i32) -> Outcome<Self> {
        let mut used = Self::default();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = thread?.path();
            // A thread may end meanwhile.
            used.cpu_ns += cpu_ns(&thread).unwrap_or(0);
            used.voluntary_switches += voluntary_switches(&thread).unwrap_or(0);
        }
        Ok(used)
    }

    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
        }
    }
}

/// Returns user and system time, from the scheduler's statistics in nanoseconds, or else from utime and stime in ticks of
/// 10 ms, which are too coarse for a process that sleeps.
fn cpu_ns(thread: &Path) -> Option<u64> {
    if let Ok(account) = fs::read_to_string(thread.join("schedstat")) {
        return account.split(' ').next()?.parse().ok();
    }
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    let after_name = stat.rsplit(')').next()?;
    let ticks: u64 = after_name.split_ascii_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
    Some(ticks * 10_000_000)
}

fn voluntary_switches(thread: &Path) -> Option<u64> {
    let status = fs::read_to_string(thread.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Returns a variable of the environment that a process was started with; nothing when that may not be read.
#[must_use]
pub fn variable(pid: i32, name: &str) -> Option<String> {
    value(&fs::read(format!("/proc/{pid}/environ")).ok()?, name)
}

fn value(environment: &[u8], name: &str) -> Option<String> {
    let of = |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    String::from_utf8(environment.split(|byte| *byte == 0).find_map(of)?).ok()
}

/// Returns the CPU time in seconds of this process's children that have ended, and of theirs.
///
/// # Errors
/// The kernel does not say.
pub fn children_cpu_s() -> Outcome<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Returns for how long all threads of a process have waited for a CPU while they could run, in nanoseconds.
///
/// # Errors
/// The process is gone, or the kernel keeps no such account.
pub fn waited_for_cpu_ns(pid: i32) -> Outcome<u64> {
    let mut waited = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let account = fs::read_to_string(thread?.path().join("schedstat"))?;
        waited += account.split_ascii_whitespace().nth(1).ok_or("no schedstat")?.parse::<u64>()?;
    }
    Ok(waited)
}

/// Returns the children of a process, with their names as in `ps`.
#[must_use]
pub fn children(parent: i32) -> Vec<(i32, String)> {
    let pids = fs::read_dir("/proc").into_iter().flatten();
    pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
            let of: i32 = rest.split_ascii_whitespace().nth(1)?.parse().ok()?;
            (of == parent).then(|| (pid, name.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"RANK_X=1\0RANK=3\0EMPTY=\0NOT_UTF8=\xff\0";
        assert_eq!(value(environment, "RANK").as_deref(), Some("3"));
        assert_eq!(value(environment, "EMPTY").as_deref(), Some(""));
        for missing in ["RAN", "ANK", "NOT_UTF8", "X"] {
            assert_eq!(value(environment, missing), None, "{missing}");
        }
    }
}
