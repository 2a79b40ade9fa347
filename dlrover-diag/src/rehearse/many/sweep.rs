//! Random clusters of every kind, or of every two kinds.

use diagnosis::network_check::{
    Policy,
    rehearsal::{ELEMENT_KINDS, ElementKind, random_cluster, seed_of_run},
};

use super::super::settings::Settings;

/// The rows of a sweep.
#[derive(Debug)]
pub(super) struct Sweep {
    policy: Policy,
    rows: Vec<Vec<&'static ElementKind>>,
}

impl Sweep {
    pub(super) fn new(policy: &Policy, are_pairs: bool) -> Self {
        let rows = match are_pairs {
            false => ELEMENT_KINDS.iter().map(|kind| vec![kind]).collect(),
            true => {
                // Without the first, which is none.
                let kinds = ELEMENT_KINDS.iter().enumerate().skip(1);
                kinds
                    .flat_map(|(at, one)| ELEMENT_KINDS.iter().skip(at).map(move |two| vec![one, two]))
                    .collect()
            }
        };
        Self { policy: policy.clone(), rows }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn name(&self, row: usize) -> String {
        let kinds = self.rows.get(row).map_or(&[][..], Vec::as_slice);
        kinds.iter().map(|kind| kind.name).collect::<Vec<_>>().join(" + ")
    }

    pub(super) fn settings(&self, row: usize, run: u64) -> Settings {
        let kinds = self.rows.get(row).map_or(&[][..], Vec::as_slice);
        let cluster = random_cluster(seed_of_run(seed_of_run(self.policy.seed, row as u64), run), kinds);
        let is_slow = kinds.iter().any(|kind| kind.is_slow);
        let policy = Policy {
            seed: cluster.seed,
            exclude_straggler: self.policy.exclude_straggler || is_slow,
            ..self.policy.clone()
        };
        Settings { cluster, policy }
    }
}
