//! Nodes that are given up may have workers yet, and so no round begins.

use std::collections::BTreeSet;

use super::*;
use crate::fence::{FenceTerms, Juror};

const LEASE: Duration = Duration::from_secs(15);

fn fenced() -> Policy {
    Policy { lease: Some(LEASE), ..policy() }
}

/// Three nodes of which two are enough; they run round 0.
fn running_fenced() -> Test {
    let mut test = Test::new(fenced(), terms(2, 3));
    for name in ["a", "b", "c"] {
        let _ = test.join(name);
    }
    let assigned = test.hosted("a", 0);
    assert!(
        matches!(&assigned[0], Effect::Push { push: Push::Assigned(assignment), .. } if assignment.fence.is_some()),
        "{assigned:?}"
    );
    test
}

fn workers_gone(names: &[&str]) -> Event {
    Event::WorkersGone { nodes: names.iter().map(|name| id(name)).collect() }
}

fn absent(test: &Test) -> Vec<NodeId> {
    test.job.absent().map(|(node, ..)| node.clone()).collect()
}

#[test]
fn no_round_begins_before_the_workers_of_a_lost_node_have_ended() {
    let mut test = running_fenced();
    let _ = test.lose("c");
    assert_eq!(absent(&test), [id("c")]);
    assert_eq!((test.rejoin("a", 0), test.rejoin("b", 0)), (vec![], vec![]));
    let pending = test.job.pending(test.now).expect("they wait");
    assert_eq!(
        pending.0.to_string(),
        "waited 0 s of 600 s for node rank 2 (host-c, 10.0.0.3), which may still run workers. The job continues without it 15 \
         s after its last message if at least half of the round's nodes are connected. Where its host can reach the job \
         master, stopping its launcher ends the wait when the job master sees the connection close"
    );
    assert_eq!(test.send(workers_gone(&["c"])), placed_afresh(1, &["a", "b"]));
    assert_eq!(absent(&test), []);
}

#[test]
fn a_node_that_joins_again_has_no_workers() {
    let mut test = running_fenced();
    let _ = test.lose("c");
    let _ = (test.rejoin("a", 0), test.rejoin("b", 0));
    assert_eq!(test.rejoin("c", 0), placed_afresh(1, &["a", "b", "c"]));
}

/// Only while the stream of the old node is broken is its rank taken. Later its workers may run beside those of a new
/// round: that another node has its rank says nothing of them.
#[test]
fn a_newcomer_with_the_rank_of_a_lost_node_does_not_end_the_wait() {
    let mut test = running_fenced();
    let _ = test.lose("c");
    let _ = (test.rejoin("a", 0), test.rejoin("b", 0));
    assert_eq!(test.join_as("d", 2), []);
    assert_eq!(absent(&test), [id("c")]);
}

#[test]
fn a_node_that_never_received_its_assignment_has_no_workers() {
    let mut test = running_fenced();
    let _ = test.lose("c");
    let _ = (test.rejoin("a", 0), test.rejoin("b", 0));
    assert_eq!(test.join("c"), placed_afresh(1, &["a", "b", "c"]));
}

#[test]
fn a_node_that_leaves_is_waited_for_until_its_workers_are_gone() {
    let mut test = running_fenced();
    let _ = test.leave("c");
    assert_eq!((test.rejoin("a", 0), test.rejoin("b", 0)), (vec![], vec![]));
    assert_eq!(test.send(workers_gone(&["c"])), placed_afresh(1, &["a", "b"]));
}

#[test]
fn a_node_that_is_done_or_replaced_has_no_workers() {
    let mut test = running_fenced();
    let _ = test.succeed("c", 0);
    let _ = test.lose("c");
    assert_eq!(absent(&test), []);
    for cause in [LossCause::StartedAgain, LossCause::Replaced] {
        let mut test = running_fenced();
        let _ = test.send(Event::NodeLost { node: id("c"), cause });
        assert_eq!(absent(&test), [], "{cause}");
    }
}

#[test]
fn a_master_that_was_started_again_counts_from_then() {
    let mut test = running_fenced();
    let _ = test.at(5).lose("c");
    let _ = test.at(9).send(Event::Restarted);
    let since: Vec<Moment> = test.job.absent().map(|(_, away, _)| away).collect();
    assert_eq!(since, [Moment::at_secs(9)]);
}

#[test]
fn a_job_that_times_out_names_the_missing_nodes() {
    let mut test = running_fenced();
    let _ = test.lose("c");
    let _ = (test.rejoin("a", 0), test.rejoin("b", 0));
    let ended = test.due();
    let Some(Effect::Push { push: Push::JobEnd(JobVerdict::Failed(failure)), .. }) = ended.first() else {
        panic!("{ended:?}")
    };
    let message = failure.to_string();
    let end = "; no round began, because node rank 2 (host-c, 10.0.0.3) may still run workers; make sure that \
               these workers have ended before the job is started again";
    assert!(message.starts_with("2 of 2 nodes joined within 600 s; ") && message.ends_with(end), "{message}");
    assert!(!message.contains("waiting for") && !message.contains("continues"), "the job is over: {message}");
}

#[test]
fn members_that_do_not_stop_in_time_are_waited_for_once_more() {
    let mut test = running_fenced();
    let _ = test.workers_fail("a", 0, false);
    let _ = (test.rejoin("a", 0), test.rejoin("b", 0));
    let effects = test.due();
    assert!(effects.contains(&hang_up("c")), "{effects:?}");
    assert_eq!(absent(&test), [id("c")]);
    assert_eq!(test.send(workers_gone(&["c"])), placed_afresh(1, &["a", "b"]));
}

#[test]
fn a_master_without_state_takes_the_jury_from_a_member_and_waits_for_the_rest() {
    let mut test = Test::new(fenced(), terms(1, 3));
    let claim = Claim {
        round: Round(7),
        node_rank: NodeRank(0),
        nodes: 3,
        master_addr: address("a"),
        master_port: PORT,
        workers_state: WorkersState::Running,
        fence: Some(FenceTerms { lease: LEASE, jury: Vec::new(), is_master_within: false }),
    };
    let request = request("a", &test.terms);
    let _ = test.send(Event::Resumed { request, claim });
    // The others do not come back in time.
    let _ = test.due();
    assert_eq!(test.rejoin("a", 7), []);
    let nodes: BTreeSet<NodeId> = absent(&test).into_iter().collect();
    assert_eq!(nodes, [NodeId(format!("members of round 7 at {}:{PORT}", address("a")))].into());
    assert_eq!(test.send(Event::WorkersGone { nodes }), placed_afresh(8, &["a"]));
}

#[test]
fn without_a_token_forged_claims_delay_no_node() {
    let mut test = Test::new(Policy { is_open: true, ..fenced() }, terms(1, 3));
    assert_eq!(test.rejoin("a", 7), []);
    assert_eq!(absent(&test), []);
    let mut test = Test::new(fenced(), terms(1, 3));
    let _ = test.rejoin("a", 7);
    assert_eq!(absent(&test), [NodeId("members of round 7 at :0".into())]);
}

#[test]
fn each_that_is_away_is_judged_by_the_jury_of_its_own_round() {
    let mut test = running_fenced();
    // A member of a round of another state joins, whose jury was that node alone, and leaves that round.
    let jury = vec![Juror { node: id("x"), address: address("x"), port: 1 }];
    let claim = Claim {
        round: Round(7),
        node_rank: NodeRank(0),
        nodes: 1,
        master_addr: address("x"),
        master_port: PORT,
        workers_state: WorkersState::Running,
        fence: Some(FenceTerms { lease: LEASE, jury, is_master_within: false }),
    };
    let request = request("x", &test.terms);
    let _ = test.send(Event::Resumed { request, claim });
    let _ = test.rejoin("x", 7);
    let _ = test.lose("c");
    let juries: Vec<(NodeId, Vec<NodeId>)> = test
        .job
        .absent()
        .map(|(node, _, terms)| (node.clone(), terms.jury.iter().map(|juror| juror.node.clone()).collect()))
        .collect();
    let of_another = (NodeId(format!("members of round 7 at {}:{PORT}", address("x"))), vec![id("x")]);
    // No member of these tests answers questions.
    assert_eq!(juries, [(id("c"), vec![]), of_another]);
}

#[test]
fn a_round_of_a_lost_state_is_distinguished_from_one_with_the_same_number() {
    let mut test = Test::new(fenced(), terms(1, 1));
    // Round 0 of this state is about to begin, without a node that was in round 0 of the last one.
    let asked = test.join("a");
    assert!(
        matches!(asked.last(), Some(Effect::Push { push: Push::Host { round: Round(0), .. }, .. })),
        "{asked:?}"
    );
    let claim = Claim {
        round: Round(0),
        node_rank: NodeRank(0),
        nodes: 3,
        master_addr: address("x"),
        master_port: PORT,
        workers_state: WorkersState::Running,
        fence: Some(FenceTerms { lease: LEASE, jury: Vec::new(), is_master_within: false }),
    };
    let request = request("x", &test.terms);
    let _ = test.send(Event::Resumed { request, claim });
    let others = NodeId(format!("members of round 0 at {}:{PORT}", address("x")));
    assert_eq!(absent(&test), [others, id("x")]);
}

#[test]
fn a_refused_node_has_its_workers_until_it_knows() {
    let mut test = Test::new(fenced(), terms(1, 3));
    let _ = test.join("a");
    let claim = Claim {
        round: Round(4),
        node_rank: NodeRank(0),
        nodes: 1,
        master_addr: address("x"),
        master_port: PORT,
        workers_state: WorkersState::Running,
        fence: Some(FenceTerms { lease: LEASE, jury: Vec::new(), is_master_within: false }),
    };
    let mut request = request("x", &test.terms);
    request.terms.max_nodes = 2;
    // The job is settled: what differs is refused.
    let _ = test.due();
    let effects = test.send(Event::Resumed { request, claim });
    assert!(matches!(effects[..], [Effect::Refuse { .. }]), "{effects:?}");
    assert!(absent(&test).contains(&id("x")), "{:?}", absent(&test));
}
