//! Thousands of rehearsals, on all processors. The result does not depend on their number.

mod report;
mod sweep;
mod tally;
#[cfg(test)]
mod tests;

use std::{
    num::NonZero,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use diagnosis::network_check::{
    Policy,
    rehearsal::{rehearse, seed_of_run},
};

use self::{
    sweep::Sweep,
    tally::{Run, Tally},
};
use super::settings::{Settings, Template};

/// Runs that a thread takes at once.
const CHUNK: u64 = 16;
/// Between two lines that say how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// One cluster many times, each with a seed of its own.
pub(super) fn repeat(template: &Template, seed: u64, runs: u64, is_json: bool) -> String {
    let tallies = play(1, runs, processors(), |_, run| template.settings(seed_of_run(seed, run)));
    let tally = tallies.into_iter().next().unwrap_or_default();
    match is_json {
        true => report::summary_json(template, seed, &tally),
        false => report::summary(template, seed, &tally),
    }
}

/// Random clusters with one broken element of each kind, or two.
pub(super) fn sweep(policy: &Policy, runs: u64, are_pairs: bool, is_json: bool) -> String {
    let sweep = Sweep::new(policy, are_pairs);
    let tallies = play(sweep.rows(), runs, processors(), |row, run| sweep.settings(row, run));
    let rows: Vec<(String, Tally)> = (0..).map(|row| sweep.name(row)).zip(tallies).collect();
    match is_json {
        true => report::sweep_json(policy.seed, &rows),
        false => report::sweep(policy.seed, &rows),
    }
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Makes `runs` rehearsals of each row, counts by row, and reports every [`PROGRESS_EVERY`] how many are done.
fn play(
    rows: usize,
    runs: u64,
    threads: usize,
    settings: impl Fn(usize, u64) -> Settings + Sync,
) -> Vec<Tally> {
    let all = runs.saturating_mul(rows as u64);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        let mut tallies: Vec<Tally> = (0..rows).map(|_| Tally::default()).collect();
        loop {
            let first = next.fetch_add(CHUNK, Ordering::Relaxed);
            if first >= all {
                return tallies;
            }
            let end = first.saturating_add(CHUNK).min(all);
            for index in first..end {
                let (row, run) = (usize::try_from(index / runs).unwrap_or(usize::MAX), index % runs);
                let settings = settings(row, run);
                let outcome = rehearse(&settings.cluster, settings.policy.clone());
                if let Some(tally) = tallies.get_mut(row) {
                    tally.add(&Run { number: run, settings: &settings, outcome: &outcome });
                }
            }
            done.fetch_add(end - first, Ordering::Relaxed);
        }
    };
    let (is_over, over) = channel::<()>();
    let so_far = &done;
    let progress = move || {
        while over.recv_timeout(PROGRESS_EVERY) == Err(RecvTimeoutError::Timeout) {
            let done = so_far.load(Ordering::Relaxed);
            super::super::log_line(format_args!("{done} of {all} rehearsals done"));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        scope.spawn(progress);
        let mut sum: Vec<Tally> = (0..rows).map(|_| Tally::default()).collect();
        for worker in workers {
            let tallies = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (sum, tally) in sum.iter_mut().zip(tallies) {
                sum.merge(tally);
            }
        }
        drop(is_over);
        sum
    })
}
