//! How the nodes of a job are checked before their workers start, as configured on every node.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use diagnosis::network_check::{Deadlines, OnBadPath, Policy, Tainting};

/// The settings of a check that the nodes of a job agree on. The first node to join sets them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckTerms {
    /// Slow nodes are confirmed and excluded.
    pub exclude_straggler: bool,
    /// The ratio to the mean of the others above which a node is slow, in thousandths; above 1000.
    pub straggler_permille: u32,
    /// The most rounds of tests, at least 1.
    pub max_rounds: u32,
    /// How long tests may take.
    pub deadlines: Deadlines,
    /// Pairs run a program of the user's instead of the native probe.
    pub has_command: bool,
    /// A bandwidth test of all nodes follows.
    pub measures_bandwidth: bool,
    /// The age up to which a restart with the same nodes reuses a check. 0: never.
    pub reuse_for: Duration,
    /// What follows when the check cannot decide which node is at fault.
    pub on_inconclusive: OnInconclusive,
    /// When a node is tainted for a fault that may be temporary.
    pub taint_flaky: Tainting,
    /// What follows from a path that is known to be down.
    pub on_bad_path: OnBadPath,
}

/// What follows when the check cannot decide which node is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnInconclusive {
    Fail,
    /// The nodes take part.
    Proceed,
    /// The nodes leave untainted, and others may take their places.
    Relaunch,
}

impl fmt::Display for OnInconclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fail => "fail",
            Self::Proceed => "proceed",
            Self::Relaunch => "relaunch",
        })
    }
}

impl CheckTerms {
    /// Returns the policy of one check of this job.
    #[must_use]
    pub fn policy(&self, seed: u64, taint_guard_permille: u32) -> Policy {
        Policy {
            max_rounds: self.max_rounds,
            straggler_permille: self.straggler_permille,
            exclude_straggler: self.exclude_straggler,
            taint_flaky: self.taint_flaky,
            on_bad_path: self.on_bad_path,
            taint_guard_permille,
            deadlines: self.deadlines.clone(),
            ..Policy::new(seed)
        }
    }

    /// The settings by name, for a comparison of two nodes.
    pub(crate) fn settings(&self) -> [(&'static str, String); 10] {
        [
            ("exclude-straggler", self.exclude_straggler.to_string()),
            ("straggler-ratio", (f64::from(self.straggler_permille) / 1000.0).to_string()),
            ("check-max-rounds", self.max_rounds.to_string()),
            ("network-check-timeout", self.deadlines.hard.as_secs_f64().to_string()),
            ("check-command", self.has_command.to_string()),
            ("comm-perf-test", self.measures_bandwidth.to_string()),
            ("check-ttl", self.reuse_for.as_secs_f64().to_string()),
            ("on-inconclusive", self.on_inconclusive.to_string()),
            ("taint-flaky", self.taint_flaky.to_string()),
            ("on-bad-path", self.on_bad_path.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> CheckTerms {
        CheckTerms {
            exclude_straggler: false,
            straggler_permille: 2000,
            max_rounds: 8,
            deadlines: Deadlines::native(),
            has_command: false,
            measures_bandwidth: false,
            reuse_for: Duration::ZERO,
            on_inconclusive: OnInconclusive::Fail,
            taint_flaky: Tainting::Confirmed,
            on_bad_path: OnBadPath::Exclude,
        }
    }

    #[test]
    fn taint_flaky_and_on_bad_path_reach_the_policy_and_are_compared() {
        let others = CheckTerms { taint_flaky: Tainting::Never, on_bad_path: OnBadPath::Fail, ..terms() };
        let policy = others.policy(7, 300);
        assert_eq!((policy.taint_flaky, policy.on_bad_path), (Tainting::Never, OnBadPath::Fail));
        let (ours, theirs) = (terms().settings(), others.settings());
        let differing = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs);
        let names: Vec<&str> = differing.map(|((name, _), _)| *name).collect();
        assert_eq!(names, ["taint-flaky", "on-bad-path"]);
    }
}
