//! The template of warm workers: when it is started, what waits for it, and what follows when it is not there.

use super::*;
use crate::{
    hang::{HangSources, HangTerms, OnHang},
    progress::Sample,
    warm::{LeftOut, WarmNotice, WarmStart, WarmTerms},
};

fn at(secs: u64) -> Moment {
    Moment::at_secs(secs)
}

fn group(when: WarmStart, has_modules: bool, max_restarts: u32) -> WorkerGroup {
    let (timeout, grace) = (Duration::from_secs(300), Duration::from_secs(1800));
    let hang = HangTerms { timeout, grace, sources: HangSources::default(), on_hang: OnHang::Dump };
    let warm = Some(WarmTerms { when, has_modules });
    let mut group = WorkerGroup::new(Limits { hang: Some(hang), warm, ..limits(max_restarts) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [join(0, None)]);
    group
}

/// Of workers that have counted so many steps, each.
fn sampled(round: u32, changes: &[u64]) -> Event {
    let sample = |(local_rank, changes): (u32, &u64)| {
        let step = (*changes > 0).then_some(*changes);
        let local_rank = LocalRank(local_rank);
        Sample { local_rank, step, changes: *changes, busy: None, written: None, cpu: None }
    };
    Event::ProgressSampled { round: Round(round), samples: (0..).zip(changes).map(sample).collect() }
}

fn starts_template(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::StartTemplate { .. }))
}

fn said(notice: WarmNotice) -> Effect {
    Effect::Notify(Notice::Warm(notice))
}

fn ready() -> Event {
    Event::TemplateReady { kib: 1, left_out: Vec::new() }
}

fn unfit(reason: &str) -> Event {
    Event::TemplateUnfit { reason: reason.to_owned() }
}

fn refused(reason: &str) -> Event {
    Event::TemplateRefused { reason: reason.to_owned() }
}

#[test]
fn a_template_is_started_once_when_all_workers_have_made_a_step() {
    let mut group = group(WarmStart::Restart, false, 3);
    start(&mut group, 0, 2);
    assert!(!starts_template(&group.handle(at(1), sampled(0, &[0, 0]))));
    assert!(!starts_template(&group.handle(at(2), sampled(0, &[1, 0]))));
    assert!(starts_template(&group.handle(at(3), sampled(0, &[1, 1]))));
    assert!(!starts_template(&group.handle(at(4), sampled(0, &[2, 2]))));
    assert_eq!(group.handle(at(5), ready()), []);
    assert!(!starts_template(&group.handle(at(6), sampled(0, &[3, 3]))));
}

#[test]
fn where_nothing_restarts_there_is_no_template() {
    let mut group = group(WarmStart::Restart, false, 0);
    start(&mut group, 0, 2);
    assert!(starts_template(&group.handle(at(3), sampled(0, &[1, 1]))), "the other node may fail");

    let mut alone = super::warm::group(WarmStart::Restart, false, 0);
    let assignment = Assignment { nodes: 1, ..assignment(0, 2) };
    let _prepares = alone.handle(Moment::START, Event::Pushed(Push::Assigned(assignment)));
    assert_eq!(alone.handle(Moment::START, prepared(0)), [Effect::Spawn { round: Round(0) }]);
    assert!(!starts_template(&alone.handle(at(3), sampled(0, &[1, 1]))));
}

#[test]
fn a_template_of_given_modules_needs_no_step() {
    let mut group = group(WarmStart::Restart, true, 3);
    start(&mut group, 0, 1);
    assert_eq!(group.deadline(), Some(at(30)));
    assert_eq!(group.handle(at(30), Event::Deadline), [Effect::StartTemplate { is_idle: true }]);
    // A worker that shows progress is not waited for.
    let mut group = super::warm::group(WarmStart::Restart, true, 3);
    start(&mut group, 0, 1);
    assert!(starts_template(&group.handle(at(3), sampled(0, &[1]))));
    assert!(!starts_template(&group.handle(at(30), Event::Deadline)));
}

#[test]
fn the_first_workers_wait_for_the_template_if_they_are_to() {
    let mut group = group(WarmStart::Start, false, 3);
    let _prepares = group.handle(Moment::START, assigned(0, 2));
    assert_eq!(group.handle(at(1), prepared(0)), [Effect::StartTemplate { is_idle: false }]);
    assert_eq!(group.deadline(), Some(at(121)));
    assert_eq!(group.handle(at(4), ready()), [Effect::Spawn { round: Round(0) }]);
    // Those of a restart do not wait: it is there.
    let _stops = group.handle(at(5), exited(0, 0, SEGV));
    let _stopped = group.handle(at(5), exited(0, 1, TERM));
    assert_eq!(group.handle(at(6), gone(0)), [join(1, Some(0))]);
    let _prepares = group.handle(at(6), assigned(1, 2));
    assert_eq!(group.handle(at(6), prepared(1)), [Effect::Spawn { round: Round(1) }]);
}

#[test]
fn workers_that_wait_are_started_when_there_will_be_no_template() {
    let mut unusable = group(WarmStart::Start, false, 3);
    let _prepares = unusable.handle(Moment::START, assigned(0, 2));
    assert_eq!(unusable.handle(at(1), prepared(0)), [Effect::StartTemplate { is_idle: false }]);
    let reason = "importing `x` fails".to_owned();
    let notice = said(WarmNotice::Unfit { reason: reason.clone() });
    assert_eq!(unusable.handle(at(2), unfit(&reason)), [notice, Effect::Spawn { round: Round(0) }]);
    assert!(!starts_template(&unusable.handle(at(3), sampled(0, &[1, 1]))), "nor will the next one be");

    let mut slow = group(WarmStart::Start, false, 3);
    let _prepares = slow.handle(Moment::START, assigned(0, 2));
    assert_eq!(slow.handle(at(1), prepared(0)), [Effect::StartTemplate { is_idle: false }]);
    let notice = said(WarmNotice::Unfit { reason: "its imports took more than 120 s".to_owned() });
    let expected = [Effect::EndTemplate, notice, Effect::Spawn { round: Round(0) }];
    assert_eq!(slow.handle(at(121), Event::Deadline), expected);
    assert_eq!(slow.handle(at(122), unfit("the template has ended")), [], "it was ended");
}

#[test]
fn a_round_that_is_over_starts_nothing_when_the_template_is_ready() {
    let mut group = group(WarmStart::Start, false, 3);
    let _prepares = group.handle(Moment::START, assigned(0, 2));
    assert_eq!(group.handle(at(1), prepared(0)), [Effect::StartTemplate { is_idle: false }]);
    let effects = group.handle(at(2), super::regroup(0));
    assert!(effects.contains(&join(0, Some(0))), "{effects:?}");
    assert_eq!(group.handle(at(3), ready()), []);
    let _prepares = group.handle(at(4), assigned(1, 2));
    assert_eq!(group.handle(at(4), prepared(1)), [Effect::Spawn { round: Round(1) }]);
}

#[test]
fn a_template_whose_round_was_given_up_is_overdue_after_its_own_time() {
    let mut group = group(WarmStart::Start, false, 3);
    let _prepares = group.handle(Moment::START, assigned(0, 2));
    assert_eq!(group.handle(at(1), prepared(0)), [Effect::StartTemplate { is_idle: false }]);
    let _joins = group.handle(at(2), super::regroup(0));
    let _prepares = group.handle(at(4), assigned(1, 2));
    assert_eq!(group.handle(at(4), prepared(1)), [Effect::Spawn { round: Round(1) }]);
    let notice = said(WarmNotice::Unfit { reason: "its imports took more than 120 s".to_owned() });
    assert_eq!(group.handle(at(121), Event::Deadline), [Effect::EndTemplate, notice]);
}

#[test]
fn a_template_that_was_refused_is_replaced_twice() {
    let mut group = group(WarmStart::Restart, false, 9);
    start(&mut group, 0, 1);
    for attempt in 0..3 {
        let now = at(10 * (attempt + 1));
        let round = u32::try_from(attempt).unwrap();
        assert!(starts_template(&group.handle(now, sampled(round, &[1]))), "{attempt}");
        assert_eq!(group.handle(now, ready()), []);
        let _stops = group.handle(now, exited(round, 0, SEGV));
        let _joins = group.handle(now, gone(round));
        let _prepares = group.handle(now, assigned(round + 1, 1));
        assert_eq!(group.handle(now, prepared(round + 1)), [Effect::Spawn { round: Round(round + 1) }]);
        let notice = WarmNotice::Refused { reason: "a file has changed".into(), is_last: attempt == 2 };
        assert_eq!(group.handle(now, super::warm::refused("a file has changed")), [said(notice)]);
    }
    assert!(!starts_template(&group.handle(at(50), sampled(3, &[1]))));
}

#[test]
fn a_template_that_takes_too_long_beside_workers_is_ended() {
    let mut group = group(WarmStart::Restart, false, 3);
    start(&mut group, 0, 1);
    assert!(starts_template(&group.handle(at(3), sampled(0, &[1]))));
    assert_eq!(group.deadline(), Some(at(1803)));
    let notice = said(WarmNotice::Unfit { reason: "its imports took more than 1800 s".to_owned() });
    assert_eq!(group.handle(at(1803), Event::Deadline), [Effect::EndTemplate, notice]);
    assert_eq!(group.deadline(), None);
}

#[test]
fn what_the_template_leaves_out_is_told() {
    let left_out = LeftOut { package: "lightning".into(), variable: "LOCAL_RANK".into() };
    let notice = WarmNotice::LeftOut(left_out.clone());
    assert_eq!(
        notice.to_string(),
        "the template of warm workers does not import `lightning`, which reads LOCAL_RANK while it is imported; each \
         worker imports it"
    );
    let mut group = group(WarmStart::Start, false, 3);
    let _prepares = group.handle(Moment::START, assigned(0, 2));
    assert_eq!(group.handle(at(1), prepared(0)), [Effect::StartTemplate { is_idle: false }]);
    let ready = Event::TemplateReady { kib: 1, left_out: vec![left_out] };
    assert_eq!(group.handle(at(4), ready.clone()), [said(notice), Effect::Spawn { round: Round(0) }]);
    assert_eq!(group.handle(at(5), ready), [], "it is no template any more that is awaited");
}
