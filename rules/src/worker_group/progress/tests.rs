//! Samples in, reports out.

use super::*;
use crate::hang::{HangSources, OnHang};

const TIMEOUT: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(100);

fn terms() -> HangTerms {
    HangTerms { timeout: TIMEOUT, grace: GRACE, sources: HangSources::default(), on_hang: OnHang::Dump }
}

fn sample(rank: u32, changes: u64) -> Sample {
    let step = (changes > 0).then_some(changes);
    Sample { local_rank: LocalRank(rank), step, changes, busy: None, written: None, cpu: None }
}

struct Test {
    progress: WorkersProgress,
    terms: HangTerms,
}

impl Test {
    fn new(workers: u32) -> Self {
        Self { progress: WorkersProgress::default().next(Moment::START, workers), terms: terms() }
    }

    /// The states that are reported, if any are.
    fn at(&mut self, secs: u64, samples: Vec<Sample>) -> Option<Vec<RankState>> {
        let now = Moment::at_secs(secs);
        self.progress.sampled(now, samples, &self.terms);
        let due = self.progress.due(now, &self.terms, 1);
        due.map(|ranks| ranks.iter().map(|rank| rank.state).collect())
    }
}

use RankState::{Advancing, Busy, Ended, Overdue, Stalled, Starting};

#[test]
fn changes_of_state_are_reported_at_once_and_steps_every_ten_seconds() {
    let mut test = Test::new(2);
    assert_eq!(test.at(1, vec![sample(0, 0), sample(1, 0)]), None, "both are starting");
    assert_eq!(test.at(2, vec![sample(0, 1), sample(1, 0)]), Some(vec![Advancing, Starting]));
    assert_eq!(test.at(3, vec![sample(0, 2), sample(1, 1)]), Some(vec![Advancing, Advancing]));
    for secs in 4..13 {
        assert_eq!(test.at(secs, vec![sample(0, secs), sample(1, secs)]), None, "{secs}");
    }
    assert_eq!(test.at(13, vec![sample(0, 13), sample(1, 13)]), Some(vec![Advancing, Advancing]));
    assert_eq!(test.at(22, vec![sample(0, 13), sample(1, 14)]), None);
    assert_eq!(test.at(23, vec![sample(0, 13), sample(1, 14)]), Some(vec![Stalled, Advancing]));
    assert_eq!(test.at(24, vec![sample(0, 14), sample(1, 14)]), Some(vec![Advancing, Advancing]));
}

#[test]
fn a_rank_that_never_declares_progress_is_overdue_and_not_stalled() {
    let mut test = Test::new(1);
    for secs in 1..100 {
        assert_eq!(test.at(secs, vec![sample(0, 0)]), None);
    }
    assert_eq!(test.at(100, vec![sample(0, 0)]), Some(vec![Overdue]));
    assert_eq!(test.at(1000, vec![sample(0, 0)]), None);
}

#[test]
fn a_first_step_may_take_the_grace_period_and_the_next_one_may_not() {
    let mut test = Test::new(1);
    assert_eq!(test.at(90, vec![sample(0, 1)]), Some(vec![Advancing]));
    assert_eq!(test.at(99, vec![sample(0, 1)]), None);
    assert_eq!(test.at(100, vec![sample(0, 1)]), Some(vec![Stalled]));
}

#[test]
fn a_busy_rank_is_not_stalled_within_the_grace_period() {
    let mut test = Test::new(1);
    let busy = |changes| Sample { busy: Some("checkpoint".into()), ..sample(0, changes) };
    // The last state that was reported until then, with a sample every 5 s.
    let mut last = |from: u64, to: u64, next: &dyn Fn() -> Sample| {
        (from..=to).step_by(5).filter_map(|secs| test.at(secs, vec![next()])).last()
    };
    assert_eq!(last(1, 1, &|| sample(0, 1)), Some(vec![Advancing]));
    assert_eq!(last(2, 57, &|| busy(2)), Some(vec![Busy]));
    assert_eq!(last(60, 60, &|| sample(0, 2)), Some(vec![Advancing]), "the end of a checkpoint is progress");
    assert_eq!(last(69, 69, &|| sample(0, 2)), None);
    assert_eq!(last(70, 70, &|| sample(0, 2)), Some(vec![Stalled]));
    assert_eq!(last(80, 175, &|| busy(3)), Some(vec![Busy]));
    assert_eq!(last(180, 180, &|| busy(3)), Some(vec![Stalled]), "no checkpoint takes for ever");
}

/// Such as an evaluation that declares its steps.
#[test]
fn a_busy_rank_that_advances_is_not_stalled_after_the_grace_period() {
    let mut test = Test::new(1);
    let busy = |changes| Sample { busy: Some("evaluation".into()), ..sample(0, changes) };
    let states: Vec<_> = (10..=400).step_by(5).filter_map(|secs| test.at(secs, vec![busy(secs)])).collect();
    assert!(states.iter().all(|states| *states == [Busy]), "{states:?}");
    let idle: Vec<_> = (405..=500).step_by(5).filter_map(|secs| test.at(secs, vec![busy(400)])).collect();
    assert_eq!(idle.last(), Some(&vec![Stalled]));
    // Where output is progress, it is that of a busy rank, too.
    let mut test = Test::new(1);
    test.terms.sources = HangSources { output: true, cpu: false };
    let writing = |secs| Sample { written: Some(secs), ..busy(1) };
    let states: Vec<_> =
        (10..=400).step_by(5).filter_map(|secs| test.at(secs, vec![writing(secs)])).collect();
    assert!(states.iter().all(|states| *states == [Busy]), "{states:?}");
}

/// It may take the grace period, whatever the rank was busy with before.
#[test]
fn a_long_first_step_after_a_pause_is_not_stalled() {
    let mut test = Test::new(1);
    let loading = Sample { busy: Some("loading".into()), step: None, ..sample(0, 1) };
    assert_eq!(test.at(5, vec![loading]), Some(vec![Busy]));
    let loaded = || Sample { step: None, ..sample(0, 2) };
    assert_eq!(test.at(8, vec![loaded()]), Some(vec![Starting]));
    for secs in (10..100).step_by(5) {
        assert_eq!(test.at(secs, vec![loaded()]), None, "{secs}");
    }
    assert_eq!(test.at(100, vec![loaded()]), Some(vec![Overdue]));
    // A number with the word is that of a step.
    let mut test = Test::new(1);
    let _reported = test.at(5, vec![Sample { busy: Some("checkpoint".into()), ..sample(0, 1) }]);
    let _reported = test.at(8, vec![sample(0, 2)]);
    assert_eq!(test.at(18, vec![sample(0, 2)]), Some(vec![Stalled]));
}

/// It counts for the master as one that has declared progress, and many programs that never do make pauses.
#[test]
fn a_rank_that_is_busy_for_ever_is_stalled_only_where_progress_is_expected() {
    let last = |test: &mut Test| {
        let busy = || Sample { step: None, busy: Some("loading".into()), ..sample(0, 1) };
        (5..=200).step_by(5).filter_map(|secs| test.at(secs, vec![busy()])).last()
    };
    let mut test = Test::new(1);
    assert_eq!(last(&mut test), Some(vec![Overdue]));
    let mut wide = Test::new(1);
    wide.terms.sources = HangSources { output: true, cpu: false };
    assert_eq!(last(&mut wide), Some(vec![Stalled]));
    let mut restarted = Test::new(1);
    let _declared = restarted.at(1, vec![sample(0, 1)]);
    restarted.progress = restarted.progress.next(Moment::START, 1);
    assert_eq!(last(&mut restarted), Some(vec![Stalled]));
}

#[test]
fn a_rank_is_not_overdue_at_once_after_a_long_pause() {
    let mut test = Test::new(1);
    let loading = || Sample { step: None, busy: Some("loading".into()), ..sample(0, 1) };
    let states: Vec<_> = (5..=150).step_by(5).filter_map(|secs| test.at(secs, vec![loading()])).collect();
    assert_eq!(states, [[Busy], [Overdue]]);
    let loaded = || Sample { step: None, ..sample(0, 1) };
    assert_eq!(test.at(155, vec![loaded()]), Some(vec![Starting]));
    assert_eq!(test.at(160, vec![loaded()]), None);
    assert_eq!(test.at(165, vec![loaded()]), Some(vec![Overdue]));
}

/// The master may have been restarted since, and know nothing of it.
#[test]
fn a_rank_that_has_declared_in_an_earlier_round_is_stalled_after_the_grace_period() {
    let mut test = Test::new(2);
    let without_number = |changes| Sample { step: None, ..sample(0, changes) };
    assert_eq!(test.at(1, vec![without_number(1), sample(1, 0)]), Some(vec![Advancing, Starting]));
    for _ in 0..2 {
        test.progress = test.progress.next(Moment::START, 2);
        assert_eq!(test.at(99, vec![sample(0, 0), sample(1, 0)]), None);
        assert_eq!(test.at(100, vec![sample(0, 0), sample(1, 0)]), Some(vec![Stalled, Overdue]));
    }
}

#[test]
fn a_machine_that_stood_still_does_not_hang() {
    let mut test = Test::new(1);
    assert_eq!(test.at(1, vec![sample(0, 1)]), Some(vec![Advancing]));
    assert_eq!(test.at(500, vec![sample(0, 1)]), Some(vec![Advancing]), "it was paused with its workers");
    assert_eq!(test.at(509, vec![sample(0, 1)]), None);
    assert_eq!(test.at(511, vec![sample(0, 1)]), Some(vec![Stalled]));
    // Nor has it used up its grace.
    let mut test = Test::new(1);
    assert_eq!(test.at(1, vec![sample(0, 0)]), None);
    assert_eq!(test.at(500, vec![sample(0, 0)]), None);
    let states: Vec<_> =
        (505..=598).step_by(5).filter_map(|secs| test.at(secs, vec![sample(0, 0)])).collect();
    assert!(states.is_empty(), "{states:?}");
    assert_eq!(test.at(599, vec![sample(0, 0)]), Some(vec![Overdue]));
}

#[test]
fn output_and_cpu_time_count_where_they_are_sources() {
    let with = |written, cpu| Sample { written: Some(written), cpu: Some(cpu), ..sample(0, 0) };
    for (output, cpu, expected) in [(true, false, [Advancing, Stalled]), (false, true, [Stalled, Advancing])]
    {
        let mut test = Test::new(1);
        test.terms.sources = HangSources { output, cpu };
        for secs in (50..100).step_by(5) {
            let before = "before its first progress it may take its time";
            assert_eq!(test.at(secs, vec![with(5, 5)]), None, "{before}");
        }
        let _reported = test.at(101, vec![with(6, 6)]);
        let _reported = test.at(109, vec![with(7, 6)]);
        let state = |test: &Test, secs| {
            test.progress.ranks[&LocalRank(0)].state(Moment::at_secs(secs), Moment::START, &test.terms)
        };
        assert_eq!(state(&test, 112), expected[0]);
        let _reported = test.at(113, vec![with(7, 9)]);
        assert_eq!(state(&test, 120), expected[1]);
    }
}

#[test]
fn a_rank_that_has_exited_does_not_hang() {
    let mut test = Test::new(2);
    assert!(test.at(1, vec![sample(0, 1), sample(1, 1)]).is_some());
    test.progress.ended(LocalRank(0));
    assert_eq!(test.at(11, vec![sample(0, 1), sample(1, 1)]), Some(vec![Ended, Stalled]));
}

#[test]
fn steps_per_second_are_those_of_the_last_minute() {
    let mut test = Test::new(1);
    let rate = |test: &Test, secs| test.progress.ranks[&LocalRank(0)].steps_per_1000_s(Moment::at_secs(secs));
    for secs in 0..200 {
        let _reported = test.at(secs, vec![sample(0, 1 + secs * 4)]);
        if secs == 4 {
            assert_eq!(rate(&test, secs), None, "too short");
        }
    }
    assert_eq!(rate(&test, 199), Some(4000));
    let last = 1 + 199 * 4;
    for secs in 200..270 {
        let _reported = test.at(secs, vec![sample(0, last + (secs - 199))]);
    }
    let slower = rate(&test, 269).unwrap();
    assert!((1000..1300).contains(&slower), "{slower}");
    let _reported = test.at(271, vec![sample(0, 5)]);
    assert_eq!(rate(&test, 272), None, "a checkpoint was loaded");
}

#[test]
fn of_many_nodes_each_reports_more_rarely() {
    let mut test = Test::new(1);
    assert!(test.at(1, vec![sample(0, 1)]).is_some());
    test.progress.sampled(Moment::at_secs(9), vec![sample(0, 2)], &test.terms);
    let due = |test: &mut Test, secs| test.progress.due(Moment::at_secs(secs), &test.terms, 1001).is_some();
    assert!(!due(&mut test, 11) && due(&mut test, 18) || due(&mut test, 21));
}
