//! Events in, the whole effect list out.

use proptest::prelude::*;

use super::*;
use crate::{ids::Rank, stop_ladder::KILL_PATIENCE, world::Member};

const GRACE: Duration = Duration::from_secs(30);

fn me() -> NodeId {
    NodeId("me".into())
}

fn world(round: u32, workers: u32) -> World {
    let member = Member { node_id: me(), local_world_size: workers, role: "default".into() };
    World { round: Round(round), members: vec![member], master_addr: "localhost".into(), master_port: 1 }
}

fn new(max_restarts: u32) -> WorkerGroup {
    WorkerGroup::new(Limits { node_id: me(), max_restarts, shutdown_timeout: GRACE }).0
}

fn running(workers: u32, max_restarts: u32) -> WorkerGroup {
    let mut group = new(max_restarts);
    start(&mut group, 0, workers);
    group
}

fn start(group: &mut WorkerGroup, round: u32, workers: u32) {
    let attempt = group.attempt();
    assert_eq!(
        group.handle(Moment::START, Event::Seated { world: world(round, workers) }),
        [Effect::Prepare { world: world(round, workers), seat: NodeRank(0), attempt }]
    );
    assert_eq!(
        group.handle(Moment::START, Event::Prepared { round: Round(round) }),
        [Effect::Spawn { round: Round(round) }]
    );
}

fn exited(round: u32, local_rank: u32, cause: ExitCause) -> Event {
    Event::WorkerExited { round: Round(round), exit: exit(local_rank, cause) }
}

fn exit(local_rank: u32, cause: ExitCause) -> WorkerExit {
    WorkerExit {
        local_rank: LocalRank(local_rank),
        pid: 100 + i32::try_from(local_rank).unwrap(),
        cause,
        unix_secs: 7,
        out_of_memory: false,
    }
}

fn failure(local_rank: u32, cause: ExitCause) -> WorkerFailure {
    WorkerFailure {
        rank: Rank(local_rank),
        local_rank: LocalRank(local_rank),
        pid: 100 + i32::try_from(local_rank).unwrap(),
        cause,
        unix_secs: 7,
        out_of_memory: false,
    }
}

fn told(local_rank: u32, cause: ExitCause, attempt: u32, then: AfterStop) -> Effect {
    Effect::Tell(Notice::WorkerFailed {
        failure: failure(local_rank, cause),
        attempt: Attempt(attempt),
        then,
    })
}

fn gone(round: u32) -> Event {
    Event::TreeGone { round: Round(round) }
}

const SEGV: ExitCause = ExitCause::Signal(11);
const OK: ExitCause = ExitCause::Code(0);
const TERM: ExitCause = ExitCause::Signal(15);

#[test]
fn a_dead_worker_stops_its_peers_and_rejoins() {
    let mut group = running(2, 1);
    let now = Moment::at_secs(60);
    let next = AfterStop::Restart { next: Attempt(1), max_restarts: 1 };
    assert_eq!(
        group.handle(now, exited(0, 1, SEGV)),
        [told(1, SEGV, 0, next), Effect::SignalTree { signal: 15 }]
    );
    assert_eq!(group.deadline(), Some(now + GRACE));
    assert_eq!(group.handle(now, exited(0, 0, TERM)), []);
    assert_eq!(group.handle(now, gone(0)), [Effect::Join { attempt: Attempt(1) }]);
    start(&mut group, 1, 2);
    assert_eq!(group.attempt(), Attempt(1));
}

#[test]
fn a_spent_restart_budget_fails_the_node_with_all_that_was_seen() {
    let mut group = running(2, 0);
    let now = Moment::at_secs(1);
    assert_eq!(
        group.handle(now, exited(0, 1, ExitCause::Code(3))),
        [told(1, ExitCause::Code(3), 0, AfterStop::Fail), Effect::SignalTree { signal: 15 }]
    );
    assert_eq!(group.handle(now, exited(0, 0, TERM)), []);
    let outcome = Outcome::Failed(Failure::Workers(GroupFailure {
        attempt: Attempt(0),
        failures: vec![failure(1, ExitCause::Code(3)), failure(0, TERM)],
    }));
    assert_eq!(group.handle(now, gone(0)), [Effect::ReportEnd { outcome: outcome.clone() }]);
    let ended = Event::JobEnded { verdict: JobVerdict::Failed { node: me(), reason: String::new() } };
    assert_eq!(group.handle(now, ended), [Effect::Finish { outcome }]);
    assert_eq!(group.deadline(), None);
}

#[test]
fn success_needs_all_workers_and_clears_away_what_they_left() {
    let mut group = running(2, 3);
    let now = Moment::at_secs(5);
    assert_eq!(group.handle(now, exited(0, 0, OK)), []);
    assert_eq!(group.handle(now, exited(0, 1, OK)), [Effect::SignalTree { signal: 15 }]);
    assert_eq!(group.deadline(), Some(Moment::at_secs(7)));
    assert_eq!(group.handle(now, gone(0)), [Effect::ReportEnd { outcome: Outcome::Succeeded }]);
    assert_eq!(group.deadline(), Some(now + EXIT_BARRIER));
    assert_eq!(
        group.handle(now, Event::JobEnded { verdict: JobVerdict::Succeeded }),
        [Effect::Finish { outcome: Outcome::Succeeded }]
    );
}

#[test]
fn a_finished_rank_is_restarted_with_the_one_that_failed() {
    let mut group = running(2, 1);
    assert_eq!(group.handle(Moment::START, exited(0, 0, OK)), []);
    let effects = group.handle(Moment::START, exited(0, 1, SEGV));
    assert_eq!(effects.last(), Some(&Effect::SignalTree { signal: 15 }));
    // Both leaders are gone, so only leftovers are waited for.
    assert_eq!(group.deadline(), Some(Moment::at_secs(2)));
    assert_eq!(group.handle(Moment::START, gone(0)), [Effect::Join { attempt: Attempt(1) }]);
}

#[test]
fn a_worker_that_ignores_the_polite_signal_is_killed_and_then_given_up() {
    let mut group = running(2, 0);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    assert_eq!(group.handle(Moment::at_secs(30), Event::Deadline), [Effect::KillTree]);
    let hopeless = Moment::at_secs(30) + KILL_PATIENCE;
    assert_eq!(group.deadline(), Some(hopeless));
    let failures = vec![failure(1, SEGV)];
    let outcome = Outcome::Failed(Failure::Workers(GroupFailure { attempt: Attempt(0), failures }));
    assert_eq!(group.handle(hopeless, Event::Deadline), [Effect::AbandonTree, Effect::ReportEnd { outcome }]);
}

#[test]
fn nobody_is_restarted_beside_a_worker_that_cannot_be_killed() {
    let mut group = running(2, 3);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    let _ = group.handle(Moment::at_secs(30), Event::Deadline);
    let outcome = Outcome::Failed(Failure::Unkillable);
    assert_eq!(
        group.handle(Moment::at_secs(30) + KILL_PATIENCE, Event::Deadline),
        [Effect::AbandonTree, Effect::ReportEnd { outcome }]
    );
}

#[test]
fn the_first_signal_is_passed_on_and_the_second_kills() {
    let mut group = running(2, 3);
    assert_eq!(
        group.handle(Moment::START, Event::Signalled { signal: 2 }),
        [Effect::Tell(Notice::Stopping { signal: 2, grace: GRACE }), Effect::SignalTree { signal: 2 }]
    );
    assert_eq!(
        group.handle(Moment::at_secs(1), Event::Signalled { signal: 2 }),
        [Effect::Tell(Notice::Killing), Effect::KillTree]
    );
    assert_eq!(group.handle(Moment::at_secs(1), Event::Signalled { signal: 2 }), []);
    assert_eq!(group.handle(Moment::at_secs(1), exited(0, 0, ExitCause::Signal(9))), []);
    assert_eq!(
        group.handle(Moment::at_secs(1), gone(0)),
        [Effect::ReportEnd { outcome: Outcome::Interrupted(2) }]
    );
}

#[test]
fn a_signal_during_a_restart_means_no_restart() {
    let mut group = running(2, 3);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    assert_eq!(group.handle(Moment::START, Event::Signalled { signal: 15 }), []);
    assert_eq!(
        group.handle(Moment::START, gone(0)),
        [Effect::ReportEnd { outcome: Outcome::Interrupted(15) }]
    );
}

#[test]
fn a_signal_before_any_worker_ends_the_run_at_once() {
    let mut group = new(3);
    assert_eq!(
        group.handle(Moment::START, Event::Signalled { signal: 15 }),
        [Effect::ReportEnd { outcome: Outcome::Interrupted(15) }]
    );
    let late = group.handle(Moment::START, Event::Seated { world: world(0, 2) });
    assert_eq!(late, [], "a seat that comes late starts nobody");
}

#[test]
fn a_late_word_of_an_old_round_is_ignored() {
    let mut group = running(2, 3);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    let _ = group.handle(Moment::START, gone(0));
    start(&mut group, 1, 2);
    assert_eq!(group.handle(Moment::START, exited(0, 0, SEGV)), []);
    assert_eq!(group.handle(Moment::START, gone(0)), []);
    assert_eq!(group.handle(Moment::START, Event::Prepared { round: Round(0) }), []);
}

#[test]
fn a_worker_that_cannot_be_started_ends_the_run_whatever_the_budget() {
    let mut group = running(2, 3);
    let reason = "no such file".to_owned();
    let event = Event::CannotStart { round: Round(0), local_rank: LocalRank(1), reason: reason.clone() };
    assert_eq!(group.handle(Moment::START, event), [Effect::SignalTree { signal: 15 }]);
    let outcome = Outcome::Failed(Failure::Start { local_rank: LocalRank(1), reason });
    assert_eq!(group.handle(Moment::START, gone(0)), [Effect::ReportEnd { outcome }]);
}

#[test]
fn another_nodes_restart_spends_none_of_ours() {
    let mut group = running(2, 0);
    assert_eq!(
        group.handle(Moment::START, Event::Regroup { round: Round(0) }),
        [Effect::Tell(Notice::Regrouping), Effect::SignalTree { signal: 15 }]
    );
    assert_eq!(group.handle(Moment::START, gone(0)), [Effect::Join { attempt: Attempt(0) }]);
}

#[test]
fn a_dead_guard_fails_the_run_and_keeps_an_outcome_that_was_settled() {
    let killed = ExitCause::Signal(9);
    let mut group = running(2, 3);
    assert_eq!(
        group.handle(Moment::START, Event::GuardDied { cause: killed }),
        [Effect::ReportEnd { outcome: Outcome::Failed(Failure::GuardDied { cause: killed }) }]
    );
    let mut group = running(1, 3);
    let _ = group.handle(Moment::START, exited(0, 0, OK));
    assert_eq!(
        group.handle(Moment::START, Event::GuardDied { cause: killed }),
        [Effect::ReportEnd { outcome: Outcome::Succeeded }]
    );
}

#[test]
fn usr1_reaches_the_workers_alone_and_stops_nothing() {
    let mut group = running(2, 0);
    assert_eq!(
        group.handle(Moment::START, Event::Forwarded { signal: 10 }),
        [Effect::SignalWorkers { signal: 10 }]
    );
    assert_eq!(group.deadline(), None);
}

fn any_cause() -> impl Strategy<Value = ExitCause> {
    prop_oneof![Just(OK), Just(ExitCause::Code(3)), Just(SEGV), Just(TERM)]
}

fn any_event() -> impl Strategy<Value = Event> {
    let round = || (0u32..3).prop_map(Round);
    prop_oneof![
        round().prop_map(|round| Event::AskedToHost { round }),
        (0u32..3, 1u32..3).prop_map(|(round, workers)| Event::Seated { world: world(round, workers) }),
        round().prop_map(|round| Event::Prepared { round }),
        round().prop_map(|round| Event::CannotPrepare { round, reason: "r".into() }),
        round().prop_map(|round| Event::CannotStart { round, local_rank: LocalRank(0), reason: "r".into() }),
        (0u32..3, 0u32..4, any_cause()).prop_map(|(round, rank, cause)| exited(round, rank, cause)),
        round().prop_map(|round| Event::TreeGone { round }),
        (1i32..16).prop_map(|signal| Event::Signalled { signal }),
        Just(Event::Forwarded { signal: 10 }),
        round().prop_map(|round| Event::Regroup { round }),
        Just(Event::JobEnded { verdict: JobVerdict::Succeeded }),
        Just(Event::MasterLost { reason: "r".into() }),
        Just(Event::GuardDied { cause: SEGV }),
        Just(Event::Deadline),
    ]
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_promises(
        max_restarts in 0u32..3,
        events in proptest::collection::vec((0u64..20_000, any_event()), 0..60),
    ) {
        let (mut group, mut seen) = WorkerGroup::new(Limits {
            node_id: me(),
            max_restarts,
            shutdown_timeout: GRACE,
        });
        let mut now = Moment::START;
        for (millis, event) in events {
            now = now + Duration::from_millis(millis);
            let was_deadline = event == Event::Deadline;
            let before = seen.len();
            seen.extend(group.handle(now, event));
            // Nothing follows the end.
            if let Some(end) = seen.iter().position(|effect| matches!(effect, Effect::Finish { .. })) {
                prop_assert_eq!(end, seen.len() - 1);
                prop_assert_eq!(group.deadline(), None);
            }
            // A deadline that was handled lies in the future or is gone, else the shell would spin.
            if was_deadline && seen.len() >= before {
                prop_assert!(group.deadline().is_none_or(|at| at > now));
            }
            prop_assert!(group.attempt().0 <= max_restarts);
        }
        // Workers are only ever started after the tree of the last generation is gone.
        let mut stopping = false;
        for effect in &seen {
            match effect {
                Effect::SignalTree { .. } => stopping = true,
                Effect::Join { .. } => stopping = false,
                Effect::Spawn { .. } => prop_assert!(!stopping),
                _ => {}
            }
        }
    }
}

#[test]
fn notices_read_well() {
    let notice = Notice::WorkerFailed {
        failure: failure(1, ExitCause::Code(3)),
        attempt: Attempt(0),
        then: AfterStop::Restart { next: Attempt(1), max_restarts: 3 },
    };
    assert_eq!(
        notice.to_string(),
        "rank 1 (local rank 1, pid 101) exited with code 3; restarting all workers (restart 1 of 3)"
    );
}

#[test]
fn a_master_lost_while_workers_ran_is_remembered_when_it_is_needed() {
    let now = Moment::at_secs(1);
    let lost = || Event::MasterLost { reason: "broke off".into() };
    let failed = Outcome::Failed(Failure::Master { reason: "broke off".into() });
    // A restart needs a master.
    let mut group = running(1, 1);
    assert_eq!(group.handle(now, lost()), []);
    let _stopping = group.handle(now, exited(0, 0, SEGV));
    assert_eq!(group.handle(now, gone(0)), [Effect::Finish { outcome: failed }]);
    // An end does not, and nobody is left to wait for.
    let mut group = running(1, 0);
    let _stopping = group.handle(now, exited(0, 0, OK));
    assert_eq!(group.handle(now, lost()), []);
    assert_eq!(group.handle(now, gone(0)), [Effect::Finish { outcome: Outcome::Succeeded }]);
}

#[test]
fn a_node_that_prepares_joins_again_when_the_round_is_over() {
    let mut group = new(1);
    let now = Moment::at_secs(1);
    let _prepare = group.handle(now, Event::Seated { world: world(0, 1) });
    assert_eq!(
        group.handle(now, Event::Regroup { round: Round(0) }),
        [Effect::Tell(Notice::Regrouping), Effect::Join { attempt: Attempt(0) }]
    );
    assert_eq!(group.handle(now, Event::Prepared { round: Round(0) }), []);
    start(&mut group, 1, 1);
}
