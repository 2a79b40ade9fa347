//! The counts of many rehearsals.

use std::collections::BTreeMap;

use diagnosis::network_check::Outcome;
use serde::Serialize;

use super::super::{
    settings::{Settings, line},
    truth::{Reason, Truth},
};

/// Runs of each flaw that are kept as examples.
const EXAMPLES: usize = 5;

/// One rehearsal.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) number: u64,
    pub(super) settings: &'a Settings,
    pub(super) outcome: &'a Outcome,
}

/// What a check should not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Flaw {
    /// Healthy nodes are tainted.
    HealthyTainted,
    /// Healthy nodes are excluded, and nothing cuts them off.
    HealthyExcluded,
    /// Tests showed faults that are not named.
    Missed,
    /// What works is named as broken.
    WrongNames,
    /// It takes more rounds than promised.
    OverBound,
    /// The job starts with pairs of nodes that are known to be disconnected.
    OverCut,
}

impl Flaw {
    pub(super) const ALL: [Self; 6] = [
        Self::HealthyTainted,
        Self::HealthyExcluded,
        Self::Missed,
        Self::WrongNames,
        Self::OverBound,
        Self::OverCut,
    ];

    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::HealthyTainted => "healthy tainted",
            Self::HealthyExcluded => "healthy excluded",
            Self::Missed => "missed",
            Self::WrongNames => "wrong names",
            Self::OverBound => "over bound",
            Self::OverCut => "disconnected pairs",
        }
    }
}

/// A run with a flaw, to be run alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Example {
    run: u64,
    pub(super) seed: u64,
    pub(super) command: String,
}

/// How often one flaw was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Seen {
    /// Runs with it.
    pub(super) runs: u64,
    /// Nodes, names, pairs; of `over_bound` rounds too many.
    pub(super) count: u64,
    /// The first of the runs.
    pub(super) first: Vec<Example>,
}

/// The counts of many rehearsals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    pub(super) runs: u64,
    /// Every flaw, also those that were not seen.
    pub(super) flaws: BTreeMap<Flaw, Seen>,
    /// Faults that were not found, by reason.
    pub(super) not_found: BTreeMap<Reason, u64>,
    /// Runs in which a fault was not found that no test showed.
    pub(super) unseen_runs: u64,
    /// Healthy nodes that are excluded, for the simulated fabric cuts them off.
    pub(super) cut_off: u64,
    /// Runs in which a node is inconclusive.
    pub(super) undecided_runs: u64,
    /// Runs in which the guard withholds the taints.
    pub(super) mass_failures: u64,
    /// The most rounds of a run.
    pub(super) most_rounds: u32,
    pub(super) rounds: u64,
}

impl Tally {
    /// Counts one more. Runs of one tally come in their order.
    pub(super) fn add(&mut self, run: &Run<'_>) {
        let truth = Truth::of(run.settings, run.outcome);
        self.runs += 1;
        for flaw in Flaw::ALL {
            let count = match flaw {
                Flaw::HealthyTainted => truth.healthy_tainted(),
                Flaw::HealthyExcluded => truth.healthy_excluded(),
                Flaw::Missed => truth.missed_though_shown(),
                Flaw::WrongNames => truth.wrong.len(),
                Flaw::OverBound => truth.bound.map_or(0, |bound| truth.rounds.saturating_sub(bound)) as usize,
                Flaw::OverCut => truth.over_cut,
            };
            let seen = self.flaws.entry(flaw).or_default();
            seen.count += count as u64;
            seen.runs += u64::from(count > 0);
            if count > 0 && seen.first.len() < EXAMPLES {
                let (seed, command) = (run.settings.cluster.seed, line(run.settings));
                seen.first.push(Example { run: run.number, seed, command });
            }
        }
        for missed in &truth.missed {
            *self.not_found.entry(missed.reason()).or_default() += 1;
        }
        let is_unseen = truth.missed.iter().any(|it| it.reason() != Reason::Shown);
        self.unseen_runs += u64::from(is_unseen);
        self.cut_off += truth.cut_off() as u64;
        self.undecided_runs += u64::from(truth.is_undecided);
        self.mass_failures += u64::from(run.outcome.guard.mass_failure);
        self.most_rounds = self.most_rounds.max(truth.rounds);
        self.rounds += u64::from(truth.rounds);
    }

    /// Both together.
    pub(super) fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        for (flaw, seen) in other.flaws {
            let own = self.flaws.entry(flaw).or_default();
            own.runs += seen.runs;
            own.count += seen.count;
            own.first.extend(seen.first);
            own.first.sort();
            own.first.truncate(EXAMPLES);
        }
        for (reason, count) in other.not_found {
            *self.not_found.entry(reason).or_default() += count;
        }
        self.unseen_runs += other.unseen_runs;
        self.cut_off += other.cut_off;
        self.undecided_runs += other.undecided_runs;
        self.mass_failures += other.mass_failures;
        self.most_rounds = self.most_rounds.max(other.most_rounds);
        self.rounds += other.rounds;
    }

    pub(super) fn seen(&self, flaw: Flaw) -> (u64, u64) {
        self.flaws.get(&flaw).map_or((0, 0), |seen| (seen.runs, seen.count))
    }

    /// In a run.
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    pub(super) fn mean_rounds(&self) -> f64 {
        self.rounds as f64 / self.runs.max(1) as f64
    }
}
