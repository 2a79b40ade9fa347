//! The job ends.

use super::*;

#[test]
fn success_waits_for_every_member_and_all_acknowledgements() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.succeed("b", 0), []);
    assert_eq!(test.succeed("b", 0), [], "said again");
    assert_eq!(test.succeed("z", 0), []);
    let verdict = JobVerdict::Succeeded;
    assert_eq!(test.at(60).succeed("a", 0), ended(&["a", "b"], &verdict));
    assert_eq!(test.job.verdict(), Some(&verdict));
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(60) + FAREWELL));
    assert_eq!(test.send(Event::EndAcknowledged { node: id("a") }), []);
    assert_eq!(test.send(Event::EndAcknowledged { node: id("a") }), []);
    assert_eq!(test.send(Event::EndAcknowledged { node: id("b") }), [finish(&verdict)]);
    assert_eq!(test.job.deadline(), None);
    assert_eq!(test.send(Event::EndAcknowledged { node: id("b") }), []);
    assert_eq!(test.send(Event::Deadline), []);
}

#[test]
fn a_node_whose_workers_all_succeeded_restarts_with_a_peer() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.succeed("a", 0), []);
    let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason: REASON.into() };
    assert_eq!(test.workers_fail("b", 0, false), regrouped(0, &["a"], &why));
    assert_eq!(test.succeed("a", 0), [], "late");
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("b", 0), placed(1, &["a", "b"]));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b"]));
    assert_eq!(test.succeed("b", 1), []);
    assert_eq!(test.succeed("a", 0), [], "that was another round");
    assert_eq!(test.job.verdict(), None);
    assert_eq!(test.succeed("a", 1), ended(&["a", "b"], &JobVerdict::Succeeded));
}

#[test]
fn a_node_that_leaves_after_its_workers_succeeded_is_not_missed() {
    for is_lost in [false, true] {
        let mut test = Test::running(Policy { restart_count: 0, ..policy() }, terms(2, 2), &["a", "b"]);
        assert_eq!(test.succeed("a", 0), []);
        let effects = if is_lost { test.lose("a") } else { test.leave("a") };
        let hung_up = if is_lost { vec![hang_up("a")] } else { vec![] };
        assert_eq!(effects, all([hung_up, vec![forget("a")]]));
        assert_eq!(test.succeed("b", 0), ended(&["b"], &JobVerdict::Succeeded));
    }
}

#[test]
fn the_last_member_that_succeeds_may_be_the_only_one_left() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    assert_eq!(test.succeed("a", 0), []);
    assert_eq!(test.leave("a"), [forget("a")]);
    let verdict = JobVerdict::Succeeded;
    assert_eq!(test.succeed("b", 0), ended(&["b"], &verdict));
    assert_eq!(test.lose("b"), [hang_up("b"), finish(&verdict)]);
}

#[test]
fn acknowledgements_of_the_end_have_a_timeout() {
    let mut test = Test::running(policy(), terms(1, 1), &["a"]);
    let verdict = JobVerdict::Succeeded;
    assert_eq!(test.succeed("a", 0), ended(&["a"], &verdict));
    assert_eq!(test.due(), [finish(&verdict)]);
    assert_eq!(test.now, Moment::START + FAREWELL);
    assert_eq!(test.job.deadline(), None);
}

#[test]
fn any_message_after_the_end_is_answered_with_it() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _one = test.succeed("a", 0);
    let verdict = JobVerdict::Succeeded;
    assert_eq!(test.succeed("b", 0), ended(&["a", "b"], &verdict));
    assert_eq!(test.join("c"), ended(&["c"], &verdict));
    assert_eq!(test.succeed("a", 0), ended(&["a"], &verdict));
    assert_eq!(test.resume("b", 0, &["a", "b"], WorkersState::Succeeded), ended(&["b"], &verdict));
    test.terms = terms(7, 9);
    assert_eq!(test.join("d"), ended(&["d"], &verdict), "whatever it expected");
    for name in ["a", "b", "c"] {
        assert_eq!(test.send(Event::EndAcknowledged { node: id(name) }), []);
    }
    assert_eq!(test.leave("d"), [finish(&verdict)]);
    assert_eq!(test.join("e"), ended(&["e"], &verdict), "and its acknowledgement is not waited for");
    assert_eq!(test.send(Event::EndAcknowledged { node: id("e") }), []);
}

#[test]
fn other_messages_after_the_end_change_nothing() {
    let mut test = Test::running(fail_job(), terms(2, 2), &["a", "b"]);
    let _ends = test.workers_fail("a", 0, true);
    let verdict = test.job.verdict().cloned();
    assert_eq!(test.workers_fail("b", 0, false), []);
    assert_eq!(test.hosted("b", 1), []);
    assert_eq!(test.send(Event::TopologyRead(Err("late".into()))), []);
    assert_eq!(test.send(Event::Subscribed { node: id("b") }), []);
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), []);
    assert_eq!(test.job.verdict().cloned(), verdict);
    let end = NodeEnd::Failed { reason: "stopped".into() };
    assert_eq!(
        test.send(Event::NodeEnded { node: id("b"), end }),
        [finish(&verdict.unwrap())],
        "it has told its own end, and leaves"
    );
}

/// A master inside the launcher of `a`.
fn embedded(on_give_up: OnGiveUp, names: &[&str]) -> Test {
    let policy = Policy { host: Some(id("a")), on_give_up, ..policy() };
    Test::running(policy, terms(1, count(names.len())), names)
}

#[test]
fn the_job_ends_when_the_launcher_that_serves_the_master_is_stopped() {
    let mut test = embedded(OnGiveUp::FailJob, &["a", "b"]);
    let failure = JobFailure::MasterLeft { node: named("a", Some(0)), reason: STOPPED.into() };
    assert_eq!(
        failure.to_string(),
        "node rank 0 (host-a, 10.0.0.1), whose launcher served the job master, left: its launcher received SIGTERM"
    );
    let verdict = JobVerdict::Failed(failure);
    assert_eq!(test.leave("a"), all([vec![forget("a")], ended(&["b"], &verdict)]));
    assert_eq!(test.send(Event::EndAcknowledged { node: id("b") }), [finish(&verdict)]);
}

#[test]
fn a_launcher_that_serves_the_master_alone_leaves_at_once() {
    let mut test = embedded(OnGiveUp::FailJob, &["a"]);
    let verdict = JobVerdict::Failed(JobFailure::Stopped { signal: 15 });
    assert_eq!(test.leave("a"), [forget("a"), finish(&verdict)]);
    let failure = JobFailure::Stopped { signal: 2 };
    assert_eq!(failure.to_string(), "the launcher was stopped by SIGINT (Ctrl-C)");
}

#[test]
fn the_job_ends_when_the_launcher_that_serves_the_master_gives_up_whatever_the_policy() {
    for on_give_up in [OnGiveUp::FailJob, OnGiveUp::Replace] {
        let mut test = embedded(on_give_up, &["a", "b"]);
        let (node, reason) = (named("a", Some(0)), REASON.to_owned());
        let verdict = JobVerdict::Failed(JobFailure::Node { node, reason });
        assert_eq!(test.workers_fail("a", 0, true), all([vec![forget("a")], ended(&["a", "b"], &verdict)]));
    }
}

#[test]
fn other_launchers_may_leave_a_launcher_that_serves_the_master() {
    let mut test = embedded(OnGiveUp::FailJob, &["a", "b"]);
    assert_eq!(
        test.leave("b"),
        all([
            vec![forget("b"), gone("b", Some(1), STOPPED, 0)],
            regrouped(0, &["a"], &node_gone("b", Some(1), STOPPED))
        ])
    );
}
