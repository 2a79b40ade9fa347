//! Each test's time against the others': which of them were slow, and how many slow tests make a slow node.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Baseline, TestRecord, TestResult,
    baseline::TransferTimes,
    check_log::CheckLog,
    ratio::{self, Mean},
};

/// The fewest other nodes that make a baseline for a class of tests by themselves.
const ENOUGH: u32 = 6;

/// A test, judged against the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judged {
    pub(super) result: TestResult,
    /// The baseline; `None` without one.
    pub(super) baseline: Option<Baseline>,
    /// Its time over the baseline.
    pub(super) ratio: Option<f64>,
    /// It proves its ends good: it passed, or was slow where slow is good enough.
    pub(super) works: bool,
}

/// Whether each test was slow, and how many slow tests make a slow node: by the scatter of the first round's pairs.
pub(super) fn judge(log: &CheckLog) -> (Vec<Vec<Judged>>, u32) {
    let tests = || log.rounds.iter().flat_map(|round| &round.tests);
    let timed = || tests().filter_map(|test| Some((test, seconds(test)?)));
    let of_all = TransferTimes::of(timed(), |_| true);
    // Tests between racks are no faster: the others of a test within a rack have both kinds.
    let inside = timed().filter(|(test, _)| !test.across);
    let inside: BTreeSet<u32> = inside.flat_map(|(test, _)| test.members.iter().copied()).collect();
    let within = TransferTimes::of(timed(), |node| inside.contains(&node));
    let across = TransferTimes::of(timed().filter(|(test, _)| test.across), |_| true);
    let threshold = log.policy.straggler_ratio();
    let mut judged: Vec<Vec<Judged>> = Vec::with_capacity(log.rounds.len());
    for round in &log.rounds {
        let judge = |test: &TestRecord| {
            let class = if test.across { &across } else { &within };
            let held = seconds(test).and_then(|seconds| {
                let (mean, is_of_all) = mean_for(test, seconds, class, &of_all)?;
                Some((baseline(mean, is_of_all), mean.ratio_of(seconds)?))
            });
            let (baseline, ratio) = held.unzip();
            let result = match test.result {
                TestResult::Pass if ratio.is_some_and(|ratio| ratio > threshold) => TestResult::Slow,
                result => result,
            };
            let works = match result {
                TestResult::Pass => true,
                TestResult::Slow => !log.policy.exclude_straggler,
                TestResult::Fail => false,
            };
            Judged { result, baseline, ratio, works }
        };
        judged.push(round.tests.iter().map(judge).collect());
    }
    // Slow nodes do not count as scatter.
    let first =
        log.rounds.iter().zip(&judged).take(1).flat_map(|(round, judged)| round.tests.iter().zip(judged));
    let pairs = first.filter(|(test, judged)| test.members.len() == 2 && judged.result == TestResult::Pass);
    let seconds: Vec<f64> =
        pairs.filter_map(|(test, _)| test.comm).map(|comm| Duration::as_secs_f64(&comm)).collect();
    let confirmations = ratio::confirmations(log.order.len(), threshold, ratio::scatter(&seconds));
    // No node has more partners.
    let most = u32::try_from(log.order.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let confirmations = confirmations.min(most.max(ratio::FEWEST));
    (judged, confirmations)
}

/// The time of a test that did not fail.
fn seconds(test: &TestRecord) -> Option<f64> {
    test.comm.filter(|_| test.result != TestResult::Fail).map(|comm| comm.as_secs_f64())
}

/// The baseline of a test, and whether it is of all nodes. A test within a rack: the others that were tested within
/// racks, or all others where too few were, for tests between racks are no faster. A test between racks: the others
/// that were tested between racks; where they are few, they may be fast by chance, so the larger mean counts; where
/// there are none, there is no baseline.
fn mean_for(
    test: &TestRecord,
    seconds: f64,
    class: &TransferTimes,
    all: &TransferTimes,
) -> Option<(Mean, bool)> {
    let of_class = class.mean_for(test, seconds);
    if let Some(own) = of_class.filter(|own| own.seen() >= ENOUGH) {
        return Some((own, false));
    }
    let of_all = all.mean_for(test, seconds).map(|all| (all, true));
    match of_class {
        _ if !test.across => of_all,
        Some(own) => of_all.filter(|(all, _)| all.value > own.value).or(Some((own, false))),
        None => None,
    }
}

/// For the record.
fn baseline(mean: Mean, of_all: bool) -> Baseline {
    let time = Duration::try_from_secs_f64(mean.value).unwrap_or(Duration::MAX);
    Baseline { time, counted: mean.counted, left_out: mean.left_out, of_all }
}

/// Whether it is between racks, which takes another time than within one: two classes of tests.
pub(super) fn is_across(log: &CheckLog, members: &[u32]) -> bool {
    let mut racks = members.iter().map(|member| log.rack(*member));
    let first = racks.next();
    racks.any(|rack| Some(rack) != first)
}
