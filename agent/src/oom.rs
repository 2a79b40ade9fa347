//! How many processes of our memory cgroup the kernel's out-of-memory killer has killed so far.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The counter of this process's cgroup: version 2 first, then version 1.
#[derive(Debug, Clone)]
pub struct OomCounter {
    file: Option<PathBuf>,
}

impl OomCounter {
    /// Finds the counter. A host without memory cgroups has none.
    #[must_use]
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let file = candidates(&mounts, &groups).into_iter().find(|file| read(file).is_some());
        Self { file }
    }

    /// Kills so far; `None` if the kernel does not report it.
    #[must_use]
    pub fn kills(&self) -> Option<u64> {
        read(self.file.as_deref()?)
    }
}

fn read(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Where the counter may be, by `/proc/self/mountinfo` and `/proc/self/cgroup`. In a container the path in `cgroup`
/// may be outside of the mount, so the mount's own root is tried too.
fn candidates(mounts: &str, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(mount) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let (file, prefix) = match kind {
            "cgroup2" => ("memory.events", "0::"),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                ("memory.oom_control", ":memory:")
            }
            _ => continue,
        };
        let own = groups.lines().find_map(|line| {
            let at = line.find(prefix)?;
            Some(line[at + prefix.len()..].trim_start_matches('/').to_owned())
        });
        if let Some(own) = own {
            files.push(Path::new(mount).join(own).join(file));
        }
        files.push(Path::new(mount).join(file));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_are_found_where_they_are_mounted() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "4:memory:/pod/x\n1:cpu:/\n0::/y\n";
        let names: Vec<_> =
            candidates(mounts, groups).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            names,
            [
                "/sys/fs/cgroup/memory/pod/x/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control",
                "/sys/fs/cgroup/unified/y/memory.events",
                "/sys/fs/cgroup/unified/memory.events",
            ]
        );
        assert!(candidates("nonsense", "").is_empty());
    }

    #[test]
    fn the_count_is_its_own_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.events");
        fs::write(&file, "low 0\noom 3\noom_kill 2\noom_group_kill 1\n").unwrap();
        assert_eq!(read(&file), Some(2));
    }
}
