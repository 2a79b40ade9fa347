//! How many processes of our memory cgroup the kernel's out-of-memory killer has killed so far.

use std::{
    fs,
    path::{Path, PathBuf},
};

use processes::memory_cgroup::{self, Version};

/// The counter of this process's cgroup: version 2 first, then version 1.
#[derive(Debug, Clone)]
pub struct OomCounter {
    file: Option<PathBuf>,
}

impl OomCounter {
    /// Finds the counter. A host without memory cgroups has none.
    #[must_use]
    pub fn find() -> Self {
        let name = |version| match version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let mut files =
            memory_cgroup::folders().into_iter().map(|(version, folder)| folder.join(name(version)));
        Self { file: files.find(|file| read(file).is_some()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_its_own_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.events");
        fs::write(&file, "low 0\noom 3\noom_kill 2\noom_group_kill 1\n").unwrap();
        assert_eq!(read(&file), Some(2));
    }
}
