//! The memory cgroups of this process: its own, and each one above it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The version of a hierarchy of cgroups: its files have other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The directories of this process's cgroups that may have a memory controller, the own one of each hierarchy first.
#[must_use]
pub fn folders() -> Vec<(Version, PathBuf)> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    find(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"))
}

/// In a container the path in `/proc/self/cgroup` may be outside of the mount: the directories above it lead to the
/// mount's own, which is the container's.
fn find(mounts: &str, groups: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(mount) = left.split(' ').nth(4) else { continue };
        let mut right = right.split(' ');
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let (version, prefix) = match kind {
            "cgroup2" => (Version::V2, "0::"),
            "cgroup" if options.split(',').any(|option| option == "memory") => (Version::V1, ":memory:"),
            _ => continue,
        };
        let own = groups.lines().find_map(|line| {
            let at = line.find(prefix)?;
            Some(line[at + prefix.len()..].trim_start_matches('/'))
        });
        let own = Path::new(mount).join(own.unwrap_or_default());
        let levels = own.ancestors().take_while(|folder| folder.starts_with(mount));
        found.extend(levels.map(|folder| (version, folder.to_path_buf())));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_where_they_are_mounted_with_every_level() {
        let mounts = "32 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      33 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "4:memory:/pod/x\n1:cpu:/\n0::/\n";
        let expected = [
            (Version::V1, "/sys/fs/cgroup/memory/pod/x"),
            (Version::V1, "/sys/fs/cgroup/memory/pod"),
            (Version::V1, "/sys/fs/cgroup/memory"),
            (Version::V2, "/sys/fs/cgroup/unified"),
        ];
        assert_eq!(find(mounts, groups), expected.map(|(version, path)| (version, PathBuf::from(path))));
        assert_eq!(find("nonsense", ""), []);
    }
}
