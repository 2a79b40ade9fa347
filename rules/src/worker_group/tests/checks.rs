//! The checks of a node: alone before it joins, and with others before it is assigned.

use super::*;
use crate::check_order::{CheckOrder, CheckReport, CheckRound, Partner, Test};
use diagnosis::{
    exclusion::Exclusion,
    network_check::{LocalCheck, Probed},
};

const TTL: Duration = Duration::from_secs(60);

fn local() -> LocalCheck {
    LocalCheck { compute: Some(Duration::from_millis(20).into()), ..LocalCheck::default() }
}

fn checked_join(attempt: u32, after: Option<u32>) -> Effect {
    Effect::Join {
        attempt: Attempt(attempt),
        after: after.map(Round),
        checked: Some(local()),
        shards: Vec::new(),
    }
}

fn locally_checked() -> Event {
    Event::LocallyChecked { checked: local() }
}

/// The stream is open, and the node looks at itself.
fn looking(ttl: Duration) -> WorkerGroup {
    let mut group = WorkerGroup::new(Limits { check: Some(ttl), ..limits(3) });
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [Effect::CheckLocally]);
    group
}

/// It has joined.
fn waiting(ttl: Duration) -> WorkerGroup {
    let mut group = looking(ttl);
    let tell = Effect::Notify(Notice::LocallyChecked(local()));
    assert_eq!(group.handle(Moment::START, locally_checked()), [tell, checked_join(0, None)]);
    group
}

#[test]
fn progress_of_the_self_test_is_shown() {
    let mut group = looking(TTL);
    let message = "switchbox check: measuring 0:1".to_owned();
    let says = Event::SelfCheckProgress { message: message.clone() };
    assert_eq!(group.handle(Moment::START, says), [Effect::Notify(Notice::SelfCheck { message })]);
}

#[test]
fn a_node_whose_self_test_cannot_be_made_ends_before_it_joins() {
    let mut group = looking(TTL);
    let reason = "no switchbox probe on this host".to_owned();
    let cannot = Event::CannotCheck { reason: reason.clone() };
    let end = NodeEnd::Failed { reason: reason.clone() };
    assert_eq!(group.handle(Moment::START, cannot.clone()), [Effect::ReportEnd { end }]);
    let outcome = Outcome::Failed(Failure::SelfCheck { reason });
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [Effect::Finish { outcome }]);
    assert_eq!(group.handle(Moment::START, cannot), [], "it has ended");
}

fn at(check: u32, round: u32) -> CheckRound {
    CheckRound { check, round }
}

fn order(at: CheckRound) -> CheckOrder {
    let name = NodeName {
        rank: None,
        host: "host-b".into(),
        address: "10.0.0.2".into(),
        node_id: NodeId("b".into()),
    };
    CheckOrder {
        at,
        test: Test::Pair,
        address: "10.0.0.1".into(),
        me: 0,
        size: 2,
        partners: vec![Partner { number: 1, name, address: "10.0.0.2".into(), port: 7 }],
        seed: 1,
        compute_again: 0,
        timeout: Duration::from_secs(1),
    }
}

fn report(at: CheckRound) -> CheckReport {
    CheckReport { at, probed: Probed::Failed { reason: "refused".into() }, compute: Some(Vec::new()) }
}

fn ordered(at: CheckRound) -> Event {
    Event::Pushed(Push::Check(order(at)))
}

fn testing(at: CheckRound) -> [Effect; 2] {
    [Effect::Notify(Notice::Testing(order(at))), Effect::Probe { order: order(at) }]
}

#[test]
fn the_self_test_runs_once_before_the_node_joins() {
    let mut group = looking(Duration::ZERO);
    assert_eq!(
        group.handle(Moment::START, away()),
        [Effect::Notify(Notice::MasterAway {
            reason: "broke off".into(),
            keeps_running: false,
            limit: JOIN
        })]
    );
    let tell = Effect::Notify(Notice::LocallyChecked(local()));
    assert_eq!(group.handle(Moment::START, locally_checked()), [tell], "the master is away");
    let back = Effect::Notify(Notice::MasterBack);
    assert_eq!(group.handle(Moment::START, Event::MasterBack), [back, checked_join(0, None)]);
}

#[test]
fn a_restart_repeats_the_self_test_unless_it_is_recent() {
    for (ttl, later, looks) in [(Duration::ZERO, 1, true), (TTL, 59, false), (TTL, 60, true)] {
        let mut group = waiting(ttl);
        start(&mut group, 0, 1);
        assert_eq!(group.handle(Moment::START, regroup(0)).len(), 2);
        let effects = group.handle(Moment::at_secs(later), gone(0));
        let expected = if looks { Effect::CheckLocally } else { checked_join(0, Some(0)) };
        assert_eq!(effects, [expected], "{ttl:?} {later}");
    }
}

#[test]
fn a_test_runs_once_and_its_result_is_sent_whenever_asked() {
    let mut group = waiting(Duration::ZERO);
    let now = Moment::START;
    assert_eq!(group.handle(now, ordered(at(0, 0))), testing(at(0, 0)));
    assert_eq!(group.handle(now, ordered(at(0, 0))), [], "it is under way");
    let probed = Event::Probed { report: report(at(0, 0)) };
    let told = Effect::ReportCheck { report: report(at(0, 0)) };
    assert_eq!(group.handle(now, probed), std::slice::from_ref(&told));
    assert_eq!(group.handle(now, ordered(at(0, 0))), std::slice::from_ref(&told));
    assert_eq!(group.handle(now, Event::MasterBack), [checked_join(0, None), told]);
}

#[test]
fn a_new_round_cancels_the_test_before_it() {
    let mut group = waiting(Duration::ZERO);
    let now = Moment::START;
    assert_eq!(group.handle(now, ordered(at(0, 0))), testing(at(0, 0)));
    let mut effects = vec![Effect::CancelProbe { at: at(0, 0) }];
    effects.extend(testing(at(0, 1)));
    assert_eq!(group.handle(now, ordered(at(0, 1))), effects);
    assert_eq!(group.handle(now, Event::Probed { report: report(at(0, 0)) }), []);
}

#[test]
fn only_a_running_test_can_be_cut_short() {
    let mut group = waiting(Duration::ZERO);
    let now = Moment::START;
    let cancel = |round| Event::Pushed(Push::CancelCheck(at(0, round)));
    assert_eq!(group.handle(now, cancel(0)), []);
    assert_eq!(group.handle(now, ordered(at(0, 0))), testing(at(0, 0)));
    assert_eq!(group.handle(now, cancel(1)), []);
    assert_eq!(group.handle(now, cancel(0)), [Effect::CancelProbe { at: at(0, 0) }]);
    assert_eq!(group.handle(now, Event::Probed { report: report(at(0, 0)) }).len(), 1);
    assert_eq!(group.handle(now, cancel(0)), []);
}

#[test]
fn no_test_is_left_when_the_node_leaves() {
    let exclusion = Exclusion {
        verdict: "fault".into(),
        evidence: "e".into(),
        look_at: "l".into(),
        is_inconclusive: false,
    };
    for (event, outcome) in [
        (
            Event::Pushed(Push::Excluded(exclusion.clone())),
            Outcome::Failed(Failure::Excluded(exclusion.clone())),
        ),
        (refused(), Outcome::Failed(Failure::Master { reason: "rank held".into() })),
    ] {
        let mut group = waiting(Duration::ZERO);
        assert_eq!(group.handle(Moment::START, ordered(at(0, 0))), testing(at(0, 0)));
        let effects = group.handle(Moment::START, event);
        assert_eq!(effects, [Effect::CancelProbe { at: at(0, 0) }, finished(outcome)]);
    }
}

#[test]
fn a_long_test_shows_its_progress() {
    let mut group = waiting(Duration::ZERO);
    assert_eq!(group.handle(Moment::START, ordered(at(0, 0))), testing(at(0, 0)));
    let probed = Probed::Unfinished { bytes: 3 << 20, total: 9 << 20, elapsed: TTL, idle: Duration::ZERO };
    let probing = Event::Probing { at: at(0, 0), probed: probed.clone() };
    let report = Effect::ReportTestProgress { at: at(0, 0), probed };
    let tell =
        Effect::Notify(Notice::TestRunning { at: at(0, 0), bytes: 3 << 20, total: 9 << 20, elapsed: TTL });
    let told = [tell, report.clone()];
    assert_eq!(group.handle(Moment::at_millis(4999), probing.clone()), std::slice::from_ref(&report));
    assert_eq!(group.handle(Moment::at_millis(5000), probing.clone()), told);
    assert_eq!(group.handle(Moment::at_millis(9999), probing.clone()), std::slice::from_ref(&report));
    assert_eq!(group.handle(Moment::at_millis(10_000), probing), told);
}

#[test]
fn the_message_about_a_test_has_the_link_to_each_partner() {
    let mut order = order(at(0, 1));
    let text = |order: &CheckOrder| Notice::Testing(order.clone()).to_string();
    let one = "testing the link to node number 1 (host-b, 10.0.0.2)";
    assert_eq!(text(&order), format!("network check 0, round 1: {one}"));
    let third = Partner { number: 2, address: "10.0.0.3".into(), ..order.partners[0].clone() };
    order.partners.push(third);
    let two = "testing the links to node number 1 (host-b, 10.0.0.2) and node number 2 (host-b, 10.0.0.3)";
    assert_eq!(text(&order), format!("network check 0, round 1: {two}"));
}

#[test]
fn the_end_of_the_check_is_shown() {
    let mut group = waiting(Duration::ZERO);
    let message = "network check passed";
    let told = Effect::Notify(Notice::CheckOver { message: message.into() });
    assert_eq!(
        group.handle(Moment::START, Event::Pushed(Push::CheckOver { message: message.into() })),
        [told]
    );
}

/// The master had received the first join, and assigns it: workers run before the self-test has ended.
#[test]
fn a_self_test_overtaken_by_an_assignment_is_repeated_for_the_next_one() {
    // Its self-test is recent, and it joins.
    let mut group = waiting(TTL);
    start(&mut group, 0, 1);
    assert_eq!(group.handle(Moment::at_secs(50), regroup(0)).len(), 2);
    assert_eq!(group.handle(Moment::at_secs(55), gone(0)), [checked_join(0, Some(0))]);
    // The stream breaks and comes back after its self-test has become too old: it repeats it.
    let _told = group.handle(Moment::at_secs(58), away());
    let effects = group.handle(Moment::at_secs(65), Event::MasterBack);
    assert_eq!(effects.last(), Some(&Effect::CheckLocally), "{effects:?}");
    // The master has its first join, and assigns it.
    let effects = group.handle(Moment::at_secs(66), assigned(1, 1));
    assert!(matches!(effects[0], Effect::Prepare { .. }));
    assert_eq!(group.handle(Moment::at_secs(66), prepared(1)), [Effect::Spawn { round: Round(1) }]);
    let _late = group.handle(Moment::at_secs(67), locally_checked());
    // The next restart.
    assert_eq!(group.handle(Moment::at_secs(100), regroup(1)).len(), 2);
    assert_eq!(group.handle(Moment::at_secs(101), gone(1)), [Effect::CheckLocally]);
}

#[test]
fn an_order_of_another_master_is_not_answered_with_an_old_report() {
    let mut group = waiting(Duration::ZERO);
    let now = Moment::START;
    assert_eq!(group.handle(now, ordered(at(0, 0))), testing(at(0, 0)));
    let _told = group.handle(now, Event::Probed { report: report(at(0, 0)) });
    let _away = group.handle(now, away());
    let _back = group.handle(now, Event::MasterBack);
    // A master without state counts its checks from 0 again: another partner, another seed.
    let mut other = order(at(0, 0));
    other.seed = 99;
    other.partners[0].number = 5;
    let effects = group.handle(now, Event::Pushed(Push::Check(other.clone())));
    assert!(effects.contains(&Effect::Probe { order: other }), "{effects:?}");
}

/// The test is over before the compute probe: each result is reported at once.
#[test]
fn a_test_is_reported_while_the_node_still_measures_and_both_are_cancelled_together() {
    let mut group = waiting(Duration::ZERO);
    let now = Moment::START;
    let order = CheckOrder { compute_again: 1, ..order(at(0, 0)) };
    let _testing = group.handle(now, Event::Pushed(Push::Check(order.clone())));
    let first = CheckReport { compute: None, ..report(at(0, 0)) };
    let told = [Effect::ReportCheck { report: first.clone() }];
    assert_eq!(group.handle(now, Event::Probed { report: first }), told);
    // It is asked again: the result so far is repeated.
    assert_eq!(group.handle(now, Event::Pushed(Push::Check(order))), told);
    let cancel = Event::Pushed(Push::CancelCheck(at(0, 0)));
    assert_eq!(group.handle(now, cancel.clone()), [Effect::CancelProbe { at: at(0, 0) }]);
    let whole = CheckReport { compute: Some(vec![Duration::from_millis(9).into()]), ..report(at(0, 0)) };
    assert_eq!(
        group.handle(now, Event::Probed { report: whole.clone() }),
        [Effect::ReportCheck { report: whole }]
    );
    assert_eq!(group.handle(now, cancel), []);
}
