//! A clock that other load cannot slow down: the time of this thread, without the time in which it was runnable but
//! did not run.
//!
//! What slows the node itself still counts: a slow processor, a stopped process, and a quota (`cpu.max`). Most
//! kernels count the wait for the next period of a quota as run-queue wait, so the throttled time is added again.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A running measurement.
#[derive(Debug)]
pub(super) struct OwnTime {
    began: Instant,
    waited: Duration,
    throttled: Duration,
    stats: Vec<PathBuf>,
}

impl OwnTime {
    /// Starts for the calling thread.
    pub(super) fn start() -> Self {
        let stats = stat_files();
        // First: a wait before the next reading would be taken off a time that it is no part of.
        let began = Instant::now();
        let (waited, throttled) = (waited(), throttled(&stats));
        Self { began, waited, throttled, stats }
    }

    /// The time since. Never more than the wall-clock time.
    pub(super) fn elapsed(&self) -> Duration {
        let waited = waited().saturating_sub(self.waited);
        let throttled = throttled(&self.stats).saturating_sub(self.throttled);
        // Last, for the same reason.
        self.began.elapsed().saturating_sub(waited.saturating_sub(throttled))
    }
}

/// How long this thread has waited to run; zero where the kernel does not count it.
fn waited() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or_default())
}

/// How long quotas have throttled this process, in its own cgroup and those above it.
fn throttled(stats: &[PathBuf]) -> Duration {
    stats.iter().filter_map(|file| fs::read_to_string(file).ok()).map(|text| throttled_in(&text)).sum()
}

fn throttled_in(stat: &str) -> Duration {
    stat.lines()
        .find_map(|line| {
            let (name, number) = line.split_once(' ')?;
            let number = number.trim().parse().ok()?;
            match name {
                "throttled_usec" => Some(Duration::from_micros(number)),
                "throttled_time" => Some(Duration::from_nanos(number)),
                _ => None,
            }
        })
        .unwrap_or_default()
}

/// The `cpu.stat` of this process's cgroup and of all visible ones above it.
fn stat_files() -> Vec<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    cgroup_files(&groups, Path::new("/sys/fs/cgroup"), "cpu.stat")
}

/// The files with this name of the `cpu` controllers of these cgroups (`/proc/self/cgroup`), and of all above them,
/// under `root`.
pub(crate) fn cgroup_files(groups: &str, root: &Path, name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mounts: &[&str] = match controllers {
            "" => &["", "unified"],
            _ if controllers.split(',').any(|name| name == "cpu") => &["cpu", "cpu,cpuacct"],
            _ => continue,
        };
        for mount in mounts {
            let mount = root.join(mount);
            let mut folder = mount.join(path.trim_start_matches('/'));
            loop {
                let file = folder.join(name);
                if file.exists() {
                    files.push(file);
                }
                if folder == mount || !folder.pop() {
                    break;
                }
            }
        }
    }
    // `cpu` may be a link to `cpu,cpuacct`.
    files = files.into_iter().filter_map(|file| file.canonicalize().ok()).collect();
    files.sort_unstable();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_a_quota_are_read() {
        let v2 = "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n";
        let v1 = "nr_periods 5\nnr_throttled 3\nthrottled_time 1500000\n";
        assert_eq!(throttled_in(v2), Duration::from_micros(1500));
        assert_eq!(throttled_in(v1), Duration::from_micros(1500));
        assert_eq!(throttled_in("nr_periods 5\n"), Duration::ZERO);
    }

    #[test]
    fn the_files_of_a_group_and_of_those_above_it_are_found() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("pods/one");
        fs::create_dir_all(&deep).unwrap();
        for folder in [deep.as_path(), &root.path().join("pods")] {
            fs::write(folder.join("cpu.stat"), "throttled_usec 1\n").unwrap();
        }
        let files = cgroup_files("0::/pods/one\n5:memory:/pods/one\n", root.path(), "cpu.stat");
        assert_eq!(files.len(), 2);
        assert_eq!(throttled(&files), Duration::from_micros(2));
        assert_eq!(cgroup_files("nonsense\n0::/../../etc\n", root.path(), "cpu.stat").len(), 0);
    }

    #[test]
    fn time_that_passes_is_counted() {
        let clock = OwnTime::start();
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.elapsed() >= Duration::from_millis(20));
    }
}
