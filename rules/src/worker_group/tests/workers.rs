//! Workers start, end, fail and are stopped.

use super::*;

#[test]
fn a_dead_worker_stops_its_peers_and_rejoins() {
    let mut group = running(2, 1);
    let now = Moment::at_secs(60);
    let next = RestartDecision::Restart { next: Attempt(1), max_restarts: 1 };
    assert_eq!(
        group.handle(now, exited(0, 1, SEGV)),
        [told(1, SEGV, 0, next), reported(0, 1, SEGV, false), TERM_TREE],
        "the other nodes hear of it before ours are gone"
    );
    assert_eq!(group.deadline(), Some(now + GRACE));
    assert_eq!(group.handle(now, exited(0, 0, TERM)), []);
    assert_eq!(group.handle(now, gone(0)), [join(1, Some(0))]);
    assert_eq!(group.deadline(), None, "the master holds the deadline of a rendezvous");
    start(&mut group, 1, 2);
    assert_eq!(group.attempt(), Attempt(1));
}

#[test]
fn a_node_whose_ranks_moved_restores_from_disk_whatever_moved_them() {
    let mut group = running(1, 1);
    let _regrouped = group.handle(Moment::START, regroup(0));
    assert_eq!(group.handle(Moment::START, gone(0)), [join(0, Some(0))]);
    let moved = Assignment { first_rank: 2, first_role_rank: 2, node_rank: NodeRank(0), ..assignment(1, 1) };
    let told = Assignment { restore_from_disk: true, ..moved.clone() };
    let effects = group.handle(Moment::START, Event::Pushed(Push::Assigned(moved)));
    assert_eq!(effects.first(), Some(&Effect::Prepare { assignment: told, attempt: group.attempt() }));
}

#[test]
fn a_node_without_restarts_left_fails_with_all_its_failures() {
    let mut group = running(2, 0);
    let now = Moment::at_secs(1);
    assert_eq!(
        group.handle(now, exited(0, 1, CODE)),
        [told(1, CODE, 0, RestartDecision::Fail { max_restarts: 0 }), reported(0, 1, CODE, true), TERM_TREE]
    );
    assert_eq!(group.handle(now, exited(0, 0, TERM)), []);
    let outcome = group_failed(0, &[(1, CODE), (0, TERM)]);
    assert_eq!(group.handle(now, gone(0)), [], "the master may yet say that it followed from another's");
    let due = now + ROOT_CAUSE_TIMEOUT;
    assert_eq!(group.deadline(), Some(due));
    assert_eq!(group.handle(due, Event::Deadline), [failed_with("rank 5 exited with code 3")]);
    assert_eq!(group.deadline(), Some(due + FAREWELL_TIMEOUT));
    assert_eq!(group.handle(due, Event::EndNoted), [finished(outcome)]);
    assert_eq!(group.deadline(), None);
}

#[test]
fn ranks_that_succeeded_before_the_first_failure_are_reported() {
    let mut group = running(3, 0);
    assert_eq!(group.handle(Moment::START, exited(0, 2, ExitCause::Code(0))), []);
    assert_eq!(group.handle(Moment::START, exited(0, 1, CODE)).len(), 3);
    assert_eq!(group.handle(Moment::START, exited(0, 0, ExitCause::Code(0))), []);
    assert_eq!(group.handle(Moment::START, gone(0)), []);
    let effects = group.handle(Moment::START, away());
    let [Effect::Finish { outcome: Outcome::Failed(Failure::Workers(failed)) }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((&failed.failures[..], &failed.ended_before[..]), (&[failure(1, CODE)][..], &[Rank(6)][..]));
}

#[test]
fn a_root_cause_or_the_jobs_end_may_arrive_when_no_restart_is_left() {
    let spent = || {
        let mut group = running(1, 0);
        let _stopping = group.handle(Moment::START, exited(0, 0, CODE));
        assert_eq!(group.handle(Moment::START, gone(0)), []);
        group
    };
    let secondary = Effect::Notify(Notice::Secondary { why: "a peer failed".into() });
    let mut group = spent();
    assert_eq!(group.handle(Moment::START, regroup(0)), [secondary, join(0, Some(0))]);
    let late = Event::Pushed(Push::Regroup { round: Round(0), why: String::new(), is_secondary: false });
    assert_eq!(spent().handle(Moment::START, late), []);
    let end = || finished(group_failed(0, &[(0, CODE)]));
    assert_eq!(spent().handle(Moment::START, job_failed()), [Effect::AcknowledgeEnd, end()]);
    assert_eq!(spent().handle(Moment::START, away()), [end()]);
    assert_eq!(spent().handle(Moment::START, signalled(15)), [end()]);
}

#[test]
fn workers_that_take_long_to_end_leave_nothing_to_wait_for() {
    let mut group = running(2, 0);
    let _stopping = group.handle(Moment::START, exited(0, 1, CODE));
    assert_eq!(group.handle(Moment::at_secs(2), exited(0, 0, TERM)), []);
    assert_eq!(group.handle(Moment::at_secs(2), gone(0)), [failed_with("rank 5 exited with code 3")]);
}

#[test]
fn a_secondary_failure_uses_no_restart() {
    let secondary = || Effect::Notify(Notice::Secondary { why: "a peer failed".into() });
    for max_restarts in [0, 2] {
        let mut group = running(2, max_restarts);
        let _stopping = group.handle(Moment::START, exited(0, 1, CODE));
        assert_eq!(group.handle(Moment::START, regroup(0)), [secondary()]);
        assert_eq!(group.handle(Moment::START, regroup(0)), [], "said again");
        assert_eq!(group.handle(Moment::START, exited(0, 0, TERM)), []);
        assert_eq!(group.handle(Moment::START, gone(0)), [join(0, Some(0))]);
    }
}

#[test]
fn a_regroup_without_a_root_cause_leaves_the_budget_unchanged() {
    let mut group = running(2, 2);
    let _stopping = group.handle(Moment::START, exited(0, 1, CODE));
    let late = Event::Pushed(Push::Regroup { round: Round(0), why: String::new(), is_secondary: false });
    assert_eq!(group.handle(Moment::START, late), []);
    assert_eq!(group.handle(Moment::START, gone(0)), [join(1, Some(0))]);

    let mut group = running(2, 2);
    let cannot = Event::CannotStart { round: Round(0), local_rank: LocalRank(1), reason: "gone".into() };
    let _stopping = group.handle(Moment::START, cannot);
    assert_eq!(group.handle(Moment::START, regroup(0)), []);
}

#[test]
fn a_node_that_failed_does_not_wait_for_the_master_for_ever() {
    let spent = || {
        let mut group = running(1, 0);
        let _stopping = group.handle(Moment::START, exited(0, 0, CODE));
        assert_eq!(group.handle(Moment::START, gone(0)), []);
        let due = Moment::START + ROOT_CAUSE_TIMEOUT;
        assert_eq!(group.handle(due, Event::Deadline), [failed_with("rank 4 exited with code 3")]);
        group
    };
    let end = || finished(group_failed(0, &[(0, CODE)]));
    let due = Moment::START + ROOT_CAUSE_TIMEOUT + FAREWELL_TIMEOUT;
    let mut group = spent();
    assert_eq!(group.handle(Moment::at_secs(9), Event::Deadline), []);
    assert_eq!(group.handle(due, Event::Deadline), [end()]);
    assert_eq!(spent().handle(Moment::at_secs(1), away()), [end()]);
    assert_eq!(spent().handle(Moment::at_secs(1), job_failed()), [Effect::AcknowledgeEnd, end()]);
    assert_eq!(spent().handle(Moment::at_secs(1), refused()), [end()]);
    assert_eq!(spent().handle(Moment::at_secs(1), signalled(2)), [end()]);
}

#[test]
fn success_needs_all_workers_and_clears_away_what_they_left() {
    let mut group = running(2, 3);
    let now = Moment::at_secs(5);
    assert_eq!(group.handle(now, exited(0, 0, OK)), []);
    assert_eq!(group.handle(now, exited(0, 1, OK)), [TERM_TREE]);
    assert_eq!(group.deadline(), Some(Moment::at_secs(7)));
    assert_eq!(group.handle(now, gone(0)), [succeeded_in(0)]);
    assert_eq!(group.deadline(), None, "the others may take as long as they like");
    assert_eq!(group.handle(now, Event::EndNoted), [], "it waits for the others");
    assert_eq!(
        group.handle(Moment::at_secs(9999), job_succeeded()),
        [Effect::AcknowledgeEnd, finished(Outcome::Succeeded)]
    );
}

#[test]
fn a_finished_rank_is_restarted_with_the_one_that_failed() {
    let mut group = running(2, 1);
    assert_eq!(group.handle(Moment::START, exited(0, 0, OK)), []);
    let effects = group.handle(Moment::START, exited(0, 1, SEGV));
    assert_eq!(effects.last(), Some(&TERM_TREE));
    // Both leaders are gone, so only leftovers are waited for.
    assert_eq!(group.deadline(), Some(Moment::at_secs(2)));
    assert_eq!(group.handle(Moment::START, gone(0)), [join(1, Some(0))]);
}

#[test]
fn a_worker_that_ignores_the_first_signal_is_killed_and_then_abandoned() {
    let mut group = running(2, 0);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    assert_eq!(group.handle(Moment::at_secs(29), Event::Deadline), []);
    assert_eq!(group.handle(Moment::at_secs(30), Event::Deadline), [Effect::KillTree]);
    let hopeless = Moment::at_secs(30) + KILL_TIMEOUT;
    assert_eq!(group.deadline(), Some(hopeless));
    assert_eq!(
        group.handle(hopeless, Event::Deadline),
        [Effect::AbandonTree, failed_with("rank 5 was killed by SIGSEGV")]
    );
    assert_eq!(group.handle(hopeless, Event::EndNoted), [finished(group_failed(0, &[(1, SEGV)]))]);
}

#[test]
fn no_worker_is_restarted_next_to_one_that_cannot_be_killed() {
    let mut group = running(2, 3);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    let _ = group.handle(Moment::at_secs(30), Event::Deadline);
    let hopeless = Moment::at_secs(30) + KILL_TIMEOUT;
    assert_eq!(
        group.handle(hopeless, Event::Deadline),
        [Effect::AbandonTree, failed_with("the workers could not be killed")]
    );
    assert_eq!(group.handle(hopeless, Event::EndNoted), [finished(Outcome::Failed(Failure::Unkillable))]);
}

#[test]
fn nor_next_to_children_of_a_worker_that_succeeded() {
    let mut group = running(1, 3);
    let _ = group.handle(Moment::START, exited(0, 0, OK));
    assert_eq!(group.handle(Moment::at_secs(2), Event::Deadline), [Effect::KillTree]);
    let hopeless = Moment::at_secs(2) + KILL_TIMEOUT;
    assert_eq!(group.handle(hopeless, Event::Deadline), [Effect::AbandonTree, succeeded_in(0)]);
    assert_eq!(
        group.clone().handle(hopeless, job_succeeded()),
        [Effect::AcknowledgeEnd, finished(Outcome::Succeeded)]
    );
    assert_eq!(
        group.handle(hopeless, regroup(0)),
        [regrouping(), failed_with("the workers could not be killed")]
    );
    assert_eq!(group.handle(hopeless, Event::EndNoted), [finished(Outcome::Failed(Failure::Unkillable))]);
}

#[test]
fn a_leave_is_announced_before_the_workers_are_gone_and_the_second_signal_kills() {
    let mut group = running(2, 3);
    assert_eq!(
        group.handle(Moment::START, signalled(2)),
        [
            Effect::Notify(Notice::Stopping { signal: 2, grace: GRACE }),
            left(2),
            Effect::SignalTree { signal: 2 }
        ]
    );
    assert_eq!(
        group.handle(Moment::at_secs(1), signalled(15)),
        [Effect::Notify(Notice::Killing), Effect::KillTree]
    );
    assert_eq!(group.handle(Moment::at_secs(1), signalled(2)), [], "there is nothing harder");
    assert_eq!(group.handle(Moment::at_secs(1), exited(0, 0, ExitCause::Signal(9))), []);
    assert_eq!(
        group.handle(Moment::at_secs(1), gone(0)),
        [left(2)],
        "repeated, because it was not acknowledged"
    );
    assert_eq!(group.handle(Moment::at_secs(1), Event::EndNoted), [finished(Outcome::Interrupted(2))]);
}

#[test]
fn a_leave_acknowledged_while_workers_stopped_is_not_repeated() {
    let mut group = running(1, 3);
    let _stopping = group.handle(Moment::START, signalled(15));
    assert_eq!(group.handle(Moment::START, Event::EndNoted), []);
    assert_eq!(group.handle(Moment::START, regroup(0)), [], "it leaves whatever becomes of the round");
    assert_eq!(group.handle(Moment::START, gone(0)), [finished(Outcome::Interrupted(15))]);
}

#[test]
fn a_signal_during_a_restart_means_no_restart() {
    let mut group = running(2, 3);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    assert_eq!(group.handle(Moment::START, signalled(15)), [left(15)]);
    assert_eq!(
        group.handle(Moment::START, signalled(15)),
        [Effect::Notify(Notice::Killing), Effect::KillTree]
    );
    assert_eq!(group.handle(Moment::START, gone(0)), [left(15)]);
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [finished(Outcome::Interrupted(15))]);
}

#[test]
fn a_signal_after_the_last_worker_ended_well_means_no_restart_either() {
    let mut group = running(1, 3);
    assert_eq!(group.handle(Moment::START, exited(0, 0, OK)), [TERM_TREE]);
    assert_eq!(group.handle(Moment::START, signalled(15)), []);
    assert_eq!(group.handle(Moment::START, regroup(0)), [], "it leaves");
    assert_eq!(group.handle(Moment::START, gone(0)), [left(15)], "the others need not wait for it");
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [finished(Outcome::Succeeded)]);
}

#[test]
fn a_signal_before_any_worker_ends_the_run() {
    let mut group = joining(3);
    assert_eq!(group.handle(Moment::START, signalled(15)), [left(15)]);
    let late = group.handle(Moment::START, assigned(0, 2));
    assert_eq!(late, [], "a late assignment starts no workers");
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [finished(Outcome::Interrupted(15))]);

    let mut group = joining(3);
    let _prepare = group.handle(Moment::START, assigned(0, 2));
    assert_eq!(group.handle(Moment::START, signalled(2)), [left(2)]);
    assert_eq!(group.handle(Moment::START, prepared(0)), []);
    assert_eq!(group.handle(Moment::START, signalled(2)), [finished(Outcome::Interrupted(2))], "at once");

    let mut group = WorkerGroup::new(limits(3));
    assert_eq!(
        group.handle(Moment::START, signalled(2)),
        [finished(Outcome::Interrupted(2))],
        "there is no master that could be told"
    );
}

#[test]
fn a_late_message_of_an_old_round_is_ignored() {
    let mut group = running(2, 3);
    let _ = group.handle(Moment::START, exited(0, 1, SEGV));
    let _ = group.handle(Moment::START, gone(0));
    assert_eq!(group.handle(Moment::START, regroup(7)), []);
    assert_eq!(group.handle(Moment::START, assigned(0, 2)), [], "that assignment is left");
    start(&mut group, 1, 2);
    for late in [
        exited(0, 0, SEGV),
        gone(0),
        prepared(0),
        regroup(0),
        assigned(0, 2),
        assigned(1, 2),
        assigned(2, 2),
        Event::CannotStart { round: Round(0), local_rank: LocalRank(0), reason: "r".into() },
        Event::CannotPrepare { round: Round(0), reason: "r".into() },
        Event::Pushed(Push::Host { round: Round(1), fresh_port: false }),
        Event::Pushed(Push::Pending(Pending::Spare { nodes: 2, lacking: 0 })),
    ] {
        let before = group.clone();
        assert_eq!(group.handle(Moment::START, late.clone()), [], "{late:?}");
        assert_eq!(group, before, "{late:?}");
    }
}

#[test]
fn a_worker_that_cannot_be_started_ends_the_run_whatever_the_budget() {
    let mut group = running(2, 3);
    let reason = "no such file".to_owned();
    let message = "cannot start the worker of local rank 1: no such file";
    let event = Event::CannotStart { round: Round(0), local_rank: LocalRank(1), reason: reason.clone() };
    assert_eq!(
        group.handle(Moment::START, event),
        [
            Effect::ReportFailure { round: Round(0), reason: message.into(), gives_up: true, worker: None },
            TERM_TREE
        ]
    );
    assert_eq!(group.handle(Moment::START, gone(0)), [failed_with(message)]);
    let outcome = Outcome::Failed(Failure::Start { local_rank: LocalRank(1), reason });
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [finished(outcome)]);
}

#[test]
fn a_sigkill_is_the_oom_killers_when_its_count_has_risen_since_the_start() {
    let outcome = |signal, oom_kills| {
        let mut group = running(1, 0);
        let exit =
            WorkerExit { local_rank: LocalRank(0), pid: 100, cause: ExitCause::Signal(signal), unix_secs: 7 };
        let event = Event::WorkerExited { round: Round(0), exit, oom_kills };
        match &group.handle(Moment::START, event)[0] {
            Effect::Notify(Notice::WorkerFailed { failure, .. }) => failure.out_of_memory,
            other => panic!("{other:?}"),
        }
    };
    assert!(outcome(9, Some(4)));
    assert!(!outcome(9, Some(3)) && !outcome(9, None) && !outcome(15, Some(4)));
}

#[test]
fn the_end_says_whether_the_oom_killers_count_was_known() {
    let known = |signal, oom_kills| {
        let mut group = running(1, 0);
        let now = |event: &Event| match event {
            Event::Deadline | Event::EndNoted => Moment::START + ROOT_CAUSE_TIMEOUT,
            _ => Moment::START,
        };
        let exit =
            WorkerExit { local_rank: LocalRank(0), pid: 100, cause: ExitCause::Signal(signal), unix_secs: 7 };
        let events = [
            Event::WorkerExited { round: Round(0), exit, oom_kills },
            gone(0),
            Event::Deadline,
            Event::EndNoted,
        ];
        let effects: Vec<Effect> =
            events.into_iter().flat_map(|event| group.handle(now(&event), event)).collect();
        let mut ends = effects.iter().filter_map(|effect| match effect {
            Effect::Finish { outcome: Outcome::Failed(Failure::Workers(group)) } => {
                Some(group.has_oom_counter)
            }
            _ => None,
        });
        ends.next_back().unwrap_or_else(|| panic!("{effects:?}"))
    };
    assert!(known(9, Some(3)) && known(9, Some(4)) && known(15, None));
    assert!(!known(9, None));
}

#[test]
fn a_worker_that_does_not_reach_the_store_is_reported_and_named_at_the_end() {
    let mut group = running(2, 0);
    let reached = Event::StoreReached { round: Round(0), workers: vec![LocalRank(1)], is_unsure: false };
    assert_eq!(group.deadline(), None, "no worker has reached it");
    assert_eq!(group.handle(Moment::at_secs(1), reached), []);
    let (at, missing) = (group.deadline().unwrap(), vec![LocalRank(0)]);
    let notice = Notice::StoreNotReached { missing: missing.clone(), waited: Duration::from_secs(60) };
    assert_eq!(group.handle(at, Event::Deadline), [Effect::Notify(notice)]);
    assert!(group.watches_store() && group.deadline() > Some(at));
    let _stopping = group.handle(at, exited(0, 1, CODE));
    let _gone = group.handle(at, gone(0));
    assert_eq!(group.missing_at_store(), missing);
}

#[test]
fn a_round_that_cannot_be_prepared_ends_the_run() {
    let mut group = joining(3);
    let _prepare = group.handle(Moment::START, assigned(0, 2));
    let reason = "disk full".to_owned();
    assert_eq!(
        group.handle(Moment::START, Event::CannotPrepare { round: Round(0), reason: reason.clone() }),
        [failed_with("cannot start the workers: disk full")]
    );
    let outcome = Outcome::Failed(Failure::Prepare { reason });
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [finished(outcome)]);
}

#[test]
fn another_nodes_restart_uses_none_of_ours() {
    let mut group = running(2, 0);
    assert_eq!(group.handle(Moment::START, regroup(0)), [regrouping(), TERM_TREE]);
    assert_eq!(group.handle(Moment::START, regroup(0)), [], "said again");
    assert_eq!(group.handle(Moment::START, exited(0, 1, SEGV)), [], "it was asked to end");
    assert_eq!(group.handle(Moment::START, gone(0)), [join(0, Some(0))]);
}

#[test]
fn a_node_that_prepares_joins_again_when_the_round_is_over() {
    let mut group = joining(1);
    let _prepare = group.handle(Moment::START, assigned(0, 1));
    assert_eq!(group.handle(Moment::START, regroup(0)), [regrouping(), join(0, Some(0))]);
    assert_eq!(group.handle(Moment::START, prepared(0)), []);
    start(&mut group, 1, 1);
}

#[test]
fn a_node_whose_workers_all_succeeded_restarts_with_a_peer() {
    let mut group = succeeded();
    assert_eq!(group.handle(Moment::START, regroup(0)), [regrouping(), join(0, Some(0))]);
    start(&mut group, 1, 1);
    // The same when what they left behind is still being cleared away.
    assert_eq!(group.handle(Moment::START, exited(1, 0, OK)), [TERM_TREE]);
    assert_eq!(group.handle(Moment::START, regroup(1)), [regrouping()]);
    assert_eq!(group.handle(Moment::START, gone(1)), [join(0, Some(1))]);
    start(&mut group, 2, 1);
    // New workers, new fate.
    let _stopping = group.handle(Moment::START, job_failed());
    assert_eq!(
        group.handle(Moment::START, gone(2)),
        [finished(Outcome::Failed(Failure::Job(job_failure())))]
    );
}

#[test]
fn a_dead_guard_fails_the_run_and_keeps_an_outcome_that_was_settled() {
    let killed = ExitCause::Signal(9);
    let died = || Event::GuardDied { cause: killed };
    let message = "the guard process was killed by SIGKILL";
    let mut group = running(2, 3);
    assert_eq!(group.handle(Moment::START, died()), [failed_with(message)]);
    let outcome = Outcome::Failed(Failure::GuardDied { cause: killed });
    assert_eq!(group.handle(Moment::START, Event::EndNoted), [finished(outcome)]);

    let mut group = running(1, 3);
    let _ = group.handle(Moment::START, exited(0, 0, OK));
    assert_eq!(group.handle(Moment::START, died()), [succeeded_in(0)]);
    assert_eq!(group.handle(Moment::START, died()), []);

    let mut group = running(1, 3);
    let _ = group.handle(Moment::START, exited(0, 0, SEGV));
    assert_eq!(group.handle(Moment::START, died()), [failed_with(message)], "no worker could be restarted");
}

#[test]
fn a_node_without_its_guard_starts_no_more_workers() {
    let died = || Event::GuardDied { cause: ExitCause::Signal(9) };
    // It waits for the others, which restart.
    let mut group = running(1, 3);
    let _ = group.handle(Moment::START, exited(0, 0, OK));
    assert_eq!(group.handle(Moment::START, died()), [succeeded_in(0)]);
    let effects = group.handle(Moment::START, regroup(0));
    assert_eq!(effects, [regrouping(), failed_with("the guard process was killed by SIGKILL")]);
    let mut group = succeeded();
    assert_eq!(group.handle(Moment::START, died()), []);
    let effects = group.handle(Moment::START, regroup(0));
    assert_eq!(effects, [regrouping(), failed_with("the guard process was killed by SIGKILL")]);
    // It has no restart left, and an excuse would be of no use.
    let mut group = running(1, 0);
    let _ = group.handle(Moment::START, exited(0, 0, CODE));
    assert_eq!(group.handle(Moment::START, died()), [failed_with("rank 4 exited with code 3")]);
    assert_eq!(group.handle(Moment::START, regroup(0)), []);
    let mut group = running(1, 0);
    let _ = group.handle(Moment::START, exited(0, 0, CODE));
    assert_eq!(group.handle(Moment::START, gone(0)), []);
    assert_eq!(group.handle(Moment::START, died()), [failed_with("rank 4 exited with code 3")]);
}

#[test]
fn usr1_reaches_the_workers_alone_and_stops_nothing() {
    let mut group = running(2, 0);
    let usr1 = || Event::Forwarded { signal: 10 };
    assert_eq!(group.handle(Moment::START, usr1()), [Effect::SignalWorkers { signal: 10 }]);
    assert_eq!(group.deadline(), None);
    assert_eq!(joining(0).handle(Moment::START, usr1()), []);
    assert_eq!(succeeded().handle(Moment::START, usr1()), []);
}

#[test]
fn notices_read_well() {
    let failure = failure(1, CODE);
    let then = RestartDecision::Restart { next: Attempt(1), max_restarts: 3 };
    let (reason, limit) = ("connection refused".to_owned(), JOIN);
    for (notice, message) in [
        (
            Notice::WorkerFailed { failure, attempt: Attempt(0), then },
            "rank 5 (local rank 1, pid 101) exited with code 3; restarting all workers (restart 1 of 3)",
        ),
        (
            Notice::Regrouping { why: "2 more nodes joined".into(), on_all: true },
            "2 more nodes joined; all nodes restart their workers",
        ),
        (
            Notice::Regrouping { why: "the round is over".into(), on_all: false },
            "the round is over; this node stops its workers and joins again",
        ),
        (
            Notice::Assigned(assignment(3, 2)),
            "round 3: node rank 1 of 2, ranks 4-5 of 6; rendezvous of the workers: 10.0.0.1:29500",
        ),
        (
            Notice::Assigned(Assignment { master_addr: "fd00::7".into(), ..assignment(3, 1) }),
            "round 3: node rank 1 of 2, rank 4 of 5; rendezvous of the workers: [fd00::7]:29500",
        ),
        (
            Notice::MasterAway { reason: reason.clone(), keeps_running: true, limit },
            "connection refused; workers keep running; reconnecting",
        ),
        (
            Notice::MasterAway { reason: reason.clone(), keeps_running: false, limit },
            "connection refused; retrying for up to 600 s",
        ),
        (
            Notice::WaitingForMaster { reason, waited: Duration::from_millis(20_500), limit },
            "waiting for the job master, 20 s of 600 s: connection refused",
        ),
    ] {
        assert_eq!(notice.to_string(), message);
    }
}

#[test]
fn a_single_node_shows_no_assignment() {
    let mut group = joining(0);
    let alone = Assignment { node_rank: NodeRank(0), nodes: 1, ..assignment(0, 1) };
    let effects = group.handle(Moment::START, Event::Pushed(Push::Assigned(alone.clone())));
    assert_eq!(effects, [Effect::Prepare { assignment: alone, attempt: Attempt(0) }]);
}

#[test]
fn a_node_that_others_have_left_shows_that_it_continues_alone() {
    let mut group = running(1, 0);
    assert_eq!(group.handle(Moment::START, regroup(0)), [regrouping(), TERM_TREE]);
    assert_eq!(group.handle(Moment::START, exited(0, 0, TERM)), []);
    assert_eq!(group.handle(Moment::START, gone(0)), [join(0, Some(0))]);
    let alone = Assignment { node_rank: NodeRank(0), nodes: 1, ..assignment(1, 1) };
    let effects = group.handle(Moment::START, Event::Pushed(Push::Assigned(alone.clone())));
    let prepare = Effect::Prepare { assignment: alone.clone(), attempt: Attempt(0) };
    assert_eq!(effects, [prepare, Effect::Notify(Notice::Assigned(alone))]);
}

#[test]
fn a_root_cause_reported_after_the_workers_are_gone_still_counts_once() {
    let mut group = running(1, 3);
    let then = RestartDecision::Restart { next: Attempt(1), max_restarts: 3 };
    assert_eq!(
        group.handle(Moment::START, exited(0, 0, CODE)),
        [told(0, CODE, 0, then), reported(0, 0, CODE, false), TERM_TREE]
    );
    assert_eq!(group.handle(Moment::START, gone(0)), [join(1, Some(0))]);
    let late = Event::Pushed(Push::Regroup { round: Round(0), why: "r".into(), is_secondary: false });
    assert_eq!(group.handle(Moment::START, late), []);
    let secondary = Effect::Notify(Notice::Secondary { why: "a peer failed".into() });
    assert_eq!(group.handle(Moment::START, regroup(0)), [secondary]);
    assert_eq!(group.attempt(), Attempt(0));
    assert_eq!(group.handle(Moment::START, regroup(0)), []);
    start(&mut group, 1, 1);
}
