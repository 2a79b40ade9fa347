//! How much memory the processes of this cgroup may have together.

use std::fs;

use crate::memory_cgroup::{self, Version};

/// The memory that this process and those beside it may have, in bytes: that of the host, or the lowest limit of its
/// cgroups if that is less. `None` when the kernel says neither.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let file = |version| match version {
        Version::V1 => "memory.limit_in_bytes",
        Version::V2 => "memory.max",
    };
    let folders = memory_cgroup::folders();
    let limits = folders
        .iter()
        .filter_map(|(version, folder)| limit(&fs::read_to_string(folder.join(file(*version))).ok()?));
    limits.chain(total(&fs::read_to_string("/proc/meminfo").unwrap_or_default())).min()
}

/// `max` is no limit, and neither is a number that no host has: version 1 writes the largest page number.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 62)
}

/// `MemTotal`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_none() {
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("8589934592\n"), Some(8 << 30));
        assert_eq!(total("MemTotal:       24635756 kB\nMemFree: 1 kB\n"), Some(24_635_756 << 10));
        assert_eq!(total("nonsense"), None);
    }

    #[test]
    fn this_host_has_some() {
        assert!(memory_limit().is_some_and(|bytes| bytes > 1 << 20));
    }
}
