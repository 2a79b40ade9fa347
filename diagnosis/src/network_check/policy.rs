//! The default policy.

use std::time::Duration;

use super::{Deadlines, FabricNames, OnBadPath, Policy, Tainting};

/// No deadline is shorter, whatever was configured: a check must end by steps of time.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);

impl Policy {
    /// The defaults: 8 rounds, 2 witnesses, stragglers above 2.0 are reported and stay, links are distinguished from
    /// nodes, the guard at 30 %.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            max_rounds: 8,
            confirm: 2,
            straggler_permille: 2000,
            exclude_straggler: false,
            diagnose_links: true,
            taint_flaky: Tainting::Confirmed,
            on_bad_path: OnBadPath::Exclude,
            taint_guard_permille: 300,
            deadlines: Deadlines::native(),
            names: FabricNames::default(),
        }
    }

    /// As a ratio; never below 1, where every node would be slow.
    pub(super) fn straggler_ratio(&self) -> f64 {
        f64::from(self.straggler_permille.max(1000)) / 1000.0
    }
}

impl Deadlines {
    /// For the built-in probe: its processes run already, so a pair takes well under a second.
    #[must_use]
    pub const fn native() -> Self {
        Self {
            floor: Duration::from_secs(2),
            hard: Duration::from_secs(15),
            median_permille: 3000,
            quorum_permille: 250,
            kill_grace: Duration::from_secs(1),
        }
    }

    /// For a command that is started for each test: imports alone take ten seconds. `hard` is mostly 180 s.
    #[must_use]
    pub const fn command(hard: Duration) -> Self {
        Self {
            floor: Duration::from_secs(20),
            hard,
            median_permille: 3000,
            quorum_permille: 250,
            kill_grace: Duration::from_secs(5),
        }
    }

    /// How long the tests of a round may take by the `median` of the passed ones; `None`: too few have.
    pub(super) fn timeout(&self, median: Option<Duration>) -> Duration {
        let hard = self.hard.max(SHORTEST);
        let Some(median) = median else { return hard };
        let shared = median.checked_mul(self.median_permille).map_or(hard, |scaled| scaled / 1000);
        shared.max(self.floor).min(hard)
    }

    /// How long reports are waited for after the last test was cut short.
    pub(super) fn report_grace(&self) -> Duration {
        self.kill_grace.saturating_mul(2).max(SHORTEST)
    }
}
