//! What forged messages can do to a job without a token.

use super::*;
use crate::liveness::return_grace;

fn open() -> Policy {
    Policy { is_open: true, ..policy() }
}

fn named_job(run_id: &str, min_nodes: u32, max_nodes: u32) -> Terms {
    Terms { run_id: RunId(run_id.into()), ..terms(min_nodes, max_nodes) }
}

fn join_for(test: &mut Test, name: &str, terms: &Terms) -> Vec<Effect> {
    test.send(Event::Joined(request(name, terms)))
}

fn point(job: &str, node: &str) -> String {
    format!("the job has rdzv-id={job}, the joining node has rdzv-id={node}")
}

fn waits_for_other_job(name: &str, point: &str) -> Vec<Effect> {
    let (node, point) = (named(name, None), point.to_owned());
    let pending = Pending::OtherJob { point: point.clone() };
    vec![
        Effect::Log(Log::OtherJob { node, point }),
        Effect::Push { node: id(name), push: Push::Pending(pending) },
    ]
}

fn refused(name: &str, point: &str) -> Effect {
    Effect::Refuse {
        node: id(name),
        name: named(name, None),
        reason: Refusal::Differs { point: point.to_owned() },
    }
}

#[test]
fn the_first_job_is_replaced_by_one_that_has_its_nodes() {
    let (theirs, ours) = (named_job("theirs", 2, 2), named_job("ours", 2, 2));
    let mut test = Test::new(open(), ours.clone());
    assert_eq!(join_for(&mut test, "x", &theirs), []);
    assert_eq!(join_for(&mut test, "a", &ours), waits_for_other_job("a", &point("theirs", "ours")));
    assert!(test.job.knows(&id("a")));
    assert_eq!(
        join_for(&mut test, "b", &ours),
        all([vec![refused("x", &point("ours", "theirs"))], placed(0, &["a", "b"])])
    );
    assert_eq!(test.hosted("a", 0), assignments(0, &["a", "b"]));
    assert_eq!(join_for(&mut test, "y", &theirs), [refused("y", &point("ours", "theirs"))], "it is settled");
}

#[test]
fn nodes_of_another_job_are_refused_when_the_job_runs_or_at_their_timeout() {
    let (ours, theirs) = (named_job("ours", 2, 2), named_job("theirs", 3, 3));
    let mut test = Test::new(open(), ours.clone());
    assert_eq!(test.join("a"), []);
    assert_eq!(join_for(&mut test, "x", &theirs), waits_for_other_job("x", &point("ours", "theirs")));
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    let refusal = vec![refused("x", &point("ours", "theirs"))];
    assert_eq!(test.hosted("a", 0), all([refusal, assignments(0, &["a", "b"])]));

    let mut test = Test::new(open(), ours.clone());
    assert_eq!(test.at(5).join("a"), []);
    let hasty = Terms { join_timeout: Duration::from_secs(7), ..theirs.clone() };
    let effects = join_for(&mut test, "x", &hasty);
    assert!(matches!(&effects[1], Effect::Push { push: Push::Pending(_), .. }), "{effects:?}");
    assert!(matches!(&test.due()[..], [Effect::Refuse { node, .. }] if *node == id("x")));
    assert_eq!(test.now, Moment::at_secs(12));
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
}

#[test]
fn a_timeout_names_a_node_of_another_job_that_waits() {
    let (ours, theirs) = (named_job("ours", 2, 2), named_job("theirs", 2, 2));
    let mut test = Test::new(open(), ours.clone());
    assert_eq!(test.join("a"), []);
    assert_eq!(join_for(test.at(5), "x", &theirs).len(), 2);
    let effects = test.due();
    let failure = effects.iter().find_map(|effect| match effect {
        Effect::Push { push: Push::JobEnd(JobVerdict::Failed(failure)), .. } => Some(failure.to_string()),
        _ => None,
    });
    let sentence = failure.unwrap_or_else(|| panic!("no failure: {effects:?}"));
    let refused = format!("rejected {}: {}", named("x", None), point("ours", "theirs"));
    assert!(sentence.contains(&refused), "{sentence}");
}

#[test]
fn when_the_first_are_gone_the_others_are_the_job() {
    let (theirs, ours) = (named_job("theirs", 2, 2), named_job("ours", 2, 2));
    let mut test = Test::new(open(), ours.clone());
    assert_eq!(join_for(&mut test, "x", &theirs), []);
    assert_eq!(join_for(&mut test, "a", &ours).len(), 2);
    assert_eq!(test.lose("x"), [hang_up("x"), forget("x")]);
    assert_eq!(test.job.terms(), Some(&ours));
    assert_eq!(join_for(&mut test, "b", &ours), placed(0, &["a", "b"]));

    let mut test = Test::new(open(), ours.clone());
    assert_eq!(join_for(&mut test, "x", &theirs), []);
    assert_eq!(join_for(&mut test, "a", &ours).len(), 2);
    assert_eq!(test.send(Event::LinkBroken { node: id("a") }), [], "one that went is not counted");
    assert_eq!(join_for(&mut test, "b", &ours).len(), 2);
}

#[test]
fn a_master_with_terms_or_a_token_refuses_other_jobs_at_once() {
    let (theirs, ours) = (named_job("theirs", 1, 2), named_job("ours", 1, 2));
    let policy = Policy { terms: Some(ours.clone()), ..open() };
    let mut test = Test::new(policy, ours.clone());
    assert_eq!(join_for(&mut test, "x", &theirs), [refused("x", &point("ours", "theirs"))]);
    assert_eq!(test.join("a"), []);
    assert_eq!(test.leave("a"), [forget("a")]);
    assert_eq!(join_for(&mut test, "x", &theirs), [refused("x", &point("ours", "theirs"))]);

    let mut test = Test::new(Policy { is_open: false, ..open() }, ours);
    assert_eq!(test.join("a"), []);
    assert_eq!(join_for(&mut test, "x", &theirs), [refused("x", &point("ours", "theirs"))]);
}

#[test]
fn a_node_without_an_acknowledged_assignment_costs_no_replacement() {
    let mut test = Test::running(open(), terms(2, 3), &["a", "b"]);
    for round in 0..4 {
        let _grows = test.join("x");
        assert_eq!(test.rejoin("a", round * 2), []);
        assert_eq!(test.rejoin("b", round * 2).len(), 2);
        let world = [NodeRank(0), NodeRank(1), NodeRank(2)];
        let assigned = test.send(Event::Hosted {
            node: id("a"),
            round: Round(round * 2 + 1),
            master_addr: None,
            master_port: PORT,
        });
        assert_eq!(assigned.len(), world.len());
        let lost = test.lose("x");
        assert!(lost.contains(&gone("x", Some(2), BROKE, 0)), "{lost:?}");
        assert_eq!(test.rejoin("a", round * 2 + 1), []);
        assert_eq!(test.rejoin("b", round * 2 + 1).len(), 2);
        let _assignments = test.hosted("a", round * 2 + 2);
    }
    assert_eq!(test.job.verdict(), None);
    // One that was there is a loss.
    assert!(test.lose("b").contains(&gone("b", Some(1), BROKE, 1)));
}

#[test]
fn a_forged_round_neither_delays_the_next_one_nor_uses_up_the_numbers() {
    let mut test = Test::running(open(), terms(2, 2), &["a", "b"]);
    let _regroup = test.workers_fail("a", 0, false);
    assert_eq!(
        test.resume("x", u32::MAX >> 1, &["x", "y"], WorkersState::Running).len(),
        1,
        "it is told to join"
    );
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("b", 0), placed_afresh(1, &["a", "b"]));

    // Before the first round a master without state has to accept it, but not for long.
    let mut test = Test::new(open(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    let _restoring = test.resume("x", 7, &["x", "y"], WorkersState::Running);
    let _regroup = test.due();
    let grace = return_grace(GRACE, 2);
    assert_eq!(test.now, Moment::START + grace);
    assert_eq!(test.join("b"), [], "it is waited for as if it had workers");
    assert_eq!(test.due(), placed_afresh(8, &["a", "b"]));
    assert!(test.now < Moment::at_secs(60));

    let mut test = Test::new(open(), terms(2, 2));
    assert_eq!(test.join("a"), []);
    let _restoring = test.resume("x", 7, &["x", "y"], WorkersState::Running);
    let _regroup = test.due();
    assert_eq!(test.due(), [], "too few are there, and they may come yet");
    assert_eq!(test.job.deadline(), Some(Moment::START + grace + JOIN));
    assert_eq!(test.join("b"), placed_afresh(8, &["a", "b"]));
}

/// Found by `fuzz/run job`: the round waited for ever for a host that was forgotten, and its deadline stayed in the
/// past, so the master did nothing else.
#[test]
fn a_member_that_joins_again_for_another_job_leaves_the_next_round() {
    let (ours, theirs) = (named_job("ours", 2, 2), named_job("theirs", 3, 3));
    let mut test = Test::new(open(), ours.clone());
    test.join("a");
    assert_eq!(test.join("b"), placed(0, &["a", "b"]));
    let effects = join_for(&mut test, "a", &theirs);
    assert!(effects.ends_with(&waits_for_other_job("a", &point("ours", "theirs"))[1..]), "{effects:?}");
    assert!(!effects.contains(&Effect::Forget { node: id("a") }), "it waits still: {effects:?}");
    assert_eq!(test.hosted("a", 0), [], "it is no host any more");
    assert_eq!(test.join("c"), placed_afresh(1, &["b", "c"]));

    // Alone in a round that has no host yet, it is another job's first node.
    let alone = named_job("alone", 1, 1);
    let mut test = Test::new(open(), alone.clone());
    test.join("a");
    let effects = join_for(&mut test, "a", &theirs);
    assert!(matches!(&effects[..], [Effect::Log(Log::Gone { losses: None | Some(0), .. })]), "{effects:?}");
    assert_eq!(test.job.name(), Some(&theirs.run_id));
    assert_eq!(test.job.deadline(), Some(test.now + theirs.join_timeout));
}
