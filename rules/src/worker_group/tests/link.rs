//! The master: its store, its refusals, its absence, its end.

use super::*;
use crate::root_cause::{FailureDetail, RootCause};

fn asked(round: u32, fresh_port: bool) -> Event {
    Event::Pushed(Push::Host { round: Round(round), fresh_port })
}

fn hosting(round: u32) -> Event {
    Event::Hosting { round: Round(round), master_addr: None, master_port: 5 }
}

fn reported_hosting(round: u32) -> Effect {
    Effect::ReportHosting { round: Round(round), master_addr: None, master_port: 5 }
}

fn master_away(keeps_running: bool) -> Effect {
    Effect::Notify(Notice::MasterAway { reason: "broke off".into(), keeps_running, limit: JOIN })
}

fn waiting(waited: u64) -> Effect {
    let waited = Duration::from_secs(waited);
    Effect::Notify(Notice::WaitingForMaster { reason: "broke off".into(), waited, limit: JOIN })
}

fn given_up() -> Outcome {
    Outcome::Failed(Failure::MasterAway { reason: "broke off".into(), waited: JOIN })
}

fn refusal() -> Outcome {
    Outcome::Failed(Failure::Master { reason: "rank held".into() })
}

const BACK: Effect = Effect::Notify(Notice::MasterBack);

#[test]
fn a_store_that_is_asked_for_twice_is_not_emptied_twice() {
    let mut group = joining(0);
    let now = Moment::START;
    assert_eq!(group.handle(now, asked(0, true)), [Effect::HostStore { round: Round(0), fresh_port: true }]);
    assert_eq!(group.handle(now, asked(0, true)), [], "it is being opened");
    assert_eq!(group.handle(now, hosting(7)), [], "of another round");
    assert_eq!(group.handle(now, hosting(0)), [reported_hosting(0)]);
    assert_eq!(group.handle(now, asked(0, true)), [reported_hosting(0)], "the answer was not heard");
    // This node was not in that round, but others may have been: their workers know the port.
    let again = Effect::HostStore { round: Round(1), fresh_port: true };
    assert_eq!(group.handle(now, asked(1, false)), [again]);
    assert_eq!(group.handle(now, hosting(0)), [], "late");
    assert_eq!(group.handle(now, hosting(1)), [reported_hosting(1)]);
}

#[test]
fn a_reply_that_was_lost_is_sent_when_the_master_asks_again() {
    let mut group = joining(0);
    let now = Moment::START;
    let _host = group.handle(now, asked(0, false));
    assert_eq!(group.handle(now, away()), [master_away(false)]);
    let _lost = group.handle(now, hosting(0));
    assert_eq!(group.handle(now, Event::MasterBack), [BACK, join(0, None)]);
    assert_eq!(group.handle(now, asked(0, false)), [reported_hosting(0)]);
}

#[test]
fn a_store_that_cannot_be_opened_ends_the_run() {
    let mut group = joining(3);
    let _host = group.handle(Moment::START, asked(0, false));
    let reason = "port 29500 is taken".to_owned();
    assert_eq!(
        group.handle(Moment::START, Event::CannotHost { reason: reason.clone() }),
        [failed_with("port 29500 is taken")]
    );
    assert_eq!(
        group.handle(Moment::START, Event::EndNoted),
        [finished(Outcome::Failed(Failure::Store { reason }))]
    );
}

#[test]
fn the_reason_of_a_pending_assignment_is_shown() {
    let pending = Pending::Spare { nodes: 2, lacking: 0 };
    let told = [Effect::Notify(Notice::Pending(pending.clone()))];
    assert_eq!(joining(0).handle(Moment::START, Event::Pushed(Push::Pending(pending))), told);
}

/// From each state: what is repeated when the stream is open again.
#[test]
fn reports_that_the_master_may_have_missed_are_repeated() {
    let now = Moment::at_secs(1);
    let in_state = |events: &[Event]| {
        let mut group = joining(1);
        for event in events {
            let _ = group.handle(Moment::START, event.clone());
        }
        group
    };
    let spent = [assigned(0, 2), prepared(0), exited(0, 0, SEGV), gone(0), assigned(1, 2), prepared(1)];
    let and = |more: &[Event]| [&spent[..], more].concat();
    let cannot_start =
        || Event::CannotStart { round: Round(0), local_rank: LocalRank(1), reason: "no file".into() };
    let ok = [assigned(0, 1), prepared(0), exited(0, 0, OK)];
    for (state, events, said) in [
        ("joining", vec![], join(0, None)),
        ("joining again", spent[..4].to_vec(), join(1, Some(0))),
        ("preparing", vec![assigned(0, 2)], resumed(0, WorkersState::Running)),
        ("running", spent[..2].to_vec(), resumed(0, WorkersState::Running)),
        ("stopping to join again", spent[..3].to_vec(), resumed(0, WorkersState::Stopping)),
        ("stopping for a peer", and(&[regroup(1)]), resumed(1, WorkersState::Stopping)),
        ("stopping with a spent budget", and(&[exited(1, 1, CODE)]), reported(1, 1, CODE, true)),
        (
            "stopping for want of a worker",
            vec![assigned(0, 2), prepared(0), cannot_start()],
            failed_with("cannot start the worker of local rank 1: no file"),
        ),
        ("stopping to leave", and(&[signalled(2)]), left(2)),
        ("clearing away", ok.to_vec(), resumed(0, WorkersState::Running)),
        (
            "done, waiting for the other nodes of the round",
            [&ok[..], &[gone(0)]].concat(),
            resumed(0, WorkersState::Succeeded),
        ),
    ] {
        let mut group = in_state(&events);
        let before = group.clone();
        let _notice = group.handle(now, away());
        assert_eq!(group.handle(now, Event::MasterBack), [BACK, said.clone()], "{state}");
        assert_eq!(group.handle(now, Event::MasterBack), [said], "{state}: another stream took its place");
        assert_eq!(group, before, "{state}: nothing has changed");
    }
}

#[test]
fn training_needs_no_master_until_something_changes() {
    let mut group = running(1, 1);
    let (hour, day) = (Moment::at_secs(3600), Moment::at_secs(86_400));
    assert_eq!(group.handle(hour, away()), [master_away(true)]);
    assert_eq!(group.handle(hour, Event::MasterAway { reason: "refused".into() }), [], "told once");
    assert_eq!(group.deadline(), None);
    // The restart needs it: the patience counts from then.
    let next = RestartDecision::Restart { next: Attempt(1), max_restarts: 1 };
    assert_eq!(
        group.handle(day, exited(0, 0, SEGV)),
        [told(0, SEGV, 0, next), reported(0, 0, SEGV, false), TERM_TREE]
    );
    assert_eq!(group.handle(day, gone(0)), [], "there is no juror to ask");
    assert_eq!(group.deadline(), Some(Moment::at_secs(86_410)));
    let still = |waited| {
        let waited = Duration::from_secs(waited);
        Effect::Notify(Notice::WaitingForMaster { reason: "refused".into(), waited, limit: JOIN })
    };
    assert_eq!(group.handle(Moment::at_secs(86_410), Event::Deadline), [still(10)]);
    assert_eq!(group.handle(Moment::at_secs(86_415), Event::Deadline), [], "too early");
    assert_eq!(group.handle(Moment::at_secs(86_420), Event::Deadline), [still(20)]);
    assert_eq!(group.handle(Moment::at_secs(86_421), Event::MasterBack), [BACK, join(1, Some(0))]);
    assert_eq!(group.deadline(), None);
    start(&mut group, 1, 1);
}

#[test]
fn a_master_that_stays_away_ends_the_run_after_the_join_timeout() {
    let mut group = joining(0);
    assert_eq!(group.handle(Moment::at_secs(100), away()), [master_away(false)]);
    let mut notices = Vec::new();
    while group.deadline() < Some(Moment::at_secs(700)) {
        let now = group.deadline().unwrap();
        notices.extend(group.handle(now, Event::Deadline));
    }
    assert_eq!((notices.len(), &notices[58]), (59, &waiting(590)));
    assert_eq!(group.handle(Moment::at_secs(700), Event::Deadline), [finished(given_up())]);
    assert_eq!(group.deadline(), None);
}

#[test]
fn a_master_that_never_was_there_is_waited_for_from_the_start() {
    let mut group = WorkerGroup::new(limits(0));
    assert_eq!(group.deadline(), Some(Moment::at_secs(10)));
    assert_eq!(group.handle(Moment::at_secs(4), away()), [master_away(false)]);
    assert_eq!(group.deadline(), Some(Moment::at_secs(14)));
    assert_eq!(group.handle(Moment::at_secs(14), Event::Deadline), [waiting(14)]);
    assert_eq!(group.handle(Moment::START + JOIN, Event::Deadline), [finished(given_up())]);

    let mut silent = WorkerGroup::new(limits(0));
    let reason = "no connection yet".to_owned();
    let outcome = Outcome::Failed(Failure::MasterAway { reason, waited: JOIN });
    assert_eq!(silent.handle(Moment::START + JOIN, Event::Deadline), [finished(outcome)]);

    let mut at_once = WorkerGroup::new(limits(0));
    assert_eq!(
        at_once.handle(Moment::at_secs(1), Event::MasterBack),
        [join(0, None)],
        "its absence was not shown, so its return is not either"
    );
}

#[test]
fn each_absence_has_a_timeout_of_its_own() {
    let mut group = joining(0);
    let _notice = group.handle(Moment::at_secs(100), away());
    let _join = group.handle(Moment::at_secs(650), Event::MasterBack);
    assert_eq!(group.handle(Moment::at_secs(650), away()), [master_away(false)]);
    assert_eq!(group.handle(Moment::at_secs(1249), Event::Deadline), [waiting(599)]);
    assert_eq!(group.handle(Moment::at_secs(1250), Event::Deadline), [finished(given_up())]);
}

#[test]
fn a_node_that_succeeded_exits_with_0_whatever_happens_to_the_others() {
    let now = Moment::at_secs(50);
    let well = || finished(Outcome::Succeeded);
    assert_eq!(succeeded().handle(now, job_failed()), [Effect::AcknowledgeEnd, well()]);
    assert_eq!(succeeded().handle(now, refused()), [well()]);

    let mut group = succeeded();
    assert_eq!(group.handle(now, away()), [master_away(false)]);
    assert_eq!(group.deadline(), Some(now + JOIN));
    let unknown = Notice::OutcomeUnknown { reason: "broke off".into(), waited: JOIN };
    assert_eq!(
        group.handle(now + JOIN, Event::Deadline),
        [Effect::Notify(unknown), well()],
        "and says that it does not know of them"
    );

    let mut group = succeeded();
    assert_eq!(group.handle(now, signalled(15)), [left(15)], "the others must not take it for lost");
    assert_eq!(group.deadline(), Some(now + FAREWELL_TIMEOUT));
    assert_eq!(group.handle(now, Event::EndNoted), [well()]);

    let mut group = succeeded();
    let _left = group.handle(now, signalled(15));
    assert_eq!(group.handle(now, signalled(15)), [well()], "at once");

    // It was to start again with a peer, and no new round came.
    let rejoining = || {
        let mut group = succeeded();
        assert_eq!(group.handle(now, regroup(0)), [regrouping(), join(0, Some(0))]);
        group
    };
    assert_eq!(rejoining().handle(now, job_failed()), [Effect::AcknowledgeEnd, well()]);
    assert_eq!(rejoining().handle(now, refused()), [well()]);
}

#[test]
fn a_success_while_the_master_was_away_is_reported_when_it_is_back() {
    let mut group = running(1, 0);
    let now = Moment::at_secs(1000);
    assert_eq!(group.handle(Moment::at_secs(1), away()), [master_away(true)]);
    assert_eq!(group.handle(now, exited(0, 0, OK)), [TERM_TREE]);
    assert_eq!(group.handle(now, gone(0)), []);
    assert_eq!(group.deadline(), Some(now + JOIN), "counted from when it is needed");
    assert_eq!(group.handle(now, Event::MasterBack), [BACK, resumed(0, WorkersState::Succeeded)]);
    assert_eq!(group.deadline(), None);
}

#[test]
fn a_node_that_failed_while_the_master_was_away_does_not_wait_for_it() {
    let mut group = running(1, 0);
    let now = Moment::at_secs(1000);
    let _told = group.handle(now, away());
    let _stopping = group.handle(now, exited(0, 0, CODE));
    assert_eq!(group.handle(now, gone(0)), [finished(group_failed(0, &[(0, CODE)]))]);
}

#[test]
fn a_refused_node_leaves_without_a_report() {
    let now = Moment::at_secs(1);
    assert_eq!(joining(0).handle(now, refused()), [finished(refusal())]);

    let mut group = joining(0);
    let _prepare = group.handle(now, assigned(0, 1));
    assert_eq!(group.handle(now, refused()), [finished(refusal())]);

    let mut group = running(1, 3);
    assert_eq!(group.handle(now, refused()), [TERM_TREE]);
    assert_eq!(group.handle(now, gone(0)), [finished(refusal())]);

    let mut group = running(1, 3);
    let _stopping = group.handle(now, exited(0, 0, SEGV));
    assert_eq!(group.handle(now, refused()), []);
    assert_eq!(group.handle(now, gone(0)), [finished(refusal())]);
}

#[test]
fn the_jobs_end_is_acknowledged_first_and_stops_the_workers() {
    let now = Moment::at_secs(1);
    let failed = || Outcome::Failed(Failure::Job(job_failure()));
    assert_eq!(joining(0).handle(now, job_failed()), [Effect::AcknowledgeEnd, finished(failed())]);
    assert_eq!(
        joining(0).handle(now, job_succeeded()),
        [Effect::AcknowledgeEnd, finished(Outcome::Succeeded)],
        "a spare ends well with the job"
    );

    let mut group = joining(0);
    let _prepare = group.handle(now, assigned(0, 1));
    assert_eq!(group.handle(now, job_failed()), [Effect::AcknowledgeEnd, finished(failed())]);

    let mut group = running(1, 3);
    assert_eq!(group.handle(now, job_failed()), [Effect::AcknowledgeEnd, TERM_TREE]);
    assert_eq!(group.handle(now, job_failed()), [Effect::AcknowledgeEnd], "said again");
    assert_eq!(group.handle(now, gone(0)), [finished(failed())], "no farewell: the master knows");
}

#[test]
fn success_of_the_job_needs_success_of_own_workers() {
    let now = Moment::at_secs(1);
    let failed = || finished(Outcome::Failed(Failure::EndedWithout));
    let mut group = joining(0);
    let _prepare = group.handle(now, assigned(0, 1));
    assert_eq!(group.handle(now, job_succeeded()), [Effect::AcknowledgeEnd, failed()]);

    let mut group = running(1, 3);
    assert_eq!(group.handle(now, job_succeeded()), [Effect::AcknowledgeEnd, TERM_TREE]);
    assert_eq!(group.handle(now, gone(0)), [failed()]);

    let mut group = running(1, 3);
    let _stopping = group.handle(now, regroup(0));
    assert_eq!(group.handle(now, job_succeeded()), [Effect::AcknowledgeEnd]);
    assert_eq!(group.handle(now, gone(0)), [failed()]);

    let mut group = running(1, 3);
    let _stopping = group.handle(now, exited(0, 0, OK));
    assert_eq!(group.handle(now, job_succeeded()), [Effect::AcknowledgeEnd]);
    assert_eq!(group.handle(now, gone(0)), [finished(Outcome::Succeeded)], "its own have");
}

#[test]
fn the_jobs_end_does_not_change_an_outcome_that_was_settled() {
    let now = Moment::at_secs(1);
    // A restart is not one.
    let mut group = running(1, 3);
    let _stopping = group.handle(now, exited(0, 0, CODE));
    assert_eq!(group.handle(now, job_failed()), [Effect::AcknowledgeEnd]);
    let failed = Outcome::Failed(Failure::Job(job_failure()));
    assert_eq!(group.handle(now, gone(0)), [finished(failed)]);
    // A spent budget is.
    let mut group = running(1, 0);
    let _stopping = group.handle(now, exited(0, 0, CODE));
    assert_eq!(group.handle(now, job_failed()), [Effect::AcknowledgeEnd]);
    assert_eq!(group.handle(now, gone(0)), [finished(group_failed(0, &[(0, CODE)]))]);
    // So is success, which needs no report any more.
    for end in [job_failed(), refused()] {
        let mut group = running(1, 0);
        let _stopping = group.handle(now, exited(0, 0, OK));
        let _acknowledged = group.handle(now, end);
        assert_eq!(group.handle(now, gone(0)), [finished(Outcome::Succeeded)]);
    }
}

fn root_cause() -> RootCause {
    let JobFailure::Node { node, .. } = job_failure() else { panic!("of a node") };
    RootCause { round: Round(0), node, detail: FailureDetail::bare(failure(1, ExitCause::Code(1))) }
}

fn told_root_cause() -> Event {
    Event::Pushed(Push::RootCause(Box::new(root_cause())))
}

#[test]
fn the_root_cause_is_kept_for_the_report_whatever_the_node_does() {
    let mut group = running(1, 0);
    assert_eq!(group.handle(Moment::START, told_root_cause()), []);
    assert_eq!(group.root_cause(), Some(&root_cause()));
    assert_eq!(group.handle(Moment::START, job_failed()), [Effect::AcknowledgeEnd, TERM_TREE]);

    // Its own worker failed meanwhile, because of it.
    let mut group = running(1, 0);
    let _stopping = group.handle(Moment::START, exited(0, 0, ExitCause::Code(3)));
    assert_eq!(group.handle(Moment::START, gone(0)), []);
    assert_eq!(group.handle(Moment::START, told_root_cause()), []);
    let own = group_failed(0, &[(0, ExitCause::Code(3))]);
    assert_eq!(group.handle(Moment::START, job_failed()), [Effect::AcknowledgeEnd, finished(own)]);
    assert_eq!(group.root_cause(), Some(&root_cause()));
}

#[test]
fn a_node_that_failed_waits_for_the_end_for_longer_than_it_is_withheld() {
    assert!(ROOT_CAUSE_TIMEOUT >= crate::job::DETAIL_TIMEOUT * 2, "for both ways, and a slow machine");
}
