//! Workers by whose progress no hang could be seen.

use super::*;
use crate::{
    hang::{HangSources, HangTerms, OnHang},
    ids::NodeRank,
    progress::Sample,
};

const MISSING_AFTER: Duration = Duration::from_secs(100);

/// A node with two workers, started at 0 s. Hang detection was asked for, or not.
fn watched(node_rank: u32, is_asked_for: bool, sources: HangSources) -> WorkerGroup {
    let terms =
        HangTerms { timeout: Duration::from_secs(10), grace: MISSING_AFTER, sources, on_hang: OnHang::Dump };
    let limits = Limits { hang: Some(terms), reports_missing_progress: is_asked_for, ..limits(3) };
    let mut group = WorkerGroup::new(limits);
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
    begin(&mut group, 0, node_rank);
    group
}

fn begin(group: &mut WorkerGroup, round: u32, node_rank: u32) {
    let assignment = Assignment { node_rank: NodeRank(node_rank), ..assignment(round, 2) };
    let _prepares = group.handle(Moment::START, Event::Pushed(Push::Assigned(assignment)));
    assert_eq!(group.handle(Moment::START, prepared(round)), [Effect::Spawn { round: Round(round) }]);
}

/// The lines about missing progress, after samples of which the second worker's has this many changes.
fn notices(group: &mut WorkerGroup, secs: u64, round: u32, changes: u64) -> Vec<Notice> {
    let sample = |rank, changes| Sample {
        local_rank: LocalRank(rank),
        step: None,
        changes,
        busy: None,
        written: Some(secs),
        cpu: Some(secs),
    };
    let samples = vec![sample(0, 0), sample(1, changes)];
    let effects =
        group.handle(Moment::at_secs(secs), Event::ProgressSampled { round: Round(round), samples });
    let notice = |effect: Effect| match effect {
        Effect::Notify(notice @ Notice::ProgressMissing { .. }) => Some(notice),
        _ => None,
    };
    effects.into_iter().filter_map(notice).collect()
}

const NOTICE: Notice = Notice::ProgressMissing { waited: MISSING_AFTER };

#[test]
fn it_is_said_once_in_a_run() {
    let mut group = watched(0, true, HangSources::default());
    assert_eq!(notices(&mut group, 99, 0, 0), []);
    assert_eq!(notices(&mut group, 100, 0, 0), [NOTICE]);
    assert_eq!(notices(&mut group, 110, 0, 0), []);
    let _stops = group.handle(Moment::at_secs(111), exited(0, 0, SEGV));
    let _stopped = group.handle(Moment::at_secs(111), exited(0, 1, TERM));
    let _joins = group.handle(Moment::at_secs(112), gone(0));
    begin(&mut group, 1, 0);
    assert_eq!(notices(&mut group, 300, 1, 0), []);
    let text = NOTICE.to_string();
    assert!(text.contains(" within 100 s of its start") && text.contains("DLROVER_PROGRESS_FILE"), "{text}");
}

#[test]
fn one_rank_that_declares_progress_is_enough() {
    let mut group = watched(0, true, HangSources::default());
    assert_eq!(notices(&mut group, 50, 0, 1), []);
    assert_eq!(notices(&mut group, 100, 0, 1), []);
}

#[test]
fn progress_of_an_earlier_round_is_enough() {
    let mut group = watched(0, true, HangSources::default());
    assert_eq!(notices(&mut group, 50, 0, 1), []);
    let _stops = group.handle(Moment::at_secs(51), exited(0, 0, SEGV));
    let _stopped = group.handle(Moment::at_secs(51), exited(0, 1, TERM));
    let _joins = group.handle(Moment::at_secs(52), gone(0));
    begin(&mut group, 1, 0);
    assert_eq!(notices(&mut group, 300, 1, 0), []);
}

#[test]
fn nothing_is_said_where_nothing_is_missed() {
    let wide = HangSources { output: true, cpu: false };
    for (node_rank, is_asked_for, sources) in
        [(0, false, HangSources::default()), (1, true, HangSources::default()), (0, true, wide)]
    {
        let mut group = watched(node_rank, is_asked_for, sources);
        assert_eq!(notices(&mut group, 100, 0, 0), [], "{node_rank} {is_asked_for} {sources:?}");
    }
}
