//! Two launchers want one rank.

use super::*;

/// `a` and `b` hold the ranks 0 and 1 of round 0.
fn running() -> Test {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join_as("a", 0), []);
    assert_eq!(test.join_as("b", 1), placed(0, &["a", "b"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));
    test
}

fn rejoin_as(test: &mut Test, name: &str, rank: u32, after: u32) -> Vec<Effect> {
    let (wish, after) = (Some(NodeRank(rank)), Some(Round(after)));
    let request = JoinRequest { wish, after, ..request(name, &test.terms) };
    test.send(Event::Joined(request))
}

#[test]
fn a_newcomer_to_a_rank_whose_holder_lives_is_refused_with_both_named() {
    let mut test = running();
    let (holder, newcomer) = (named("b", Some(1)), named("c", Some(1)));
    let reason = Refusal::Held { rank: NodeRank(1), holder, newcomer };
    assert_eq!(
        reason.to_string(),
        "node rank 1 is held by node rank 1 (host-b, 10.0.0.2), which is connected, so node rank 1 (host-c, \
         10.0.0.3) cannot take it; give each node a node rank of its own, or stop the other \
         launcher first"
    );
    assert_eq!(test.join_as("c", 1), [Effect::Refuse { node: id("c"), name: named("c", Some(1)), reason }]);
    assert!(!test.job.knows(&id("c")));
    assert!(test.job.knows(&id("b")));
}

#[test]
fn the_same_holds_before_the_first_round() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join_as("a", 0), []);
    let (holder, newcomer) = (named("a", Some(0)), named("c", Some(0)));
    let reason = Refusal::Held { rank: NodeRank(0), holder, newcomer };
    assert_eq!(test.join_as("c", 0), [Effect::Refuse { node: id("c"), name: named("c", Some(0)), reason }]);
}

#[test]
fn a_holder_with_a_broken_stream_is_replaced_at_once() {
    let replaced = "its connection to the job master was broken when a replacement joined";
    let mut test = running();
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), []);
    assert_eq!(
        test.join_as("c", 1),
        all([
            vec![hang_up("b"), forget("b"), gone("b", Some(1), replaced, 1)],
            regrouped(0, &["a"], &node_gone("b", Some(1), replaced))
        ])
    );
    assert_eq!(rejoin_as(&mut test, "a", 0, 0), placed_afresh(1, &["a", "c"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "c"]));
    // Late messages of the old one change nothing.
    assert_eq!(test.workers_fail("b", 0, false), []);
    assert_eq!(test.succeed("b", 0), []);
    assert_eq!(test.leave("b"), []);
    assert_eq!(test.hosted("b", 0), []);
    assert_eq!(test.lose("b"), [hang_up("b")]);
    // Should it live after all, it is the newcomer now.
    let (holder, newcomer) = (named("c", Some(1)), named("b", Some(1)));
    let reason = Refusal::Held { rank: NodeRank(1), holder, newcomer };
    assert_eq!(
        rejoin_as(&mut test, "b", 1, 0),
        [Effect::Refuse { node: id("b"), name: named("b", Some(1)), reason }]
    );
}

#[test]
fn a_holder_whose_stream_is_open_again_keeps_its_rank() {
    let mut test = running();
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), []);
    assert_eq!(test.send(Event::Subscribed { node: id("b") }), []);
    let (holder, newcomer) = (named("b", Some(1)), named("c", Some(1)));
    let reason = Refusal::Held { rank: NodeRank(1), holder, newcomer };
    assert_eq!(test.join_as("c", 1), [Effect::Refuse { node: id("c"), name: named("c", Some(1)), reason }]);
}

#[test]
fn a_replacement_takes_the_rank_of_a_node_that_was_lost_or_left() {
    for leaves in [false, true] {
        let mut test = running();
        let _regroup = if leaves { test.leave("a") } else { test.lose("a") };
        assert_eq!(rejoin_as(&mut test, "b", 1, 0), []);
        assert_eq!(test.join_as("c", 0), placed_afresh(1, &["c", "b"]));
        assert_eq!(test.hosted("c", 1), assignments(1, &["c", "b"]));
    }
}

#[test]
fn the_newcomer_is_notified_of_the_end_when_it_replaces_once_too_often() {
    let mut test = Test::new(Policy { restart_count: 0, ..policy() }, terms(1, 1));
    assert_eq!(test.join_as("a", 0), placed(0, &["a"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a"]));
    assert_eq!(test.send(Event::LinkBroken { node: id("a") }), []);
    let reason = LossCause::Replaced.to_string();
    let (rank, node) = (NodeRank(0), named("a", Some(0)));
    let gone = Gone::Lost { reason };
    let reason = gone.to_string();
    let log = Log::Gone { node: node.clone(), gone, losses: Some(1), limit: 0 };
    let verdict = JobVerdict::Failed(JobFailure::Exhausted { rank, node, limit: 0, reason });
    assert_eq!(
        test.join_as("b", 0),
        all([vec![hang_up("a"), forget("a"), Effect::Log(log)], ended(&["b"], &verdict)])
    );
    assert_eq!(test.send(Event::EndAcknowledged { node: id("b") }), [finish(&verdict)]);
}

#[test]
fn a_node_that_asks_for_another_rank_lets_go_of_the_first() {
    let mut test = Test::new(policy(), terms(3, 3));
    assert_eq!(test.join_as("a", 0), []);
    assert_eq!(test.join_as("a", 1), []);
    assert_eq!(test.join_as("b", 0), []);
    assert_eq!(test.leave("a"), [forget("a")]);
    assert_eq!(test.join_as("c", 1), []);
}
