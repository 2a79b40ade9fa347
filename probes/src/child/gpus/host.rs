//! The host: processors, memory, load, and what the container may use of them.

use std::{fs, path::PathBuf};

use diagnosis::gpus::{CgroupLimits, Host as Facts};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::{Collector, Source};
use crate::child::local::cgroup_files;

/// This host; `root` contains `sys`.
pub(super) struct Host {
    pub(super) root: PathBuf,
}

impl Source for Host {
    fn take(&self, collector: &mut Collector<'_>) {
        collector.at("the host");
        let kinds = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let Ok(system) = System::new_with_specifics(kinds) else {
            collector.note("processors and memory of this host cannot be read");
            return;
        };
        let some = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        let memory_total = some(system.total_memory());
        // sysinfo returns the host's total where there is no limit.
        let limit = system.cgroup_limits().map(|limits| limits.total_memory);
        collector.inventory.host = Facts {
            cpus: u32::try_from(system.cpus().len()).ok().filter(|cpus| *cpus > 0),
            memory_total,
            memory_available: some(system.available_memory()),
            load_percent: System::load_average().ok().map(|load| percent(load.one)),
            limits: CgroupLimits {
                cpu_percent: self.quota(),
                memory: limit.filter(|limit| *limit > 0 && Some(*limit) < memory_total),
            },
        };
    }
}

impl Host {
    /// The smallest quota of this process's cgroup and those above it, in hundredths of a processor.
    fn quota(&self) -> Option<u32> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let root = self.root.join("sys/fs/cgroup");
        let read = |name: &str| -> Vec<(PathBuf, String)> {
            let files = cgroup_files(&groups, &root, name);
            files
                .into_iter()
                .filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?)))
                .collect()
        };
        let v2 = read("cpu.max").into_iter().filter_map(|(_, text)| quota_v2(&text));
        let v1 = read("cpu.cfs_quota_us").into_iter().filter_map(|(file, text)| {
            let period = fs::read_to_string(file.with_file_name("cpu.cfs_period_us")).ok()?;
            share(text.trim(), period.trim())
        });
        v2.chain(v1).min()
    }
}

/// `50000 100000` or `max 100000`.
fn quota_v2(text: &str) -> Option<u32> {
    let (quota, period) = text.trim().split_once(' ')?;
    share(quota, period)
}

/// Quota per period, in hundredths. `None` without a limit (`max`, -1).
fn share(quota: &str, period: &str) -> Option<u32> {
    let quota: u64 = quota.parse().ok()?;
    let period: u64 = period.parse().ok().filter(|period| *period > 0)?;
    u32::try_from(quota.saturating_mul(100) / period).ok()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a load; the cast saturates")]
fn percent(load: f64) -> u32 {
    (load * 100.0).round() as u32
}

#[cfg(test)]
mod tests {
    use diagnosis::gpus::Inventory;

    use super::*;

    #[test]
    fn both_versions_of_a_quota_are_read() {
        assert_eq!(quota_v2("150000 100000\n"), Some(150));
        assert_eq!(quota_v2("max 100000\n"), None);
        assert_eq!((share("-1", "100000"), share("50000", "0"), share("x", "y")), (None, None, None));
    }

    #[test]
    fn this_host_has_a_processor_and_memory() {
        let mut silent = |_| {};
        let mut collector = Collector { inventory: Inventory::default(), subscribers: &mut silent };
        Host { root: "/".into() }.take(&mut collector);
        let host = &collector.inventory.host;
        assert!(host.cpus > Some(0) && host.memory_total > Some(1 << 20), "{host:?}");
        assert!(host.memory_available <= host.memory_total);
    }
}
