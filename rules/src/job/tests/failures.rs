//! Workers fail, nodes give up, are lost, leave.

use super::*;

fn workers_failed(name: &str, rank: u32) -> Regroup {
    Regroup::WorkersFailed { node: named(name, Some(rank)), reason: REASON.into() }
}

#[test]
fn workers_that_fail_on_one_node_are_reported_to_all_nodes_at_once() {
    let mut test = Test::running(policy(), terms(3, 3), &["a", "b", "c"]);
    assert_eq!(test.workers_fail("b", 0, false), regrouped(0, &["a", "c"], &workers_failed("b", 1)));
    assert_eq!(
        workers_failed("b", 1).to_string(),
        "workers of node rank 1 (host-b, 10.0.0.2) failed: rank 1 exited with code 3"
    );
    assert_eq!(test.workers_fail("a", 0, false), [], "it was told, whatever else it saw");
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("c", 0), []);
    assert_eq!(test.rejoin("b", 0), placed(1, &["a", "b", "c"]), "as before, on the same port");
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b", "c"]));
    assert_eq!(test.workers_fail("c", 0, false), [], "late message of the old round");
}

#[test]
fn a_failure_after_a_peers_stream_broke_is_secondary() {
    for gives_up in [false, true] {
        let mut test = Test::running(fail_job(), terms(1, 3), &["a", "b", "c"]);
        assert_eq!(test.send(Event::LinkBroken { node: id("c") }), []);
        // The node that reports it is notified as well, and so is not charged.
        let first = "the connection of node rank 2 (host-c, 10.0.0.3) to the job master broke";
        let reason = format!("{REASON}, after {first}");
        let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason };
        assert_eq!(test.workers_fail("b", 0, gives_up), regrouped(0, &["a", "b", "c"], &why));
        assert!(why.is_secondary());
    }
}

#[test]
fn a_node_that_gives_up_after_its_round_is_notified_again() {
    let mut test = Test::running(fail_job(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.workers_fail("a", 0, false), regrouped(0, &["b"], &workers_failed("a", 0)));
    let again = Effect::Push { node: id("b"), push: Push::regroup(Round(0), &workers_failed("b", 1)) };
    assert_eq!(test.workers_fail("b", 0, true), [again], "what it was told first may have been lost");
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("b", 0), placed(1, &["a", "b"]));
}

#[test]
fn a_node_without_an_assignment_has_no_workers_that_could_fail() {
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.workers_fail("b", 0, false), []);
    assert_eq!(test.workers_fail("z", 0, false), []);
    assert_eq!(test.workers_fail("z", 0, true), []);
}

#[test]
fn a_member_that_joins_again_by_itself_restarts_all_others() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let why = Regroup::Rejoined { node: named("b", Some(1)) };
    assert_eq!(test.rejoin("b", 0), regrouped(0, &["a"], &why));
    assert_eq!(test.rejoin("b", 0), []);
    assert_eq!(test.rejoin("a", 0), placed(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 0), [], "late message of the old round");
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b"]));
}

#[test]
fn on_torchrun_lines_a_node_without_restarts_ends_the_job_with_its_root_cause() {
    let verdict = JobVerdict::Failed(JobFailure::Node { node: named("b", Some(1)), reason: REASON.into() });
    let mut test = Test::running(fail_job(), terms(1, 3), &["a", "b", "c"]);
    assert_eq!(test.join("d"), [], "a spare is told too");
    let effects = test.workers_fail("b", 0, true);
    assert_eq!(effects, all([vec![forget("b")], ended(&["b", "a", "c", "d"], &verdict)]));
    // It reports the same when its workers are gone.
    let end = NodeEnd::Failed { reason: REASON.into() };
    assert_eq!(test.send(Event::NodeEnded { node: id("b"), end }), []);
    assert_eq!(test.job.verdict(), Some(&verdict));
}

#[test]
fn a_node_that_cannot_start_ends_torchruns_job_for_all() {
    let mut test = Test::running(fail_job(), terms(2, 2), &["a", "b"]);
    let reason = "cannot start the worker of local rank 0: no such file".to_owned();
    let verdict = JobVerdict::Failed(JobFailure::Node { node: named("a", Some(0)), reason: reason.clone() });
    let end = NodeEnd::Failed { reason };
    assert_eq!(
        test.send(Event::NodeEnded { node: id("a"), end }),
        all([vec![forget("a")], ended(&["a", "b"], &verdict)])
    );
}

#[test]
fn a_spare_that_gives_up_does_not_end_the_job() {
    let mut test = Test::running(fail_job(), terms(1, 1), &["a"]);
    assert_eq!(test.join("b"), []);
    let end = NodeEnd::Failed { reason: REASON.into() };
    assert_eq!(test.send(Event::NodeEnded { node: id("b"), end }), [forget("b")]);
    assert_eq!(test.job.verdict(), None);
}

#[test]
fn with_replacement_a_node_without_restarts_is_a_loss() {
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    assert_eq!(
        test.workers_fail("b", 0, true),
        all([
            vec![forget("b"), gone("b", Some(1), REASON, 1)],
            regrouped(0, &["a"], &node_gone("b", Some(1), REASON))
        ])
    );
    assert_eq!(test.rejoin("a", 0), placed_afresh(1, &["a"]), "its workers may not be gone yet");
}

#[test]
fn with_enough_nodes_left_the_job_shrinks_and_continues() {
    let mut test = Test::running(policy(), terms(2, 3), &["a", "b", "c"]);
    assert_eq!(
        test.lose("b"),
        all([
            vec![hang_up("b"), forget("b"), gone("b", Some(1), BROKE, 1)],
            regrouped(0, &["a", "c"], &node_gone("b", Some(1), BROKE))
        ])
    );
    assert_eq!(test.rejoin("c", 0), []);
    assert_eq!(test.rejoin("a", 0), placed_afresh(1, &["a", "c"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "c"]));
    // The port is fresh once.
    assert_eq!(test.workers_fail("a", 1, false), regrouped(1, &["c"], &workers_failed("a", 0)));
    assert_eq!(test.rejoin("a", 1), []);
    assert_eq!(test.rejoin("c", 1), placed(2, &["a", "c"]));
}

#[test]
fn a_shrunken_world_is_floored_to_the_unit_and_the_odd_node_waits() {
    let mut test = Test::running(policy(), Terms { node_unit: 2, ..terms(2, 4) }, &["a", "b", "c", "d"]);
    let _regroup = test.lose("a");
    assert_eq!(test.rejoin("d", 0), []);
    assert_eq!(test.rejoin("c", 0), []);
    assert_eq!(
        test.rejoin("b", 0),
        placed_afresh(1, &["b", "c"]),
        "nodes without a requested rank stay in order"
    );
}

#[test]
fn with_too_few_left_they_stop_and_wait_for_a_replacement() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(
        test.at(100).lose("b"),
        all([
            vec![hang_up("b"), forget("b"), gone("b", Some(1), BROKE, 1)],
            regrouped(0, &["a"], &node_gone("b", Some(1), BROKE))
        ])
    );
    assert_eq!(test.at(101).rejoin("a", 0), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(700)));
    assert_eq!(test.at(650).join("c"), placed_afresh(1, &["a", "c"]), "no last call");
}

#[test]
fn a_replacement_that_does_not_come_fails_the_job_with_why_it_was_needed() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _regroup = test.lose("b");
    assert_eq!(test.rejoin("a", 0), []);
    let losses = vec![format!("node rank 1 (host-b, 10.0.0.2) was lost: {BROKE}")];
    let failure =
        JobFailure::TimedOut { joined: 1, needed: 2, waited: JOIN, missing: None, losses, refused: None };
    assert_eq!(
        failure.to_string(),
        format!("1 of 2 nodes joined within 600 s; node rank 1 (host-b, 10.0.0.2) was lost: {BROKE}")
    );
    assert_eq!(test.due(), ended(&["a"], &JobVerdict::Failed(failure)));
}

#[test]
fn a_rank_that_is_lost_once_too_often_fails_the_job_and_is_named() {
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    let _regroup = test.lose("b");
    assert_eq!(test.rejoin("a", 0), placed_afresh(1, &["a"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a"]));
    assert_eq!(test.join("c"), regrouped(1, &["a"], &Regroup::Growth { nodes: 1 }));
    assert_eq!(test.rejoin("a", 1), placed(2, &["a", "c"]));
    assert_eq!(test.hosted("a", 2), assignments(2, &["a", "c"]));
    let failure = JobFailure::Exhausted {
        rank: NodeRank(1),
        node: named("c", Some(1)),
        limit: 1,
        reason: format!("was lost: {BROKE}"),
    };
    let verdict = JobVerdict::Failed(failure);
    assert_eq!(
        test.lose("c"),
        all([vec![hang_up("c"), forget("c"), gone("c", Some(1), BROKE, 2)], ended(&["a"], &verdict)])
    );
    let JobVerdict::Failed(failure) = verdict else { unreachable!() };
    assert_eq!(
        failure.to_string(),
        format!("node rank 1 (host-c, 10.0.0.3) was lost: {BROKE}; not replaced (1 of 1 replacement used)")
    );
    let Effect::Log(last) = gone("c", Some(1), BROKE, 2) else { unreachable!() };
    assert!(last.to_string().ends_with("(1 of 1 replacement used for this node rank)"), "{last}");
}

#[test]
fn ranks_are_charged_apart() {
    let mut test = Test::running(policy(), terms(1, 3), &["a", "b", "c"]);
    let _regroup = test.lose("b");
    assert_eq!(
        test.lose("c"),
        [hang_up("c"), forget("c"), gone("c", Some(2), BROKE, 1)],
        "while it was stopping its workers"
    );
    assert_eq!(test.rejoin("a", 0), placed_afresh(1, &["a"]));
}

#[test]
fn a_member_lost_while_the_round_is_made_ready_is_not_in_it() {
    let mut test = Test::new(policy(), terms(1, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    assert_eq!(
        test.lose("b"),
        [hang_up("b"), forget("b"), gone("b", Some(1), BROKE, 0)],
        "a first round has a last call, and no node was assigned"
    );
    assert_eq!(test.hosted("a", 0), [], "no node waits for that round any more");
    assert_eq!(test.due(), placed_afresh(1, &["a"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a"]));
}

#[test]
fn a_lost_spare_is_charged_to_no_rank() {
    let mut test = Test::running(Policy { restart_count: 0, ..policy() }, terms(1, 1), &["a"]);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.lose("b"), [hang_up("b"), forget("b")]);
    assert_eq!(test.lose("z"), [hang_up("z")], "a node that never joined");
}

#[test]
fn an_announced_leave_charges_nothing() {
    let mut test = Test::running(Policy { restart_count: 0, ..policy() }, terms(1, 2), &["a", "b"]);
    let gone = Log::Gone { node: named("b", Some(1)), gone: gone_for(STOPPED), losses: Some(0), limit: 0 };
    assert_eq!(
        test.leave("b"),
        all([vec![forget("b"), Effect::Log(gone)], regrouped(0, &["a"], &node_gone("b", Some(1), STOPPED))])
    );
    assert_eq!(test.leave("b"), [], "said again");
    assert_eq!(test.lose("b"), [hang_up("b")], "its stream ends later");
    assert_eq!(test.rejoin("a", 0), placed_afresh(1, &["a"]), "its workers may not be gone yet");
}

#[test]
fn an_announced_leave_with_too_few_left_waits_for_a_replacement() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(
        test.leave("a"),
        all([
            vec![forget("a"), gone("a", Some(0), STOPPED, 0)],
            regrouped(0, &["b"], &node_gone("a", Some(0), STOPPED))
        ])
    );
    assert_eq!(test.rejoin("b", 0), []);
    assert_eq!(test.job.deadline(), Some(Moment::START + JOIN));
    assert_eq!(test.join("a"), placed_afresh(1, &["b", "a"]), "it comes after the one that stayed");
}
