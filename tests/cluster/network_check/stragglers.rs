//! Hosts that work, and take too long.

use std::{fs, io::Write as _, path::PathBuf, process};

use super::job::{Job, take};
use crate::hosts::Network;

const SIX: [&str; 2] = ["--nnodes=5:6", "--exclude-straggler"];

#[test]
fn a_host_behind_a_slow_link_is_excluded_and_its_partners_are_not() {
    let Some(network) = Network::of(6) else { return };
    let job = Job::on(&network, &SIX);
    let nodes = job.start();
    let report = job.report(0);
    report.blames(&[]);
    let _world = job.first_world(6);
    let _end = job.ends_well(nodes);
    let mut rates: Vec<f64> =
        report.rounds.iter().flat_map(|it| &it.tests).filter_map(|test| test.mb_per_s).collect();
    rates.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "megabytes per second")]
    let baseline = (rates[rates.len() / 2] * 1e6) as u64;

    network.limit(2, baseline / 20);
    let job = Job::on(&network, &SIX);
    let mut nodes = job.start();
    let report = job.report(0);
    report.blames(&[(2, "straggler-network")]);
    assert!(report.witnesses_against(2).len() >= 2, "{report:#?}");
    let left = take(&mut nodes, 2);
    let _world = job.first_world(5);
    for outcome in job.leave([left], 201) {
        let output = outcome.stderr;
        assert!(output.contains("times the baseline "), "{output}");
        assert!(
            output.contains("\n  Check first: the speed and errors of this node's network interface"),
            "{output}"
        );
    }
    let _end = job.ends_well(nodes);
}

#[test]
fn a_host_with_little_cpu_is_excluded_and_the_others_are_not() {
    let Some(network) = Network::of(6) else { return };
    let Some(quota) = Quota::new() else { return };
    let job = Job::on(&network, &SIX);
    let slow = job.line_of(4).after(&quota.entering()).start();
    // With so little of a processor it may take longer to start than the others would wait for it.
    let _waits = job.await_output(&slow, "1 of 5-6 nodes joined");
    let start = |host: usize| job.line_of(host).start();
    let mut nodes: Vec<_> = (0..4).map(start).chain([slow]).chain([start(5)]).collect();
    let report = job.report(0);
    report.blames(&[(4, "straggler-compute")]);
    let left = take(&mut nodes, 4);
    let _world = job.first_world(5);
    for outcome in job.leave([left], 201) {
        let output = outcome.stderr;
        assert!(output.contains("times the baseline compute time"), "{output}");
        assert!(
            output.contains(
                "\n  Check first: this node's clock throttling, temperature and power limits, CPU quotas"
            ),
            "{output}"
        );
    }
    let _end = job.ends_well(nodes);
}

#[test]
fn more_hosts_than_processors_are_no_stragglers() {
    let Some(network) = Network::of(6) else { return };
    let job = Job::on(&network, &SIX);
    let nodes = job.start();
    job.report(0).blames(&[]);
    let _world = job.first_world(6);
    let _end = job.ends_well(nodes);
}

/// A control group that gets a tenth of one processor, in slices of 10 ms.
struct Quota {
    folder: PathBuf,
}

impl Quota {
    /// `None`, with words for a person, where none can be made.
    fn new() -> Option<Self> {
        let made = Self::of_version_1().or_else(|first| {
            Self::of_version_2().map_err(|second| format!("no control group with a quota: {first}; {second}"))
        });
        made.inspect_err(|reason| {
            let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        })
        .ok()
    }

    fn of_version_1() -> Result<Self, String> {
        Self::make("/sys/fs/cgroup/cpu", &[("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "1000")])
    }

    fn of_version_2() -> Result<Self, String> {
        Self::make("/sys/fs/cgroup", &[("cpu.max", "1000 10000")])
    }

    fn make(root: &str, settings: &[(&str, &str)]) -> Result<Self, String> {
        let folder = PathBuf::from(format!("{root}/dlrover-tests-{}", process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let this = Self { folder };
        for (name, value) in settings {
            let file = this.folder.join(name);
            fs::write(&file, value).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(this)
    }

    /// A shell enters it.
    fn entering(&self) -> String {
        format!("echo $$ > {}", self.folder.join("cgroup.procs").display())
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let gone = || fs::remove_dir(&self.folder).ok();
        // The processes in it have ended, or are about to. A case that fails already has more to say than that.
        if gone().is_none() && !std::thread::panicking() {
            support::wait_for("the end of the processes in the cgroup", gone);
        }
    }
}
