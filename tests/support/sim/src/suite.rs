//! Many schedules at once, and how to run one of them again.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    plan::Plan,
    simulation::{Report, Simulation},
};

/// The results of many schedules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many ran.
    pub schedules: u64,
    /// Actions in all of them.
    pub steps: u64,
    /// Jobs that succeeded.
    pub succeeded: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Starts of workers.
    pub spawned: u64,
    /// Records of the journals.
    pub records: u64,
    /// Masters that were killed and started again.
    pub restarts: u64,
}

impl Tally {
    fn add(&mut self, report: &Report) {
        self.schedules += 1;
        self.steps += report.steps;
        match &report.verdict {
            Some(rules::verdict::JobVerdict::Succeeded) => self.succeeded += 1,
            Some(rules::verdict::JobVerdict::Failed(_)) => self.failed += 1,
            None => {}
        }
        self.spawned += report.spawned.len() as u64;
        self.records += report.records as u64;
        self.restarts += report.master_starts - 1;
    }
}

/// The schedule of a number, and the command that runs it again.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The test that runs it.
    pub test: &'static str,
    /// The number's schedule.
    pub plan: fn(u64) -> Plan,
}

impl Family {
    /// How to run one schedule again, with every step of it shown.
    #[must_use]
    pub fn replay(&self, seed: u64) -> String {
        let test = self.test;
        format!(
            "DLROVER_SIM_SEED={seed} DLROVER_SIM_TRACE=1 cargo test -p dlrover-sim --test schedules {test} -- --nocapture"
        )
    }

    /// Runs one.
    ///
    /// # Panics
    /// When an invariant does not hold, with the command that shows it again.
    #[must_use]
    pub fn run(&self, seed: u64) -> Report {
        let _told_when_rules_panic = ReplayOnPanic { family: *self, seed };
        match Simulation::new((self.plan)(seed)).run() {
            Ok(report) => report,
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }

    /// Runs many, on all cores.
    ///
    /// # Panics
    /// When an invariant does not hold, with the command that shows it again.
    #[must_use]
    pub fn run_all(&self, seeds: std::ops::Range<u64>) -> Tally {
        let next = AtomicU64::new(seeds.start);
        let tally = Mutex::new(Tally::default());
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut mine = Tally::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            break;
                        }
                        let told = Stop(&next);
                        mine.add(&self.run(seed));
                        std::mem::forget(told);
                    }
                    let mut all = tally.lock().expect("no thread panics while it adds");
                    all.schedules += mine.schedules;
                    all.steps += mine.steps;
                    all.succeeded += mine.succeeded;
                    all.failed += mine.failed;
                    all.spawned += mine.spawned;
                    all.records += mine.records;
                    all.restarts += mine.restarts;
                });
            }
        });
        let tally = tally.lock().expect("no thread panics while it adds");
        *tally
    }
}

/// The other threads stop when one has failed.
struct Stop<'a>(&'a AtomicU64);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX / 2, Ordering::Relaxed);
    }
}

/// Prints how to run a schedule again when it panics.
struct ReplayOnPanic {
    family: Family,
    seed: u64,
}

impl Drop for ReplayOnPanic {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: {}", self.family.replay(self.seed));
        }
    }
}

/// A number from the environment.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
