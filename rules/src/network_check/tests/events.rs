//! What the check is told: twice, late, in any order, or nonsense.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::{
        Effect, Event, LocalCheck, NetworkCheck, Outcome, Policy, Probed, Subject,
        dice::Dice,
        rehearsal::{Cluster, watch},
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
    let mut dice = Dice::new(order, 0);
    let local = LocalCheck::default();
    let subjects =
        (0..cluster.nodes).map(|node| Subject { rack: cluster.rack(node), local: local.clone() }).collect();
    let (mut check, mut effects) = NetworkCheck::new(Policy::new(cluster.seed), Moment::START, subjects);
    loop {
        let (round, groups) = match effects.pop().unwrap() {
            Effect::Start { round, groups, .. } => (round, groups),
            Effect::Finish(outcome) => return *outcome,
            Effect::Cancel { .. } => unreachable!("everybody reports at once"),
        };
        let mut reports = Vec::new();
        for group in groups.iter().filter(|group| group.members.len() > 1) {
            let fails = group.members.iter().any(|node| cluster.faulty.contains(node));
            for node in &group.members {
                let probed = if fails { Probed::Failed { reason: "no route".to_owned() } } else { passed() };
                reports.push(Event::Reported { node: *node, round, probed, compute: Vec::new() });
            }
        }
        dice.shuffle(&mut reports);
        for report in reports {
            if with_noise {
                let Event::Reported { node, .. } = report else { continue };
                for round in [round.wrapping_sub(1), round + 1] {
                    let late = Event::Reported { node, round, probed: passed(), compute: Vec::new() };
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
        0..=4 => Event::Reported { node, round, probed, compute: vec![time.into(); 3] },
        5 | 6 => Event::Progressed { node, round, probed },
        7 => Event::NodeLost { node, reason: "gone".to_owned(), is_announced: node % 2 == 0 },
        _ => Event::Deadline,
    })
}

proptest! {
    /// Invariant 8: order, repetition and words of other rounds change nothing.
    #[test]
    fn order_and_repetition_change_nothing(cluster in broken(24), order: u64) {
        let plain = drive(&cluster, 0, false);
        let noisy = drive(&cluster, order, true);
        prop_assert_eq!(plain, noisy);
    }

    /// Invariant 9: the same events give the same effects; and a check that was written down and read again goes on as if
    /// nothing had been.
    #[test]
    fn the_same_events_give_the_same_effects(cluster in wild(24)) {
        let policy = Policy { exclude_straggler: true, ..Policy::new(cluster.seed) };
        let mut script: Vec<(Moment, Option<Event>, Vec<Effect>)> = Vec::new();
        watch(&cluster, policy.clone(), |scene| {
            script.push((scene.now, scene.event.cloned(), scene.effects.to_vec()));
        });
        let mut again = Vec::new();
        watch(&cluster, policy, |scene| again.push((scene.now, scene.event.cloned(), scene.effects.to_vec())));
        prop_assert_eq!(&script, &again);
    }

    /// Invariant 21: whatever is said, the check ends within its rounds and never spins.
    #[test]
    fn it_ends_whatever_is_said(
        nodes in 0..12_u32,
        max_rounds in 0..6_u32,
        exclude_straggler: bool,
        has_no_time: bool,
        events in proptest::collection::vec((0..3_000_u64, any_event()), 0..200),
    ) {
        let local = LocalCheck { compute: Some(Duration::from_millis(7).into()), ..LocalCheck::default() };
        let subjects = (0..nodes).map(|node| Subject { rack: node % 3 * 1_000_000_000, local: local.clone() });
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
