//! Events of a check: twice, late, in any order, or nonsense.

use crate::rng::Rng;
use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::{
        Effect, Event, Kind, LocalCheck, NetworkCheck, NodeVerdict, OnBadPath, Outcome, Policy, Probed,
        RoundRecord, Subject, TestRecord, TestResult,
        check_log::CheckLog,
        findings,
        rehearsal::{Cluster, rehearse_observed},
    },
    clusters::{broken, wild},
};
use crate::moment::Moment;

fn passed() -> Probed {
    let comm = Duration::from_millis(100);
    Probed::Passed { comm, latency: Duration::from_micros(50), bytes_per_second: 1 << 30 }
}

/// Plays a cluster by hand, each round's reports in an order of its own; with noise between them if wanted.
fn drive(cluster: &Cluster, order: u64, with_noise: bool) -> Outcome {
    let mut rng = Rng::new(order, 0);
    let local = LocalCheck::default();
    let subjects = (0..cluster.nodes)
        .map(|node| Subject { rack: cluster.rack(node), pod: 0, seen_before: false, local: local.clone() })
        .collect();
    let (mut check, mut effects) = NetworkCheck::new(Policy::new(cluster.seed), Moment::START, subjects);
    loop {
        let (round, groups) = match effects.pop().unwrap() {
            Effect::Start { round, groups, .. } => (round, groups),
            Effect::Finish(outcome) => return *outcome,
            Effect::Cancel { .. } => unreachable!("all nodes report at once"),
        };
        let mut reports = Vec::new();
        for group in groups.iter().filter(|group| group.members.len() > 1) {
            let fails = group.members.iter().any(|node| cluster.faulty.contains(node));
            for node in &group.members {
                let probed = if fails { Probed::Failed { reason: "no route".to_owned() } } else { passed() };
                reports.push(Event::Reported { node: *node, round, probed, compute: Some(Vec::new()) });
            }
        }
        rng.shuffle(&mut reports);
        for report in reports {
            if with_noise {
                let Event::Reported { node, .. } = report else { continue };
                for round in [round.wrapping_sub(1), round + 1] {
                    let late = Event::Reported { node, round, probed: passed(), compute: Some(Vec::new()) };
                    assert_eq!(check.handle(Moment::START, late), []);
                }
            }
            effects = check.handle(Moment::START, report.clone());
            if with_noise && effects.is_empty() {
                assert_eq!(check.handle(Moment::START, report), []);
            }
        }
    }
}

/// Any event, sensible or not.
fn any_event() -> impl Strategy<Value = Event> {
    let node = prop_oneof![0..12_u32, any::<u32>()];
    let round = prop_oneof![0..6_u32, any::<u32>()];
    let time = prop_oneof![(0..100_000_u64).prop_map(Duration::from_micros), any::<Duration>()];
    let number = prop_oneof![0..1000_u64, any::<u64>()];
    let probed =
        (0..4, time.clone(), time.clone(), number.clone(), number).prop_map(
            |(kind, a, b, x, y)| match kind {
                0 | 1 => Probed::Passed { comm: a, latency: b, bytes_per_second: x },
                2 => Probed::Failed { reason: "x".repeat((x % 1000) as usize) },
                _ => Probed::Unfinished { bytes: x, total: y, elapsed: a, idle: b },
            },
        );
    (0..9, node, round, probed, time).prop_map(|(kind, node, round, probed, time)| match kind {
        0..=3 => Event::Reported { node, round, probed, compute: Some(vec![time.into(); 3]) },
        4 => Event::Reported { node, round, probed, compute: None },
        5 | 6 => Event::Progressed { node, round, probed },
        7 => Event::NodeLost { node, reason: "gone".to_owned(), is_announced: node % 2 == 0 },
        _ => Event::Deadline,
    })
}

proptest! {
    /// Invariant 8: order, repetition and reports of other rounds change nothing.
    #[test]
    fn order_and_repetition_change_nothing(cluster in broken(24), order: u64) {
        let plain = drive(&cluster, 0, false);
        let noisy = drive(&cluster, order, true);
        prop_assert_eq!(plain, noisy);
    }

    /// Invariant 9: the same events give the same effects; and a check that was serialized and read again continues as if
    /// nothing had been.
    #[test]
    fn the_same_events_give_the_same_effects(cluster in wild(24)) {
        let policy = Policy { exclude_straggler: true, ..Policy::new(cluster.seed) };
        let mut script: Vec<(Moment, Option<Event>, Vec<Effect>)> = Vec::new();
        rehearse_observed(&cluster, policy.clone(), |scene| {
            script.push((scene.now, scene.event.cloned(), scene.effects.to_vec()));
        });
        let mut again = Vec::new();
        rehearse_observed(&cluster, policy, |scene| again.push((scene.now, scene.event.cloned(), scene.effects.to_vec())));
        prop_assert_eq!(&script, &again);
    }

    /// Invariant 21: whatever is reported, the check ends within its rounds and never spins.
    #[test]
    fn it_ends_whatever_is_reported(
        nodes in 0..12_u32,
        max_rounds in 0..6_u32,
        exclude_straggler: bool,
        has_no_time: bool,
        events in proptest::collection::vec((0..3_000_u64, any_event()), 0..200),
    ) {
        let local = LocalCheck { compute: Some(Duration::from_millis(7).into()), ..LocalCheck::default() };
        let subjects = (0..nodes).map(|node| Subject { rack: node % 3 * 1_000_000_000, pod: 0, seen_before: false, local: local.clone() });
        let mut policy = Policy { max_rounds, exclude_straggler, confirm: max_rounds % 3, ..Policy::new(5) };
        if has_no_time {
            policy.deadlines.hard = Duration::ZERO;
            policy.deadlines.kill_grace = Duration::ZERO;
            policy.straggler_permille = 0;
            policy.taint_guard_permille = u32::MAX;
        }
        let (mut check, effects) = NetworkCheck::new(policy, Moment::START, subjects.collect());
        let mut starts = effects.iter().filter(|effect| matches!(effect, Effect::Start { .. })).count();
        let mut now = Moment::START;
        let mut events = events.into_iter();
        while let Some(due) = check.deadline() {
            let event = match events.next() {
                Some((wait, event)) if now + Duration::from_millis(wait) < due => {
                    now = now + Duration::from_millis(wait);
                    event
                }
                _ => {
                    now = now.max(due);
                    Event::Deadline
                }
            };
            let is_deadline = event == Event::Deadline;
            let effects = check.handle(now, event);
            prop_assert!(!is_deadline || check.deadline().is_none_or(|due| due > now));
            starts += effects.iter().filter(|effect| matches!(effect, Effect::Start { .. })).count();
        }
        prop_assert!(check.outcome().is_some());
        prop_assert!(starts as u32 <= max_rounds.max(1), "{starts} rounds of {max_rounds}");
        prop_assert_eq!(check.handle(now, Event::Deadline), []);
        prop_assert_eq!(check.handle(now, Event::NodeLost { node: 0, reason: String::new(), is_announced: false }), []);
        let written = serde_json::to_string(&check).unwrap();
        prop_assert_eq!(serde_json::from_str::<NetworkCheck>(&written).unwrap(), check);
    }
}

/// Eight nodes on the first of which the compute probe takes five times as long; and the reports with which all tests of
/// the first round pass at 0.1 s, while that node still measures again.
fn with_a_slow_computer() -> NetworkCheck {
    let subject = |node: u32| {
        let time = Duration::from_millis(if node == 0 { 100 } else { 20 });
        Subject {
            rack: 0,
            pod: 0,
            seen_before: false,
            local: LocalCheck { compute: Some(time.into()), ..LocalCheck::default() },
        }
    };
    let policy = Policy { exclude_straggler: true, ..Policy::new(1) };
    let (mut check, effects) = NetworkCheck::new(policy, Moment::START, (0..8).map(subject).collect());
    let Effect::Start { compute_again, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(compute_again[..], [(0, 1)]);
    for node in 0..8 {
        let compute = (node > 0).then(Vec::new);
        let event = Event::Reported { node, round: 0, probed: passed(), compute };
        assert_eq!(check.handle(Moment::at_millis(100), event), []);
    }
    check
}

fn only_round(check: &NetworkCheck) -> Outcome {
    let outcome = check.outcome().expect("it is over").clone();
    assert_eq!(outcome.rounds.len(), 1);
    assert!(outcome.rounds[0].tests.iter().all(|test| test.result == TestResult::Pass));
    outcome
}

/// Its test is over long before: measuring again takes a driver's start, and is no failure of the test.
#[test]
fn a_node_that_measures_again_for_long_is_waited_for() {
    let mut check = with_a_slow_computer();
    assert_eq!(check.handle(Moment::at_secs(4), Event::Deadline), []);
    let compute = Some(vec![Duration::from_millis(99).into()]);
    let event = Event::Reported { node: 0, round: 0, probed: passed(), compute };
    assert_eq!(check.handle(Moment::at_secs(20), event).len(), 1);
    assert_eq!(only_round(&check).nodes[0].verdict, NodeVerdict::StragglerCompute);
}

/// A straggler that is not confirmed is none.
#[test]
fn a_node_that_cannot_measure_again_is_no_straggler() {
    let mut check = with_a_slow_computer();
    let event = Event::Reported { node: 0, round: 0, probed: passed(), compute: Some(Vec::new()) };
    assert_eq!(check.handle(Moment::at_secs(20), event).len(), 1);
    assert_eq!(only_round(&check).nodes[0].verdict, NodeVerdict::Healthy);

    let mut check = with_a_slow_computer();
    let due = check.deadline().expect("it is not awaited for ever");
    assert!(due > Moment::at_secs(60), "{due}: its own limit is a minute");
    let effects = check.handle(due, Event::Deadline);
    assert_eq!(effects[0], Effect::Cancel { round: 0, nodes: vec![0] });
    assert_eq!(only_round(&check).nodes[0].verdict, NodeVerdict::Healthy);

    let mut check = with_a_slow_computer();
    let lost = Event::NodeLost { node: 0, reason: "gone".to_owned(), is_announced: true };
    assert_eq!(check.handle(Moment::at_secs(20), lost).len(), 1);
    assert!(matches!(only_round(&check).nodes[0].verdict, NodeVerdict::Lost { .. }));
}

/// It passed with one, failed with two that are good, and then left, as announced.
#[test]
fn a_node_that_passed_is_no_fault_when_it_leaves() {
    use TestResult::{Fail, Pass};
    let subjects = (0..6)
        .map(|_| Subject { rack: 0, pod: 0, seen_before: false, local: LocalCheck::default() })
        .collect();
    let policy = Policy { on_bad_path: OnBadPath::Proceed, ..Policy::new(1) };
    let mut log = CheckLog::new(policy, subjects);
    let test = |a: u32, b: u32, result: TestResult| TestRecord {
        kind: Kind::Screen,
        members: vec![a, b],
        across: false,
        result,
        ended: std::time::Duration::ZERO,
        comm: (result == Pass).then_some(Duration::from_millis(100)),
        ratio_permille: None,
        baseline: None,
        bytes_per_second: None,
        reasons: Vec::new(),
        explained: false,
    };
    let round =
        |tests: Vec<TestRecord>| RoundRecord { began: Duration::ZERO, took: Duration::from_secs(1), tests };
    log.rounds = vec![
        round(vec![test(0, 1, Fail), test(2, 3, Pass), test(4, 5, Pass)]),
        round(vec![test(0, 3, Pass), test(1, 4, Pass)]),
        round(vec![test(0, 1, Fail)]),
        round(vec![test(0, 2, Fail)]),
        round(vec![test(0, 2, Fail)]),
    ];
    assert_eq!(findings::outcome(&log, Duration::ZERO).nodes[0].verdict, NodeVerdict::Healthy);
    log.nodes[0].lost = Some((4, "its launcher received SIGTERM".into()));
    log.nodes[0].has_left = true;
    let outcome = findings::outcome(&log, Duration::ZERO);
    let it = &outcome.nodes[0];
    assert!(matches!(it.verdict, NodeVerdict::Lost { .. }) && !it.tainted, "{it:?}");
}
