//! When a round is complete, its members and their ranks, and which nodes are refused.

use super::*;
use crate::hang::{HangSources, HangTerms, OnHang};

#[test]
fn one_node_hosts_is_assigned_and_is_done() {
    let mut test = Test::new(policy(), terms(1, 1));
    assert_eq!(test.join("a"), placed(0, &["a"]));
    assert_eq!(test.job.deadline(), Some(Moment::START + HOST));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a"]));
    assert_eq!(test.job.deadline(), None);
    let verdict = JobVerdict::Succeeded;
    assert_eq!(test.succeed("a", 0), ended(&["a"], &verdict));
    assert_eq!(test.send(Event::EndAcknowledged { node: id("a") }), [finish(&verdict)]);
    assert_eq!(test.job.deadline(), None);
}

#[test]
fn a_round_is_complete_at_once_with_all_the_nodes_it_may_have() {
    let mut test = Test::new(policy(), terms(2, 3));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.join("c"), placed(0, &["a", "b", "c"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b", "c"]));
}

#[test]
fn enough_nodes_wait_for_the_last_call_since_the_last_join() {
    let mut test = Test::new(policy(), terms(2, 4));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.job.deadline(), Some(Moment::START + JOIN), "one is too few for a last call");
    assert_eq!(test.at(10).join("b"), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(40)));
    assert_eq!(test.at(39).join("c"), []);
    assert_eq!(test.at(45).join("c"), [], "said again, it does not come again");
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(69)));
    assert_eq!(test.at(68).send(Event::Deadline), [], "too early");
    assert_eq!(test.due(), placed(0, &["a", "b", "c"]));
}

#[test]
fn without_a_last_call_the_fewest_nodes_are_complete_at_once() {
    let mut test = Test::new(policy(), Terms { last_call: Duration::ZERO, ..terms(2, 4) });
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
}

#[test]
fn a_last_call_ends_with_the_join_timeout() {
    let mut test = Test::new(policy(), terms(2, 4));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.at(590).join("b"), []);
    assert_eq!(test.due(), placed(0, &["a", "b"]));
    assert_eq!(test.now, Moment::START + JOIN);
}

#[test]
fn a_node_that_leaves_during_the_last_call_is_not_assigned() {
    let mut test = Test::new(policy(), terms(2, 4));
    for name in ["a", "b", "c"] {
        assert_eq!(test.join(name), []);
    }
    assert_eq!(test.leave("a"), [forget("a")]);
    assert_eq!(test.lose("b"), [hang_up("b"), forget("b")]);
    assert_eq!(test.job.deadline(), Some(Moment::START + JOIN));
    assert_eq!(test.at(5).join("d"), []);
    assert_eq!(test.due(), placed(0, &["c", "d"]));
    assert_eq!(test.now, Moment::at_secs(35));
}

#[test]
fn waiting_nodes_are_notified_of_the_timeout() {
    let mut test = Test::new(policy(), terms(4, 4));
    assert_eq!(test.at(1).join_as("a", 0), []);
    assert_eq!(test.at(2).join_as("d", 3), []);
    let failure = JobFailure::TimedOut {
        joined: 2,
        needed: 4,
        waited: JOIN,
        missing: Some([NodeRank(1), NodeRank(2)].into_iter().collect()),
        losses: vec![],
        refused: None,
    };
    assert_eq!(test.due(), ended(&["a", "d"], &JobVerdict::Failed(failure)));
    assert_eq!(test.now, Moment::at_secs(601));
}

#[test]
fn a_timeout_names_no_ranks_when_some_node_has_none() {
    let mut test = Test::new(policy(), terms(4, 4));
    assert_eq!(test.join_as("a", 0), []);
    assert_eq!(test.join("d"), []);
    let failure = JobFailure::TimedOut {
        joined: 2,
        needed: 4,
        waited: JOIN,
        missing: None,
        losses: vec![],
        refused: None,
    };
    assert_eq!(test.due(), ended(&["a", "d"], &JobVerdict::Failed(failure)));
}

#[test]
fn a_master_without_nodes_waits_for_ever_and_for_any_job() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.leave("a"), [forget("a")]);
    assert_eq!(test.job.deadline(), None);
    test.terms = terms(1, 1);
    assert_eq!(test.at(5000).join("a"), placed(0, &["a"]));
    // Nor does it matter that the round was complete, as long as no node was assigned to it.
    assert_eq!(test.leave("a"), [forget("a"), gone("a", Some(0), STOPPED, 0)]);
    assert_eq!(test.job.deadline(), None);
    test.terms = terms(2, 2);
    assert_eq!(test.at(9000).join("a"), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(9000) + JOIN));
}

/// min, max, unit, nodes that come, the world after the last call (none: they wait).
#[test]
fn the_unit_floors_the_world_in_every_branch_and_never_to_zero() {
    for (min, max, unit, come, expected) in [
        (1, 3, 1, 2, Some(2)),
        (2, 8, 4, 3, None),
        (2, 8, 4, 4, Some(4)),
        (2, 8, 4, 7, Some(4)),
        (2, 8, 4, 8, Some(8)),
        (5, 7, 4, 7, Some(4)),
        (3, 6, 2, 3, None),
        (3, 6, 2, 5, Some(4)),
        (1, 5, 5, 4, None),
    ] {
        let mut test = Test::new(policy(), Terms { node_unit: unit, ..terms(min, max) });
        let mut effects = Vec::new();
        for name in &["a", "b", "c", "d", "e", "f", "g", "h"][..come] {
            effects.extend(test.join(name));
        }
        if effects.is_empty() && expected.is_some() {
            effects = test.due();
        }
        let names: Vec<&str> = ["a", "b", "c", "d", "e", "f", "g", "h"][..expected.unwrap_or(0)].to_vec();
        let expected = if names.is_empty() { vec![] } else { placed(0, &names) };
        assert_eq!(effects, expected, "--nnodes={min}:{max} --node-unit={unit}, {come} come");
    }
}

#[test]
fn joiners_beyond_the_unit_wait_as_spares() {
    let mut test = Test::new(policy(), Terms { node_unit: 2, last_call: Duration::ZERO, ..terms(2, 4) });
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    assert_eq!(test.join("c"), []);
    assert_eq!(test.job.pending(test.now), None, "the round is not on yet");
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));
    let (pending, to) = test.job.pending(test.now).unwrap();
    assert_eq!((pending, to), (Pending::Spare { nodes: 2, lacking: 1 }, &BTreeSet::from([id("c")])));
    assert_eq!(test.join("d"), regrouped(0, &["a", "b"], &Regroup::Growth { nodes: 2 }), "two make a unit");
}

#[test]
fn a_job_that_is_about_to_end_asks_for_no_further_nodes() {
    let mut test = Test::new(policy(), Terms { node_unit: 2, last_call: Duration::ZERO, ..terms(2, 4) });
    let _ = (test.join("a"), test.join("b"), test.hosted("a", 0));
    let _ = test.succeed("a", 0);
    let _ = test.join("c");
    let (pending, _) = test.job.pending(test.now).unwrap();
    assert_eq!(pending, Pending::Spare { nodes: 2, lacking: 0 });
}

#[test]
fn wishes_order_the_nodes_and_the_rest_follow_by_address_with_dense_ranks() {
    let mut test = Test::new(policy(), terms(4, 4));
    assert_eq!(test.join("d"), []);
    assert_eq!(test.join("b"), []);
    assert_eq!(test.join_as("c", 7), []);
    assert_eq!(test.join_as("a", 3), placed(0, &["a", "c", "b", "d"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "c", "b", "d"]));
}

#[test]
fn addresses_are_compared_by_number() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("j"), []);
    assert_eq!(test.join("i"), placed(0, &["i", "j"]), "10.0.0.9 comes before 10.0.0.10");
}

#[test]
fn the_same_members_get_the_same_ranks_in_whatever_order_they_come_back() {
    let mut test = Test::running(policy(), terms(3, 3), &["a", "b", "c"]);
    let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason: REASON.into() };
    assert_eq!(test.workers_fail("b", 0, false), regrouped(0, &["a", "c"], &why));
    assert_eq!(test.rejoin("c", 0), []);
    assert_eq!(test.rejoin("b", 0), []);
    assert_eq!(test.rejoin("a", 0), placed(1, &["a", "b", "c"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b", "c"]));
}

#[test]
fn a_later_round_is_complete_as_soon_as_all_that_are_left_are_back() {
    let mut test = Test::running(policy(), terms(2, 4), &["a", "b", "c"]);
    let why = Regroup::WorkersFailed { node: named("a", Some(0)), reason: REASON.into() };
    assert_eq!(test.at(60).workers_fail("a", 0, false), regrouped(0, &["b", "c"], &why));
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("b", 0), [], "two would do, but the third is still stopping");
    let (pending, _) = test.job.pending(Moment::at_secs(61)).unwrap();
    let waited = Duration::from_secs(1);
    assert_eq!(
        pending,
        Pending::Gathering {
            joined: 2,
            needed: 2,
            most: 4,
            missing: None,
            stopping: 1,
            starts_in: None,
            waited,
            limit: JOIN
        }
    );
    assert_eq!(test.rejoin("c", 0), placed(1, &["a", "b", "c"]), "no last call");
}

#[test]
fn a_member_that_cannot_stop_its_workers_delays_the_others_by_the_join_timeout() {
    let mut test = Test::running(policy(), terms(1, 2), &["a", "b"]);
    let why = Regroup::WorkersFailed { node: named("a", Some(0)), reason: REASON.into() };
    assert_eq!(test.at(60).workers_fail("a", 0, false), regrouped(0, &["b"], &why));
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.due(), placed_afresh(1, &["a"]), "its workers may still speak to the old store");
    assert_eq!(test.now, Moment::at_secs(660));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a"]));
    assert_eq!(test.rejoin("b", 0), regrouped(1, &["a"], &Regroup::Growth { nodes: 1 }));
}

#[test]
fn each_point_that_differs_is_refused_by_name() {
    let job = || terms(2, 4);
    let (timeout, grace) = (Duration::from_secs(300), Duration::from_secs(1800));
    let hang = HangTerms { timeout, grace, sources: HangSources::default(), on_hang: OnHang::Dump };
    for (theirs, point) in [
        (
            Terms { run_id: RunId("other".into()), ..job() },
            "the job has rdzv-id=job, the joining node has rdzv-id=other",
        ),
        (terms(2, 3), "the job has nnodes=2:4, the joining node has nnodes=2:3"),
        (Terms { node_unit: 2, ..job() }, "the job has node-unit=1, the joining node has node-unit=2"),
        (
            Terms { last_call: Duration::from_millis(500), ..job() },
            "the job has lastcall_timeout=30, the joining node has lastcall_timeout=0.5",
        ),
        (
            Terms { join_timeout: GRACE, ..job() },
            "the job has join_timeout=600, the joining node has join_timeout=2",
        ),
        (
            Terms { require_uniform: true, ..job() },
            "the job has require-uniform=false, the joining node has require-uniform=true",
        ),
        (
            Terms { hang: Some(hang), ..job() },
            "the job has hang-timeout=0, the joining node has hang-timeout=300",
        ),
    ] {
        let mut test = Test::new(policy(), job());
        assert_eq!(test.join("a"), []);
        let reason = Refusal::Differs { point: point.into() };
        let refused = Effect::Refuse { node: id("b"), name: named("b", None), reason: reason.clone() };
        assert_eq!(test.send(Event::Joined(request("b", &theirs))), [refused]);
        assert_eq!(
            reason.to_string(),
            format!("{point}; give every node the same command line and environment")
        );
        assert!(!test.job.knows(&id("b")));
    }
}

#[test]
fn a_timeout_names_the_last_node_that_was_refused() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    // The last one repeats itself: it has received no answer.
    for name in ["b", "c", "c"] {
        let refused = test.send(Event::Joined(request(name, &terms(2, 3))));
        assert!(matches!(&refused[..], [Effect::Refuse { .. }]), "{refused:?}");
    }
    let effects = test.due();
    assert_eq!(
        timed_out(&effects),
        "1 of 2 nodes joined within 600 s; rejected 2 nodes, the last of them a node (host-c, 10.0.0.3): the job has \
         nnodes=2:2, the joining node has nnodes=2:3; give every node the same command line and environment"
    );
}

#[test]
fn nodes_that_were_refused_before_the_last_round_are_not_named() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.send(Event::Joined(request("c", &terms(2, 3)))).len(), 1);
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));
    let _regrouped = test.lose("b");
    let _waits = test.rejoin("a", 0);
    let sentence = timed_out(&test.due());
    assert!(sentence.starts_with("1 of 2 nodes joined") && !sentence.contains("refused"), "{sentence}");
}

/// The sentence with which a rendezvous has failed.
fn timed_out(effects: &[Effect]) -> String {
    let failure = effects.iter().find_map(|effect| match effect {
        Effect::Push { push: Push::JobEnd(JobVerdict::Failed(failure)), .. } => Some(failure.to_string()),
        _ => None,
    });
    failure.unwrap_or_else(|| panic!("no failure: {effects:?}"))
}

#[test]
fn unequal_nodes_are_welcome_unless_the_job_wants_them_uniform() {
    let unequal = |terms: &Terms| JoinRequest { local_world_size: 3, ..request("b", terms) };
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    let b = unequal(&test.terms);
    assert_eq!(test.send(Event::Joined(b)), placed(0, &["a", "b"]));

    let mut test = Test::new(policy(), Terms { require_uniform: true, ..terms(2, 2) });
    assert_eq!(test.join("a"), []);
    let b = unequal(&test.terms);
    let reason = Refusal::NotUniform { job: 2, node: 3 };
    assert_eq!(
        test.send(Event::Joined(b)),
        [Effect::Refuse { node: id("b"), name: named("b", None), reason: reason.clone() }]
    );
    assert_eq!(
        reason.to_string(),
        "the job's nodes must have the same number of workers: they have 2, the joining node has 3; give every node \
         the same nproc-per-node, or leave out require-uniform"
    );
}

#[test]
fn a_repeated_message_is_answered_again() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("a"), []);
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    let ask = Effect::Push { node: id("a"), push: Push::Host { round: Round(0), fresh_port: false } };
    assert_eq!(test.join("a"), [ask], "the host did not hear that it is asked");
    assert_eq!(test.join("b"), []);
    let [a, b] = <[Effect; 2]>::try_from(assignments(0, &["a", "b"])).unwrap();
    assert_eq!(test.hosted("a", 0), [a.clone(), b.clone()]);
    assert_eq!(test.hosted("a", 0), [], "the store stands where it stood");
    assert_eq!(test.join("b"), [], "over the same stream its assignment is the answer");
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), []);
    assert_eq!(test.join("b"), [b], "an assignment that was not received");
    assert_eq!(test.send(Event::Subscribed { node: id("a") }), [], "another stream took its place");
    assert_eq!(test.join("a"), [a]);
}

#[test]
fn only_the_host_of_this_round_opens_its_store() {
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    assert_eq!(test.hosted("a", 0), [], "no host was asked");
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    assert_eq!(test.hosted("b", 0), []);
    assert_eq!(test.hosted("a", 7), []);
    let master_addr = Some("a.example".to_owned());
    let hosted = Event::Hosted { node: id("a"), round: Round(0), master_addr, master_port: 5 };
    let world = World { master_addr: "a.example".into(), master_port: 5, ..world(0, &["a", "b"]) };
    let assignments: Vec<Effect> = world
        .assignments()
        .map(|(member, assignment)| Effect::Push {
            node: member.node_id.clone(),
            push: Push::Assigned(assignment),
        })
        .collect();
    assert_eq!(test.send(hosted), assignments);
    assert_eq!(test.job.world(), Some(&world));
}

#[test]
fn a_silent_host_is_lost_and_does_not_delay_the_others() {
    let silent = "it did not open the store of the workers within 60 s";
    let mut test = Test::new(policy(), terms(2, 2));
    assert_eq!(test.join_as("a", 0), []);
    assert_eq!(test.at(590).join_as("b", 1), placed(0, &["a", "b"]));
    assert_eq!(test.due(), [hang_up("a"), forget("a"), gone("a", Some(0), silent, 0)]);
    assert_eq!(test.now, Moment::at_secs(650));
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(1250)), "as after any loss");
    assert_eq!(test.join_as("c", 0), placed_afresh(1, &["c", "b"]));
    assert_eq!(test.hosted("a", 0), [], "late message of the old host");
}
