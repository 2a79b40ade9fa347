//! How much memory the processes of this cgroup may have together.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The memory that this process and those beside it may have, in bytes: that of the host, or the lowest limit of its
/// cgroups if that is less. `None` when the kernel says neither.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folders = folders(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"));
    let limits = folders.iter().filter_map(|file| limit(&fs::read_to_string(file).ok()?));
    limits.chain(total(&text("/proc/meminfo"))).min()
}

/// The files that may have a limit: that of the process's own cgroup, and of each one above it. In a container the path
/// in `/proc/self/cgroup` may be outside of the mount, so the mount's own folder is read too.
fn folders(mounts: &str, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(mount) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let (file, prefix) = match kind {
            "cgroup2" => ("memory.max", "0::"),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                ("memory.limit_in_bytes", ":memory:")
            }
            _ => continue,
        };
        let own = groups.lines().find_map(|line| {
            let at = line.find(prefix)?;
            Some(line[at + prefix.len()..].trim_start_matches('/'))
        });
        let own = Path::new(mount).join(own.unwrap_or_default());
        files.extend(own.ancestors().take_while(|folder| folder.starts_with(mount)).map(|it| it.join(file)));
    }
    files
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
    fn the_limits_of_a_cgroup_and_of_those_above_it_are_read() {
        let mounts = "32 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      33 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "4:memory:/pod/x\n1:cpu:/\n0::/\n";
        let names: Vec<_> = folders(mounts, groups).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            names,
            [
                "/sys/fs/cgroup/memory/pod/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/unified/memory.max",
            ]
        );
        assert!(folders("nonsense", "").is_empty());
    }

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
