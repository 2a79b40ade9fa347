//! Newcomers to a running job, and hot spares.

use super::*;

fn growth(nodes: u32) -> Regroup {
    Regroup::Growth { nodes }
}

#[test]
fn a_wave_of_newcomers_causes_one_restart() {
    let mut test = Test::running(policy(), terms(1, 5), &["a", "b"]);
    assert_eq!(test.at(100).join("c"), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(130)));
    assert_eq!(test.job.pending(test.now), None, "it is no spare: it takes part soon");
    assert_eq!(test.at(120).join("d"), []);
    assert_eq!(test.due(), regrouped(0, &["a", "b"], &growth(2)));
    assert_eq!(test.now, Moment::at_secs(150));
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.join("e"), [], "in time for the same restart");
    assert_eq!(test.rejoin("b", 0), placed(1, &["a", "b", "c", "d", "e"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b", "c", "d", "e"]));
}

#[test]
fn members_keep_their_order_and_newcomers_come_after_them_also_by_a_lower_address() {
    let mut test = Test::running(policy(), terms(1, 4), &["c", "d"]);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.join("a"), regrouped(0, &["c", "d"], &growth(2)));
    assert_eq!(test.rejoin("c", 0), []);
    assert_eq!(test.rejoin("d", 0), placed(1, &["c", "d", "a", "b"]));
    assert_eq!(test.hosted("c", 1), assignments(1, &["c", "d", "a", "b"]));
}

#[test]
fn newcomers_at_one_address_are_in_order_of_joining() {
    let mut test = Test::running(policy(), terms(1, 3), &["b"]);
    let here = |name: &str, terms: &Terms| {
        Event::Joined(JoinRequest { address: "127.0.0.1".into(), ..request(name, terms) })
    };
    let (z, a) = (here("z", &test.terms), here("a", &test.terms));
    assert_eq!(test.send(z), []);
    assert_eq!(test.send(a), regrouped(0, &["b"], &growth(2)));
    let placed = test.rejoin("b", 0);
    let Some(Effect::Log(Log::Placed { nodes, .. })) = placed.first() else { panic!("{placed:#?}") };
    let hosts: Vec<&str> = nodes.iter().map(|(_, host, _)| &**host).collect();
    assert_eq!(hosts, [host("b"), host("z"), host("a")]);
}

#[test]
fn newcomers_that_fill_the_job_are_admitted_at_once() {
    let mut test = Test::running(policy(), terms(1, 4), &["a", "b"]);
    assert_eq!(test.join("c"), []);
    assert_eq!(test.join("d"), regrouped(0, &["a", "b"], &growth(2)));
}

#[test]
fn without_a_last_call_each_newcomer_is_admitted_at_once() {
    let terms = Terms { last_call: Duration::ZERO, ..terms(1, 4) };
    let mut test = Test::new(policy(), terms);
    assert_eq!(test.join("a"), placed(0, &["a"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a"]));
    assert_eq!(test.join("b"), regrouped(0, &["a"], &growth(1)));
}

#[test]
fn a_node_that_joins_while_the_store_is_opened_is_in_the_next_round() {
    let mut test = Test::new(policy(), Terms { last_call: Duration::ZERO, ..terms(1, 2) });
    assert_eq!(test.join("a"), placed(0, &["a"]));
    assert_eq!(test.join("b"), []);
    assert_eq!(test.hosted("a", 0), all([assignments(0, &["a"]), regrouped(0, &["a"], &growth(1))]));
    assert_eq!(test.rejoin("a", 0), placed(1, &["a", "b"]));
}

#[test]
fn a_newcomer_that_leaves_before_it_is_admitted_stops_no_node() {
    let mut test = Test::running(policy(), terms(1, 3), &["a"]);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.leave("b"), [forget("b")]);
    assert_eq!(test.job.deadline(), None);
}

#[test]
fn a_spare_is_promoted_at_once_when_a_rank_is_free() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.join("c"), []);
    assert_eq!(test.join("d"), []);
    let (pending, to) = test.job.pending(test.now).unwrap();
    assert_eq!((pending, to), (Pending::Spare { nodes: 2, lacking: 0 }, &BTreeSet::from([id("c"), id("d")])));
    let _regroup = test.lose("a");
    assert_eq!(test.rejoin("b", 0), placed_afresh(1, &["b", "c"]), "the first that came");
    assert_eq!(test.hosted("b", 1), assignments(1, &["b", "c"]));
}

#[test]
fn members_of_the_last_round_keep_their_ranks_before_any_spare() {
    let mut test = Test::running(policy(), terms(1, 2), &["b", "c"]);
    assert_eq!(test.join_as("a", 0), [], "a wish does not push a member out");
    let _regroup = test.workers_fail("b", 0, false);
    assert_eq!(test.rejoin("b", 0), []);
    assert_eq!(test.rejoin("c", 0), placed(1, &["b", "c"]));
}

#[test]
fn a_spare_is_notified_of_the_end() {
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.succeed("a", 0), ended(&["a", "b"], &JobVerdict::Succeeded));
}

#[test]
fn a_job_that_is_about_to_end_is_not_stopped_for_newcomers() {
    let mut test = Test::running(policy(), terms(1, 3), &["a", "b"]);
    assert_eq!(test.at(10).succeed("a", 0), []);
    assert_eq!(test.join("c"), []);
    assert_eq!(test.job.deadline(), None);
    // Nor when they came before.
    let mut test = Test::running(policy(), terms(1, 4), &["a", "b"]);
    assert_eq!(test.at(10).join("c"), []);
    assert_eq!(test.at(20).succeed("a", 0), []);
    assert_eq!(test.job.deadline(), None);
}
