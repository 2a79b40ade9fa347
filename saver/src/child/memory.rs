//! How much memory this process may still take without an OOM kill.
//!
//! A file in memory that goes beyond a cgroup's limit is not refused: the kernel kills a process of the cgroup, most
//! likely a worker. So the limits are read before anything is allocated.

use std::{collections::BTreeMap, fs, path::Path};

use processes::memory_cgroup::{self, Version};

/// Never taken, so that what is allocated between the reading and the taking does no harm: bytes.
const MARGIN: u64 = 64 << 20;

/// Bytes that can be taken now: of the host's memory and of every cgroup that this process is in. `None`: neither can
/// be read.
pub(super) fn available() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_host(&text));
    let files = |version| match version {
        Version::V1 => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
        Version::V2 => ["memory.max", "memory.current", "inactive_file"],
    };
    let cgroups = memory_cgroup::folders();
    let cgroups = cgroups.iter().filter_map(|(version, folder)| of_level(folder, files(*version)));
    host.into_iter().chain(cgroups).min().map(|bytes| bytes.saturating_sub(MARGIN))
}

fn of_host(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What is left below the limit of one cgroup. Pages of files that nothing has used for a while can be given back.
fn of_level(folder: &Path, [limit, usage, reclaimable]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number: no limit.
    let (limit, usage) = (number(limit)?, number(usage)?);
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable = fields(&statistics).get(reclaimable).copied().unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
}

fn fields(statistics: &str) -> BTreeMap<&str, u64> {
    let pair = |line: &'_ str| line.split_once(' ').map(|(name, value)| (name.len(), value.parse().ok()));
    statistics
        .lines()
        .filter_map(|line| match pair(line) {
            Some((length, Some(value))) => Some((line.get(..length)?, value)),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_memory() {
        assert!(available().unwrap() > 0);
    }

    #[test]
    fn the_line_of_the_host_is_in_kibibytes() {
        assert_eq!(of_host("MemTotal: 9 kB\nMemAvailable:    4 kB\n"), Some(4096));
        assert_eq!(of_host("MemAvailable: much"), None);
        assert_eq!(of_host(""), None);
    }

    #[test]
    fn the_limit_of_a_cgroup_counts_less_what_can_be_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["memory.max", "memory.current", "inactive_file"];
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(of_level(folder.path(), names), None);
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        assert_eq!(of_level(folder.path(), names), Some(300));
        write("memory.stat", "anon 5\ninactive_file 600\nbroken\n");
        assert_eq!(of_level(folder.path(), names), Some(900));
        write("memory.max", "max\n");
        assert_eq!(of_level(folder.path(), names), None);
    }
}
