//! The master is restarted, with and without its state; streams break.

use super::*;

const ABC: &[&str] = &["a", "b", "c"];

fn restoring(round: u32, nodes: u32) -> Effect {
    Effect::Log(Log::Restoring { round: Round(round), nodes })
}

fn restored(round: u32, nodes: u32) -> Effect {
    Effect::Log(Log::Restored { round: Round(round), nodes })
}

fn late(name: &str, round: u32) -> Effect {
    Effect::Push { node: id(name), push: Push::regroup(Round(round), &Regroup::Late) }
}

fn new(min: u32, max: u32) -> Test {
    Test::new(policy(), terms(min, max))
}

#[test]
fn of_two_claims_of_one_rank_the_second_node_stops_and_joins_again() {
    let mut test = new(2, 4);
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.resume("d", 7, &["a", "d", "c"], WorkersState::Running), [late("d", 7)]);
    assert_eq!(test.resume("c", 7, ABC, WorkersState::Running), []);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restored(7, 3)]);
}

#[test]
fn when_all_come_back_to_a_master_without_state_no_message_is_sent() {
    let mut test = new(2, 4);
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.job.deadline(), Some(Moment::START + RETURN));
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), [], "said again");
    assert_eq!(test.resume("c", 7, ABC, WorkersState::Running), []);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restored(7, 3)]);
    assert_eq!(test.job.world(), Some(&world(7, ABC)));
    assert_eq!(test.job.deadline(), None);
    // It continues from there.
    let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason: REASON.into() };
    assert_eq!(test.workers_fail("b", 7, false), regrouped(7, &["a", "c"], &why));
    assert_eq!(test.rejoin("a", 7), []);
    assert_eq!(test.rejoin("b", 7), []);
    assert_eq!(test.rejoin("c", 7), placed(8, ABC));
}

#[test]
fn when_one_is_missing_the_others_start_a_new_round_on_another_port() {
    let mut test = new(2, 4);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.resume("c", 7, ABC, WorkersState::Running), []);
    let why = Regroup::NotAllCameBack { back: 2, nodes: 3 };
    assert_eq!(why.to_string(), "2 of 3 nodes reconnected to the restarted job master");
    assert_eq!(test.due(), regrouped(7, &["a", "c"], &why));
    assert_eq!(test.rejoin("c", 7), []);
    assert_eq!(test.rejoin("a", 7), placed_afresh(8, &["a", "c"]));
    assert_eq!(test.hosted("a", 8), assignments(8, &["a", "c"]));
    // The last one comes back after all.
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), [late("b", 7)]);
    assert_eq!(test.rejoin("b", 7), []);
    assert_eq!(test.due(), regrouped(8, &["a", "c"], &Regroup::Growth { nodes: 1 }));
}

#[test]
fn a_node_that_comes_back_while_the_others_stop_takes_part_in_the_next_round() {
    let mut test = new(2, 4);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    let _regroup = test.due();
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), [late("b", 7)]);
    assert_eq!(test.rejoin("a", 7), []);
    assert_eq!(test.job.deadline(), Some(Moment::START + RETURN + JOIN));
    assert_eq!(test.rejoin("b", 7), placed_afresh(8, &["a", "b"]));
}

#[test]
fn a_state_older_than_the_job_is_reported_to_every_node_and_in_the_log() {
    let mut test = new(2, 4);
    assert_eq!(test.join("a"), []);
    let _placed = test.join("b");
    let _waited = test.due();
    let _assignments = test.hosted("a", 0);
    assert!(test.job.world().is_some_and(|world| world.round == Round(0)), "{:?}", test.job);
    // An old copy of the directory was put back: the nodes are in round 3 by now.
    let why = Regroup::UnknownRound { next: Round(1) };
    let told = |name: &str| Effect::Push { node: id(name), push: Push::regroup(Round(3), &why) };
    let log = Log::OldState { node: named("a", Some(0)), round: Round(3), next: Round(1) };
    assert_eq!(
        test.resume("a", 3, &["a", "b"], WorkersState::Running),
        [Effect::Log(log.clone()), told("a")]
    );
    assert_eq!(test.resume("b", 3, &["a", "b"], WorkersState::Running), [told("b")]);
    let message = why.to_string();
    assert!(message.contains("out of date") && message.contains("round 1"), "{message}");
    let message = log.to_string();
    assert!(message.contains("is in round 3") && message.contains("state directory"), "{message}");
    // Not so one that was merely late.
    let _regrouped = test.rejoin("a", 3);
    assert_eq!(test.resume("c", 0, &["a", "c"], WorkersState::Running), [late("c", 0)]);
}

#[test]
fn members_that_came_back_keep_their_ranks_before_a_spare() {
    let mut test = new(1, 2);
    assert_eq!(test.join("a"), []);
    assert_eq!(test.resume("b", 7, &["b", "c", "d"], WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.resume("c", 7, &["b", "c", "d"], WorkersState::Running), []);
    let _regroup = test.due();
    assert_eq!(test.rejoin("b", 7), []);
    assert_eq!(test.rejoin("c", 7), placed_afresh(8, &["b", "c"]));
}

#[test]
fn a_node_without_workers_waits_while_a_round_is_restored() {
    let mut test = new(1, 4);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.join("d"), []);
    assert_eq!(test.job.pending(test.now), None);
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), []);
    assert_eq!(
        test.resume("c", 7, ABC, WorkersState::Running),
        all([vec![restored(7, 3)], regrouped(7, ABC, &Regroup::Growth { nodes: 1 })]),
        "it fills the job"
    );
}

#[test]
fn an_end_that_was_missed_is_made_up_for() {
    let mut test = new(1, 3);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Succeeded), [restoring(7, 3)]);
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), []);
    assert_eq!(test.succeed("b", 7), []);
    assert_eq!(
        test.resume("c", 7, ABC, WorkersState::Succeeded),
        all([vec![restored(7, 3)], ended(ABC, &JobVerdict::Succeeded)])
    );
}

#[test]
fn a_failure_ends_the_round_that_is_being_restored() {
    let mut test = new(2, 3);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), []);
    let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason: REASON.into() };
    assert_eq!(test.workers_fail("b", 7, false), regrouped(7, &["a"], &why));
    assert_eq!(test.rejoin("b", 7), []);
    assert_eq!(test.rejoin("a", 7), placed_afresh(8, &["a", "b"]), "the third has not come back");
}

#[test]
fn a_member_that_is_stopping_or_has_left_ends_the_round() {
    let mut test = new(2, 3);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    let why = Regroup::Rejoined { node: named("b", Some(1)) };
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Stopping), regrouped(7, &["a"], &why));
    assert_eq!(test.rejoin("b", 7), []);
    assert_eq!(test.rejoin("a", 7), placed_afresh(8, &["a", "b"]));

    let mut test = new(2, 3);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    let why = Regroup::Rejoined { node: named("b", None) };
    assert_eq!(test.rejoin("b", 7), regrouped(7, &["a"], &why));
    assert_eq!(test.rejoin("a", 7), placed_afresh(8, &["a", "b"]));
}

#[test]
fn a_claimant_that_is_lost_is_missing() {
    let mut test = new(1, 3);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), []);
    assert_eq!(test.lose("b"), [hang_up("b"), forget("b"), gone("b", Some(1), BROKE, 0)]);
    assert_eq!(test.resume("c", 7, ABC, WorkersState::Running), []);
    assert_eq!(test.due(), regrouped(7, &["a", "c"], &Regroup::NotAllCameBack { back: 2, nodes: 3 }));
}

#[test]
fn a_claimant_of_another_job_is_refused() {
    let mut test = new(1, 3);
    assert_eq!(test.resume("a", 7, ABC, WorkersState::Running), [restoring(7, 3)]);
    test.terms = terms(1, 4);
    let point = "the job has nnodes=1:3, the joining node has nnodes=1:4".into();
    let refused =
        Effect::Refuse { node: id("b"), name: named("b", None), reason: Refusal::Differs { point } };
    assert_eq!(test.resume("b", 7, ABC, WorkersState::Running), [refused]);
}

#[test]
fn rounds_grow_for_a_node_unknown_to_a_master_without_state() {
    let mut test = new(1, 1);
    assert_eq!(test.rejoin("a", 7), placed_afresh(8, &["a"]), "others of that round may be about");
}

#[test]
fn a_broken_stream_that_comes_back_changes_nothing() {
    let mut test = Test::running(policy(), terms(3, 3), ABC);
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), []);
    assert_eq!(test.send(Event::Subscribed { node: id("b") }), []);
    assert_eq!(test.resume("b", 0, ABC, WorkersState::Running), []);
    assert_eq!(test.job.world(), Some(&world(0, ABC)));
}

#[test]
fn missed_messages_arrive_when_the_stream_is_back() {
    let mut test = Test::running(policy(), terms(3, 3), ABC);
    assert_eq!(test.succeed("a", 0), []);
    assert_eq!(test.resume("b", 0, ABC, WorkersState::Succeeded), []);
    assert_eq!(test.resume("c", 0, ABC, WorkersState::Succeeded), ended(ABC, &JobVerdict::Succeeded));

    let mut test = Test::running(policy(), terms(3, 3), ABC);
    let why = Regroup::Rejoined { node: named("b", Some(1)) };
    assert_eq!(test.resume("b", 0, ABC, WorkersState::Stopping), regrouped(0, &["a", "c"], &why));
    assert_eq!(test.resume("b", 0, ABC, WorkersState::Stopping), [late("b", 0)], "it is stopping already");
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("c", 0), []);
    assert_eq!(test.rejoin("b", 0), placed(1, ABC));
}

#[test]
fn a_node_that_missed_the_end_of_its_round_is_notified() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Running), [late("b", 0)]);
    assert_eq!(test.rejoin("b", 0), placed(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b"]));
    // An assignment that was never received.
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Running), [late("b", 0)]);
    assert_eq!(test.rejoin("b", 0), assignments(1, &["a", "b"])[1..]);
}

#[test]
fn a_lost_node_that_lives_after_all_is_a_newcomer() {
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    let _regroup = test.lose("b");
    assert_eq!(test.rejoin("a", 0), placed_afresh(1, &["a"]));
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Running), [late("b", 0)]);
    assert_eq!(test.hosted("a", 1), assignments(1, &["a"]));
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Running), [late("b", 0)]);
    assert_eq!(test.rejoin("b", 0), regrouped(1, &["a"], &Regroup::Growth { nodes: 1 }));
}

#[test]
fn a_master_that_remembers_expects_all_to_come_back_and_asks_again() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.send(Event::Restarted), []);
    assert_eq!(test.job.world(), Some(&world(0, &["a", "b"])));
    assert_eq!(test.resume("a", 0, &["a", "b"], WorkersState::Running), []);
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Running), []);

    let mut test = new(2, 2);
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    assert_eq!(test.at(50).send(Event::Restarted), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(50) + HOST));
    let ask = Effect::Push { node: id("a"), push: Push::Host { round: Round(0), fresh_port: false } };
    assert_eq!(test.join("a"), [ask], "a waiting node repeats its join");

    let mut test = Test::new(Policy { has_topology: true, ..policy() }, terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), [Effect::ReadTopology]);
    assert_eq!(test.at(50).send(Event::Restarted), [Effect::ReadTopology]);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(50) + TOPOLOGY_TIMEOUT));
}

#[test]
fn a_rank_may_be_replaced_before_its_holder_is_back_at_the_restarted_master() {
    let mut test = Test::new(policy(), terms(1, 1));
    assert_eq!(test.join_as("a", 0), placed(0, &["a"]));
    assert_eq!(test.send(Event::Restarted), []);
    let reason = LossCause::Replaced.to_string();
    assert_eq!(
        test.join_as("b", 0),
        [hang_up("a"), forget("a"), gone("a", Some(0), &reason, 0)]
            .into_iter()
            .chain(placed_afresh(1, &["b"]))
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_master_restarted_after_the_end_notifies_all_nodes_that_come() {
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    let verdict = JobVerdict::Succeeded;
    assert_eq!(test.succeed("a", 0), ended(&["a"], &verdict));
    assert_eq!(test.at(5).send(Event::Restarted), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(5) + FAREWELL));
    assert_eq!(test.resume("a", 0, &["a"], WorkersState::Succeeded), ended(&["a"], &verdict));
    assert_eq!(test.send(Event::EndAcknowledged { node: id("a") }), [finish(&verdict)]);
    // Once more, and no node comes: it ends by itself, as it may have died before it could.
    assert_eq!(test.at(100).send(Event::Restarted), []);
    assert_eq!(test.due(), [finish(&verdict)]);
    assert_eq!(test.now, Moment::at_secs(110));
}
