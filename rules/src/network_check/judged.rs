//! Each test's time against the others': which of them were slow, and how often a node must be slow to be called so.

use std::time::Duration;

use super::{TestRecord, TestResult, known::Known, ratio, usual::Usual};

/// A test, judged against the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judged {
    pub(super) result: TestResult,
    /// Its time over the mean of the others.
    pub(super) ratio: Option<f64>,
    /// It proves its ends good: it passed, or was slow where slow is good enough.
    pub(super) works: bool,
}

/// Whether each test was slow, and how often a node must be slow: by the scatter of the first round's pairs.
pub(super) fn judge(known: &Known) -> (Vec<Vec<Judged>>, u32) {
    /// So many of a class in the first round say what is usual in it; fewer, together with the others.
    const FEW: usize = 4;
    let seconds = |test: &TestRecord| {
        test.comm.filter(|_| test.result != TestResult::Fail).map(|comm| comm.as_secs_f64())
    };
    let usual = |class_is: &dyn Fn(bool) -> bool| {
        let tests = known.rounds.iter().flat_map(|round| &round.tests);
        let of = tests.filter(|test| class_is(is_across(known, test)));
        Usual::of(of.filter_map(|test| Some((test, seconds(test)?))))
    };
    let of_all = usual(&|_| true);
    let of_class = [false, true].map(|class| usual(&|other| other == class));
    // By what nobody was chosen for because it was slow.
    let screened = known.rounds.first().map_or(&[][..], |round| &round.tests);
    let timed = |class| {
        screened.iter().filter(|test| seconds(test).is_some() && is_across(known, test) == class).count()
    };
    let timed = [false, true].map(timed);
    let threshold = known.policy.straggler_ratio();
    let mut judged: Vec<Vec<Judged>> = Vec::with_capacity(known.rounds.len());
    for round in &known.rounds {
        let judge = |test: &TestRecord| {
            let class = usize::from(is_across(known, test));
            let ratio = seconds(test).map(|seconds| {
                let by_class = || of_class.get(class).map_or(1.0, |usual| usual.ratio(test, seconds));
                let by_all = || of_all.ratio(test, seconds);
                match timed.get(class).copied().unwrap_or(0) {
                    // Later tests of the class are those of suspects, again and again.
                    0 => by_all(),
                    1..FEW => by_class().min(by_all()),
                    _ => by_class(),
                }
            });
            let result = match test.result {
                TestResult::Pass if ratio.is_some_and(|ratio| ratio > threshold) => TestResult::Slow,
                result => result,
            };
            let works = match result {
                TestResult::Pass => true,
                TestResult::Slow => !known.policy.exclude_straggler,
                TestResult::Fail => false,
            };
            Judged { result, ratio, works }
        };
        judged.push(round.tests.iter().map(judge).collect());
    }
    // Of those that are not slow: slow nodes are no scatter.
    let first =
        known.rounds.iter().zip(&judged).take(1).flat_map(|(round, judged)| round.tests.iter().zip(judged));
    let pairs = first.filter(|(test, judged)| test.members.len() == 2 && judged.result == TestResult::Pass);
    let seconds: Vec<f64> =
        pairs.filter_map(|(test, _)| test.comm).map(|comm| Duration::as_secs_f64(&comm)).collect();
    let confirmations = ratio::confirmations(known.order.len(), threshold, ratio::scatter(&seconds));
    // Nobody has more partners.
    let most = u32::try_from(known.order.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let confirmations = confirmations.min(most.max(ratio::FEWEST));
    (judged, confirmations)
}

/// Between racks, which takes another time than within one: two classes of tests.
fn is_across(known: &Known, test: &TestRecord) -> bool {
    let mut racks = test.members.iter().map(|member| known.rack(*member));
    let first = racks.next();
    racks.any(|rack| Some(rack) != first)
}
