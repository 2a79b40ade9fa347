//! The detail of a failure: which node may give it, which nodes get it, and how long they wait for it.

use super::*;
use crate::{
    failure::{ExitCause, WorkerFailure},
    ids::{LocalRank, Rank},
    job::{
        FAREWELL,
        withheld::{CAUSE_TIMEOUT, EARLIER_TIMEOUT},
    },
    job_status::JobPhase,
    last_lines::Output,
    root_cause::{FailureDetail, RootCause},
};

fn detail(words: &str) -> FailureDetail {
    let failure = WorkerFailure {
        rank: Rank(3),
        local_rank: LocalRank(1),
        pid: 4711,
        cause: ExitCause::Code(1),
        unix_secs: 7,
        out_of_memory: false,
    };
    FailureDetail::new(failure, None, &Output::new(words.as_bytes(), true), false)
}

fn root_cause(name: &str, rank: u32, round: u32) -> Box<RootCause> {
    Box::new(RootCause { round: Round(round), node: named(name, Some(rank)), detail: detail("boom") })
}

/// These nodes get the root cause, then the end.
fn ended_by(names: &[&str], root_cause: &RootCause, verdict: &JobVerdict) -> Vec<Effect> {
    let pushes = |name: &&str| {
        let pushes = [Push::RootCause(Box::new(root_cause.clone())), Push::JobEnd(verdict.clone())];
        let node = id(name);
        pushes.map(|push| Effect::Push { node: node.clone(), push })
    };
    names.iter().flat_map(pushes).collect()
}

fn known(root_cause: &RootCause) -> Effect {
    Effect::Log(Log::RootCause(Box::new(root_cause.clone())))
}

fn of(name: &str, rank: u32) -> JobVerdict {
    JobVerdict::Failed(JobFailure::Node { node: named(name, Some(rank)), reason: REASON.into() })
}

impl Test {
    /// Its workers fail, and it will say what they said.
    fn workers_break(&mut self, name: &str, round: u32, gives_up: bool) -> Vec<Effect> {
        self.workers_broke(name, round, gives_up, 0)
    }

    /// So many milliseconds ago.
    fn workers_broke(&mut self, name: &str, round: u32, gives_up: bool, millis: u64) -> Vec<Effect> {
        let (node, round, reason) = (id(name), Round(round), REASON.into());
        let age = Duration::from_millis(millis);
        self.send(Event::WorkersFailed { node, round, reason, gives_up, has_detail: true, age })
    }

    fn tell(&mut self, name: &str, round: u32, words: &str) -> Vec<Effect> {
        let detail = Box::new(detail(words));
        self.send(Event::FailureDetailed { node: id(name), round: Round(round), detail })
    }

    /// The last worker of `b` that may fail has failed, and the end is withheld.
    fn withheld() -> Self {
        let mut test = Self::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
        assert_eq!(test.at(10).workers_break("b", 0, true), [forget("b")]);
        assert_eq!(test.job.deadline(), Some(Moment::at_secs(11)));
        // No earlier failure is reported.
        test.now = Moment::at_secs(10) + EARLIER_TIMEOUT;
        test
    }
}

#[test]
fn every_node_gets_the_root_cause_with_the_end() {
    let mut test = Test::withheld();
    let root = root_cause("b", 1, 0);
    assert_eq!(
        test.tell("b", 0, "boom"),
        all([vec![known(&root)], ended(&["b"], &of("b", 1)), ended_by(&["a", "c"], &root, &of("b", 1))])
    );
    assert_eq!(test.tell("b", 0, "boom"), [], "said again");
    assert_eq!(test.job.deadline(), Some(test.now + FAREWELL), "they may take their time to acknowledge");
    assert_eq!(test.join("z"), ended_by(&["z"], &root, &of("b", 1)), "and one that comes later");
    let status = test.job.status(test.now).last_failure.unwrap();
    assert_eq!(
        status.root_cause.as_deref(),
        Some("rank 3 (local rank 1, node rank 1, host host-b, pid 4711): exited with code 1: boom")
    );
    assert_eq!((status.reason.as_str(), &status.last_lines[..]), (REASON, &["boom".to_owned()][..]));
}

#[test]
fn the_end_waits_for_the_detail_for_a_moment_only() {
    let mut test = Test::withheld();
    assert_eq!(test.due(), ended(&["b", "a", "c"], &of("b", 1)));
    assert_eq!(test.now, Moment::at_secs(11));
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(21)));
    assert_eq!(test.tell("b", 0, "boom"), [known(&root_cause("b", 1, 0))], "for the log and the status");
    let _acknowledged = test.send(Event::EndAcknowledged { node: id("a") });
    assert_eq!(test.send(Event::EndAcknowledged { node: id("c") }), [finish(&of("b", 1))]);
}

#[test]
fn a_failed_node_that_is_cut_off_is_not_waited_for() {
    let mut test = Test::withheld();
    assert_eq!(test.send(Event::LinkBroken { node: id("c") }), [], "another one");
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), ended(&["b", "a", "c"], &of("b", 1)));
    assert_eq!(test.send(Event::LinkBroken { node: id("b") }), []);
}

#[test]
fn a_detail_is_believed_of_the_node_whose_worker_failed_and_of_its_round() {
    let mut test = Test::withheld();
    for (name, round) in [("c", 0), ("z", 0), ("b", 1)] {
        assert_eq!(test.tell(name, round, "forged"), [], "{name} in round {round}");
    }
    assert_eq!(test.job.status(test.now).last_failure.unwrap().last_lines, Vec::<String>::new());
    let root = root_cause("b", 1, 0);
    let _told = test.tell("b", 0, "boom");
    assert_eq!(test.tell("b", 0, "forged"), [], "once");
    assert_eq!(test.join("z"), ended_by(&["z"], &root, &of("b", 1)));
}

#[test]
fn failures_of_others_while_the_end_is_withheld_follow_from_the_first() {
    let mut test = Test::withheld();
    assert_eq!(test.workers_break("c", 0, true), []);
    assert_eq!(test.tell("c", 0, "connection closed by peer"), []);
    assert_eq!(test.workers_break("a", 0, false), []);
    assert_eq!(test.rejoin("a", 0), [], "its workers are gone");
    let root = root_cause("b", 1, 0);
    assert_eq!(
        test.tell("b", 0, "boom"),
        all([vec![known(&root)], ended(&["b"], &of("b", 1)), ended_by(&["a", "c"], &root, &of("b", 1))])
    );
}

#[test]
fn nodes_that_leave_while_the_end_is_withheld_are_not_waited_for() {
    let mut test = Test::withheld();
    assert_eq!(test.leave("a"), []);
    assert_eq!(test.lose("c"), [hang_up("c")]);
    let root = root_cause("b", 1, 0);
    assert_eq!(
        test.tell("b", 0, "boom"),
        all([vec![known(&root)], ended(&["b"], &of("b", 1)), vec![finish(&of("b", 1))]]),
        "for the log and the status"
    );
}

#[test]
fn a_restarted_master_withholds_the_end_from_its_own_start() {
    let mut test = Test::withheld();
    assert_eq!(test.at(50).send(Event::Restarted), []);
    assert_eq!(test.resume("a", 0, &["a", "b", "c"], WorkersState::Running), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(51)));
    assert_eq!(test.due(), ended(&["b", "a", "c"], &of("b", 1)));
}

#[test]
fn a_node_without_workers_to_quote_is_not_waited_for() {
    let mut test = Test::running(fail_job(), terms(2, 2), &["a", "b"]);
    assert_eq!(
        test.workers_fail("b", 0, true),
        all([vec![forget("b")], ended(&["b", "a"], &of("b", 1))]),
        "a worker could not be started"
    );
    assert_eq!(test.tell("b", 0, "boom"), []);
}

#[test]
fn a_restart_waits_for_no_detail_and_the_status_has_it() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason: REASON.into() };
    assert_eq!(test.workers_break("b", 0, false), regrouped(0, &["a"], &why));
    assert_eq!(test.rejoin("a", 0), []);
    assert_eq!(test.rejoin("b", 0), placed(1, &["a", "b"]));
    let root = root_cause("b", 1, 0);
    assert_eq!(test.tell("b", 0, "boom"), [known(&root)], "late, and of the last round still");
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b"]));
    let status = test.job.status(test.now);
    assert_eq!(status.last_failure.unwrap().last_lines, ["boom"], "also while the next round runs");
    assert!(
        status.events.iter().any(|it| it.message == format!("root cause: {root}")),
        "{:#?}",
        status.events
    );
    assert_eq!(test.tell("b", 0, "boom"), [], "too late");
}

/// The next round begins within milliseconds, and the output of a worker may take longer to be read.
#[test]
fn a_detail_that_comes_when_the_next_round_runs_is_in_the_log_and_the_status() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _regrouped = test.workers_break("b", 0, false);
    let _joined = (test.rejoin("a", 0), test.rejoin("b", 0));
    assert_eq!(test.hosted("a", 1), assignments(1, &["a", "b"]));
    assert_eq!(test.tell("a", 0, "another"), [], "its worker did not fail");
    assert_eq!(test.tell("b", 1, "another"), [], "not in that round");
    assert_eq!(test.tell("b", 0, "boom"), [known(&root_cause("b", 1, 0))]);
    assert_eq!(test.job.status(test.now).last_failure.unwrap().last_lines, ["boom"]);
    assert_eq!(test.tell("b", 0, "boom"), [], "said again");
}

#[test]
fn the_detail_of_an_earlier_round_is_not_the_later_ones() {
    let policy = Policy { restart_count: 0, ..policy() };
    let mut test = Test::running(policy, terms(2, 2), &["a", "b"]);
    let _regrouped = test.workers_break("b", 0, false);
    let _told = test.tell("b", 0, "of round 0");
    let _joined = (test.rejoin("a", 0), test.rejoin("b", 0));
    let _running = test.hosted("a", 1);
    let _gave_up = test.at(30).workers_break("b", 1, true);
    let Some(verdict) = test.job.verdict().cloned() else { panic!("it has no replacement left") };
    assert!(matches!(&verdict, JobVerdict::Failed(JobFailure::Exhausted { .. })), "{verdict:?}");
    assert_eq!(test.job.status(test.now).last_failure.unwrap().root_cause, None);
    assert_eq!(test.due(), ended(&["a"], &verdict), "without that of round 0");
}

#[test]
fn a_node_that_is_lost_after_a_failure_is_why_the_job_ends() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _regrouped = test.workers_break("b", 0, false);
    let _told = test.tell("b", 0, "boom");
    let _rejoined = test.rejoin("b", 0);
    let _lost = test.lose("a");
    let effects = test.due();
    assert!(matches!(&effects[..], [Effect::Push { push: Push::JobEnd(_), .. }]), "{effects:?}");
}

#[test]
fn a_job_whose_failed_node_was_not_replaced_ends_with_its_root_cause() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _gone = test.workers_break("b", 0, true);
    assert_eq!(test.tell("b", 0, "boom"), [known(&root_cause("b", 1, 0))]);
    assert_eq!(test.rejoin("a", 0), []);
    let effects = test.due();
    let verdict = test.job.verdict().cloned().unwrap();
    assert!(matches!(&verdict, JobVerdict::Failed(JobFailure::TimedOut { .. })), "{verdict:?}");
    assert_eq!(effects, ended_by(&["a"], &root_cause("b", 1, 0), &verdict));
}

#[test]
fn a_job_of_one_node_ends_with_the_detail() {
    let mut test = Test::running(fail_job(), terms(1, 1), &["a"]);
    let verdict = of("a", 0);
    assert_eq!(
        test.workers_break("a", 0, true),
        all([vec![forget("a")], ended(&["a"], &verdict)]),
        "it has all of it, and ends"
    );
    let status = test.job.status(test.now);
    assert_eq!((status.phase, status.end), (JobPhase::Restart, None), "not before its root cause is known");
    let root = root_cause("a", 0, 0);
    assert_eq!(test.tell("a", 0, "boom"), [known(&root), finish(&verdict)]);
    let status = test.job.status(test.now);
    assert_eq!((status.phase, status.end.is_some()), (JobPhase::Over, true));
    let events: Vec<&str> = status.events.iter().rev().take(2).map(|it| it.message.as_str()).collect();
    let end = format!("the job failed: {}", status.end.unwrap().message);
    assert_eq!(events, [end.as_str(), &format!("root cause: {root}")], "the end stands last");
    assert_eq!(test.job.deadline(), None);
}

#[test]
fn a_job_of_one_node_waits_for_the_detail_for_a_moment_only() {
    let mut test = Test::running(fail_job(), terms(1, 1), &["a"]);
    let verdict = of("a", 0);
    let _withheld = test.at(10).workers_break("a", 0, true);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(11)));
    assert_eq!(test.due(), [finish(&verdict)]);
    assert_eq!(test.tell("a", 0, "boom"), [known(&root_cause("a", 0, 0))], "for the log");

    let mut test = Test::running(fail_job(), terms(1, 1), &["a"]);
    let _withheld = test.workers_break("a", 0, true);
    assert_eq!(
        test.send(Event::LinkBroken { node: id("a") }),
        [finish(&verdict)],
        "nor for a node that is cut off"
    );
}

#[test]
fn the_end_is_withheld_for_a_moment_because_an_earlier_failure_may_be_reported() {
    let mut test = Test::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
    assert_eq!(test.at(10).workers_break("b", 0, true), [forget("b")]);
    let root = root_cause("b", 1, 0);
    assert_eq!(test.tell("b", 0, "boom"), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(10) + EARLIER_TIMEOUT));
    assert_eq!(
        test.due(),
        all([vec![known(&root)], ended(&["b"], &of("b", 1)), ended_by(&["a", "c"], &root, &of("b", 1))])
    );
}

#[test]
fn the_earliest_failure_is_the_root_cause_whichever_is_reported_first() {
    let mut test = Test::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
    let _withheld = test.at(10).workers_broke("b", 0, true, 1);
    assert_eq!(test.workers_broke("c", 0, true, 4), []);
    assert_eq!(test.tell("b", 0, "connection closed by peer"), [], "it follows from that of c");
    let root = root_cause("c", 2, 0);
    assert_eq!(test.tell("c", 0, "boom"), []);
    let told = ended_by(&["a"], &root, &of("c", 2));
    assert_eq!(
        test.due(),
        all([vec![known(&root)], ended_by(&["b"], &root, &of("c", 2)), told, ended(&["c"], &of("c", 2))])
    );
    let status = test.job.status(test.now);
    assert_eq!(status.last_failure.unwrap().last_lines, ["boom"]);
    assert_eq!(status.rounds[0].ended, status.end.map(|end| format!("the job failed: {}", end.message)));
}

#[test]
fn a_failure_takes_no_place_by_a_lie() {
    let mut test = Test::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
    let _withheld = test.at(10).workers_broke("b", 0, true, 3000);
    assert_eq!(test.workers_broke("c", 0, true, 60_000), [], "an age is believed up to 2 s");
    assert_eq!(test.workers_broke("c", 7, true, 2000), [], "of another round");
    assert_eq!(test.workers_broke("z", 0, true, 2000), [], "no member");
    assert_eq!(test.tell("b", 0, "boom"), []);
    assert_eq!(test.due()[0], known(&root_cause("b", 1, 0)));
}

#[test]
fn the_earliest_failure_is_the_root_cause_of_a_restart_too() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let why = Regroup::WorkersFailed { node: named("b", Some(1)), reason: REASON.into() };
    assert_eq!(test.at(10).workers_broke("b", 0, false, 1), regrouped(0, &["a"], &why));
    assert_eq!(test.workers_broke("a", 0, false, 5), []);
    assert_eq!(test.tell("b", 0, "connection closed by peer"), []);
    assert_eq!(test.tell("a", 0, "boom"), [known(&root_cause("a", 0, 0))]);
    assert_eq!(test.job.status(test.now).last_failure.unwrap().last_lines, ["boom"]);
}

const LOST: &str = "ConnectionResetError: [Errno 104] Connection reset by peer";

#[test]
fn a_rank_that_lost_a_connection_is_not_the_root_cause_where_its_peer_has_an_error() {
    // Whichever detail comes first.
    for order in [["b", "c"], ["c", "b"]] {
        let mut test = Test::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
        let _withheld = test.at(10).workers_break("b", 0, true);
        assert_eq!(test.workers_break("c", 0, true), [], "it fails later: Python takes its time to exit");
        let root = root_cause("c", 2, 0);
        let mut effects = Vec::new();
        for name in order {
            effects.extend(test.tell(name, 0, if name == "b" { LOST } else { "boom" }));
        }
        let told = [ended_by(&["b", "a"], &root, &of("c", 2)), ended(&["c"], &of("c", 2))];
        assert_eq!(effects, all([vec![known(&root)], told.concat()]), "{order:?}");
    }
}

#[test]
fn the_error_of_a_peer_is_waited_for_for_a_moment() {
    let mut test = Test::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
    let _withheld = test.at(10).workers_break("b", 0, true);
    assert_eq!(test.tell("b", 0, LOST), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(10) + CAUSE_TIMEOUT));
    assert_eq!(test.workers_break("c", 0, true), []);
    assert_eq!(test.tell("c", 0, LOST), [], "it lost one, too");
    let effects = test.due();
    let Effect::Log(Log::RootCause(named)) = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(named.node.node_id, id("b"), "nothing better is known");
}

#[test]
fn the_status_of_a_restart_names_the_peer_with_an_error() {
    let mut test = Test::running(policy(), terms(2, 2), &["a", "b"]);
    let _regrouped = test.at(10).workers_break("b", 0, false);
    assert_eq!(test.workers_break("a", 0, false), []);
    assert_eq!(test.tell("b", 0, LOST).len(), 1, "it is the first so far");
    assert_eq!(test.tell("a", 0, "boom"), [known(&root_cause("a", 0, 0))]);
    assert_eq!(test.job.status(test.now).last_failure.unwrap().last_lines, ["boom"]);
}

#[test]
fn an_earlier_failure_that_is_reported_later_is_waited_for() {
    let mut test = Test::running(fail_job(), terms(3, 3), &["a", "b", "c"]);
    let _withheld = test.at(10).workers_break("b", 0, true);
    assert_eq!(test.tell("b", 0, "boom"), []);
    test.now = Moment::at_secs(10) + Duration::from_millis(20);
    assert_eq!(test.workers_broke("c", 0, true, 40), []);
    assert_eq!(test.job.deadline(), Some(Moment::at_secs(11)), "what it said is on its way");
    test.now = Moment::at_secs(10) + Duration::from_millis(400);
    let root = root_cause("c", 2, 0);
    let told = [ended_by(&["b", "a"], &root, &of("c", 2)), ended(&["c"], &of("c", 2))];
    assert_eq!(test.tell("c", 0, "boom"), all([vec![known(&root)], told.concat()]));
    assert_eq!(test.tell("b", 0, "boom"), [], "what the nodes were told stays");
}
