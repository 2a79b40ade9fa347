//! The master is lost: the jurors are asked, and the workers keep running or are killed.

use super::*;
use crate::fence::{Answer, FenceFinding, FenceTerms, Juror};

const LEASE: Duration = Duration::from_secs(12);

fn at(secs: u64) -> Moment {
    Moment::at_secs(secs)
}

fn juror(name: &str) -> Juror {
    Juror { node: NodeId(name.into()), address: "10.0.0.9".into(), port: 1 }
}

fn fenced(round: u32) -> Assignment {
    let jury = vec![juror("me"), juror("b"), juror("c")];
    let fence = Some(FenceTerms { lease: LEASE, jury, is_master_within: false });
    Assignment { fence, ..assignment(round, 1) }
}

fn heard(secs: u64) -> Event {
    Event::MasterAnswered { sent: at(secs) }
}

/// An assignment to round 0 at 0 s; that was the last contact with the master.
fn fenced_and_running() -> WorkerGroup {
    let mut group = joining(0);
    let assignment = fenced(0);
    let _ = group.handle(at(0), Event::Pushed(Push::Assigned(assignment)));
    assert_eq!(group.handle(at(0), prepared(0)), [Effect::Spawn { round: Round(0) }]);
    group
}

fn asking() -> Effect {
    let jury = vec![juror("b"), juror("c")];
    Effect::Ask { round: Round(0), jury, timeout: LEASE / 6, of_master: false }
}

fn answered(answers: &[Answer]) -> Event {
    Event::Answered { round: Round(0), answers: answers.to_vec(), is_master_gone: false }
}

fn told(silent: u64, found: Option<FenceFinding>) -> Effect {
    Effect::Notify(Notice::Fenced { silent: Duration::from_secs(silent), found, limit: JOIN })
}

#[test]
fn a_node_whose_peer_has_the_master_kills_its_workers_and_joins_again_uncharged() {
    let mut group = fenced_and_running();
    assert_eq!((group.deadline(), group.kill_at()), (Some(at(4)), Some(at(10))));
    assert_eq!(group.handle(at(4), Event::Deadline), [asking()]);
    assert_eq!(group.handle(at(5), answered(&[Answer::Lost, Answer::Connected])), []);
    assert_eq!(group.handle(at(6), Event::Deadline), [asking()]);
    let _ = group.handle(at(7), away());
    assert_eq!(group.handle(at(8), answered(&[Answer::Connected])), []);
    assert_eq!(group.handle(at(8), Event::Deadline), [asking()]);
    let killed = group.handle(at(10), Event::Deadline);
    assert_eq!(killed, [told(10, Some(FenceFinding::CutOff)), Effect::KillTree]);
    assert_eq!(group.deadline(), Some(at(10) + KILL_TIMEOUT));
    assert_eq!(group.handle(at(10), exited(0, 0, ExitCause::Signal(9))), []);
    assert_eq!((group.handle(at(10), gone(0)), group.kill_at()), (vec![], None));
    assert_eq!(group.handle(at(30), Event::MasterBack).last(), Some(&join(0, Some(0))));
}

#[test]
fn with_most_jurors_without_a_master_the_workers_keep_running_and_one_message_is_shown() {
    let mut group = fenced_and_running();
    let _ = group.handle(at(1), away());
    let dead = Effect::Notify(Notice::MasterDead { lost: 2, of: 3 });
    for time in 0..50 {
        assert_eq!(group.handle(at(4 + 2 * time), Event::Deadline), [asking()]);
        let said = group.handle(at(5 + 2 * time), answered(&[Answer::Lost]));
        assert_eq!(said, if time == 0 { vec![dead.clone()] } else { vec![] });
    }
    assert_eq!(group.kill_at(), Some(at(4 + 2 * 49 + 10)));
    // The master is back, and goes away once more.
    let _ = group.handle(at(110), heard(109));
    assert_eq!(group.kill_at(), Some(at(119)));
}

#[test]
fn a_launcher_that_stood_still_finds_its_workers_killed_and_is_not_charged() {
    let mut group = fenced_and_running();
    // Its guard has killed them.
    let seen = group.handle(at(20), exited(0, 0, ExitCause::Signal(9)));
    assert_eq!(seen, [told(20, None), Effect::KillTree]);
    assert_eq!(group.attempt(), Attempt(0));
    assert_eq!(group.handle(at(20), gone(0)), [join(0, Some(0))]);
}

#[test]
fn a_late_assignment_starts_no_workers() {
    let mut group = joining(0);
    let assignment = fenced(0);
    assert_eq!(group.handle(at(11), Event::Pushed(Push::Assigned(assignment))), [join(0, Some(0))]);
    let mut group = joining(0);
    let assignment = fenced(0);
    let _ = group.handle(at(0), Event::Pushed(Push::Assigned(assignment)));
    assert_eq!(group.handle(at(11), prepared(0)), [told(11, None), join(0, Some(0))]);
}

#[test]
fn workers_that_are_being_stopped_have_no_longer_than_the_lease() {
    let mut group = fenced_and_running();
    assert_eq!(group.handle(at(1), regroup(0)), [regrouping(), Effect::SignalTree { signal: 15 }]);
    assert_eq!(group.handle(at(10), Event::Deadline), [told(10, None), Effect::KillTree]);
    assert_eq!(group.handle(at(11), gone(0)), [join(0, Some(0))]);
}

#[test]
fn answers_in_time_keep_the_workers_and_late_ones_do_not() {
    let mut group = fenced_and_running();
    for secs in 0..100 {
        assert_eq!(group.handle(at(secs), heard(secs)), []);
        assert_eq!(group.deadline(), Some(at(secs + 4)));
    }
    assert_eq!(group.handle(at(103), Event::Deadline), [asking()]);
    let late = group.handle(at(109), answered(&[Answer::Lost, Answer::Lost]));
    assert_eq!(late, [told(10, None), Effect::KillTree]);
}

#[test]
fn the_standpoint_is_the_last_round_that_is_over() {
    let mut group = fenced_and_running();
    let of = |group: &WorkerGroup, round| group.juror_state().answer(false, Round(round));
    assert_eq!(of(&group, 0), Answer::Lost);
    assert_eq!(group.juror_state().answer(true, Round(0)), Answer::Connected);
    let _ = group.handle(at(1), heard(1));
    let _ = group.handle(at(1), regroup(0));
    let _ = group.handle(at(1), gone(0));
    let assignment = fenced(1);
    let _ = group.handle(at(1), Event::Pushed(Push::Assigned(assignment)));
    assert_eq!((of(&group, 0), of(&group, 1)), (Answer::MovedOn, Answer::Lost));
}
