//! The machine and its load, without which figures mean little.

use std::fs;

/// Returns a line about the machine.
#[must_use]
pub fn facts() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!(
        "{} cores ({}), Linux {}, {}",
        std::thread::available_parallelism().map_or(0, usize::from),
        model.map_or("unknown", |(_, name)| name),
        read("/proc/sys/kernel/osrelease").trim(),
        load()
    )
}

/// Returns the load averages of 1, 5 and 15 minutes.
#[must_use]
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load average {}", load.split(' ').take(3).collect::<Vec<_>>().join(" "))
}
