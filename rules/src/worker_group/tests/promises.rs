//! What holds whatever happens.

use proptest::prelude::*;

use checkpoint::message::FromSaver;

use super::*;

fn any_round() -> impl Strategy<Value = Round> {
    (0_u32..4).prop_map(Round)
}

fn any_cause() -> impl Strategy<Value = ExitCause> {
    prop::sample::select(vec![OK, OK, CODE, SEGV, TERM])
}

fn reason() -> String {
    "r".into()
}

fn saver_says(said: FromSaver) -> Event {
    Event::SaverSaid { said: Box::new(said) }
}

fn any_event() -> impl Strategy<Value = Event> {
    let round = any_round;
    let local_rank = LocalRank(0);
    prop_oneof![
        2 => (round(), any::<bool>()).prop_map(|(round, fresh_port)| Event::Pushed(Push::Host { round, fresh_port })),
        2 => round().prop_map(|round| Event::Hosting { round, master_addr: None, master_port: 1 }),
        1 => Just(Event::CannotHost { reason: reason() }),
        6 => (0_u32..4, 1_u32..3).prop_map(|(round, workers)| assigned(round, workers)),
        2 => Just(Event::Pushed(Push::Pending(Pending::Spare { nodes: 1, lacking: 0 }))),
        1 => Just(refused()),
        6 => round().prop_map(|round| Event::Prepared { round, oom_kills: None }),
        1 => round().prop_map(|round| Event::CannotPrepare { round, reason: reason() }),
        1 => round().prop_map(move |round| Event::CannotStart { round, local_rank, reason: reason() }),
        1 => round().prop_map(move |round| Event::WorkerStarted { round, local_rank, pid: 1 }),
        8 => (0_u32..4, 0_u32..3, any_cause()).prop_map(|(round, rank, cause)| exited(round, rank, cause)),
        2 => (round(), 0_u32..3, any::<bool>()).prop_map(|(round, rank, is_unsure)| Event::StoreReached {
            round,
            workers: vec![LocalRank(rank)],
            is_unsure,
        }),
        6 => round().prop_map(|round| Event::TreeGone { round }),
        1 => (1_i32..16).prop_map(signalled),
        1 => Just(Event::Forwarded { signal: 10 }),
        3 => (0_u32..4).prop_map(regroup),
        1 => any::<bool>().prop_map(|well| if well { job_succeeded() } else { job_failed() }),
        4 => Just(Event::MasterBack),
        3 => Just(away()),
        1 => Just(Event::EndNoted),
        1 => Just(Event::GuardDied { cause: SEGV }),
        3 => Just(Event::SaverWanted),
        3 => (0_u32..4).prop_map(|round| saver_says(FromSaver::State { round: Some(round), shards: Vec::new() })),
        1 => Just(saver_says(FromSaver::Finished {})),
        1 => Just(Event::SaverEnded { reason: reason() }),
        4 => Just(Event::Deadline),
    ]
}

/// Workers are only ever started after those of the last round are gone, in rounds that grow.
#[derive(Default)]
struct Workers {
    last: Option<Round>,
    are_there: bool,
}

impl Workers {
    fn follow(&mut self, event: &Event, effects: &[Effect]) -> Result<(), TestCaseError> {
        match event {
            Event::TreeGone { round } if self.last == Some(*round) => self.are_there = false,
            Event::GuardDied { .. } => self.are_there = false,
            _ => {}
        }
        for effect in effects {
            match effect {
                Effect::Prepare { assignment, .. } => {
                    prop_assert!(!self.are_there);
                    prop_assert!(self.last.is_none_or(|last| last < assignment.round));
                    self.last = Some(assignment.round);
                }
                Effect::Spawn { round } => {
                    prop_assert!(!self.are_there && self.last == Some(*round));
                    self.are_there = true;
                }
                Effect::Join { .. } => prop_assert!(!self.are_there),
                _ => {}
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_order_of_events_keeps_the_invariants(
        max_restarts in 0_u32..3,
        join_timeout in prop::sample::select(vec![0_u64, 1, 600]),
        events in prop::collection::vec((0_u64..20_000, any_event(), any::<bool>()), 0..80),
    ) {
        let limits = Limits { join_timeout: Duration::from_secs(join_timeout), ..limits(max_restarts) };
        let mut group = WorkerGroup::new(limits);
        let mut now = Moment::START;
        let mut seen: Vec<Effect> = Vec::new();
        let mut is_interrupted = false;
        let mut workers = Workers::default();
        for (millis, event, jumps) in [(0, Event::MasterBack, false)].into_iter().chain(events) {
            now = now + Duration::from_millis(millis);
            let was_deadline = event == Event::Deadline;
            if was_deadline && jumps {
                now = group.deadline().map_or(now, |deadline| deadline.max(now));
            }
            is_interrupted |= matches!(event, Event::Signalled { .. });
            let effects = group.handle(now, event.clone());
            workers.follow(&event, &effects)?;
            // An interrupted node starts no workers.
            let starts = |effect: &Effect| {
                matches!(effect, Effect::Join { .. } | Effect::Prepare { .. } | Effect::Spawn { .. })
            };
            prop_assert!(!is_interrupted || !effects.iter().any(starts), "{effects:?}");
            seen.extend(effects);
            // Nothing follows the end.
            if let Some(end) = seen.iter().position(|effect| matches!(effect, Effect::Finish { .. })) {
                prop_assert_eq!(end, seen.len() - 1);
                prop_assert_eq!(group.deadline(), None);
            }
            // A deadline that was handled lies in the future or is gone, else the shell would spin.
            if was_deadline {
                prop_assert!(group.deadline().is_none_or(|at| at > now));
            }
            prop_assert!(group.attempt().0 <= max_restarts);
        }
    }
}
