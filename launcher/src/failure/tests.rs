//! What a failed run says, and its exit code.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use agent::WorkerEvidence;
use rules::{
    Attempt, NodeId, NodeRank, Round, last_lines::Output, node::NodeName, root_cause::FailureDetail,
    verdict::JobFailure,
};
use serde_json::Value;

use super::*;
use crate::endpoint::Endpoint;
use crate::remedy::remedy;

const ALONE: Rendezvous = Rendezvous::Loopback;

fn failed(cause: ExitCause, out_of_memory: bool) -> Report {
    let failure = WorkerFailure {
        rank: Rank(1),
        local_rank: LocalRank(1),
        pid: 42,
        cause,
        unix_secs: 5,
        out_of_memory,
    };
    let group = GroupFailure {
        attempt: Attempt(1),
        failures: vec![failure],
        ended_before: vec![Rank(0), Rank(2)],
        has_oom_counter: true,
    };
    let evidence = WorkerEvidence {
        stderr_tail: Some(b"first\nTraceback\x1b[2J\n\nValueError: boom\n".to_vec()),
        stderr_log: Some("/logs/1/stderr.log".into()),
        ..WorkerEvidence::default()
    };
    Report {
        outcome: Outcome::Failed(Failure::Workers(group)),
        attempt: Attempt(1),
        run_dir: Some("/logs".into()),
        workers: BTreeMap::from([(LocalRank(1), evidence)]),
        never_arrived: vec![LocalRank(1)],
        unkillable: Vec::new(),
        root_cause: None,
        node_rank: None,
        host: "vm".into(),
    }
}

#[test]
fn the_exit_code_is_one_unless_propagated() {
    for (cause, out_of_memory, own) in [
        (ExitCause::Code(7), false, 7),
        (ExitCause::Signal(11), false, 139),
        (ExitCause::Signal(9), true, OUT_OF_MEMORY),
    ] {
        let report = failed(cause, out_of_memory);
        assert_eq!(exit_code(&report, false, &ALONE), FAILED);
        assert_eq!(exit_code(&report, true, &ALONE), own);
    }
    let report = Report { outcome: Outcome::Interrupted(15), ..failed(ExitCause::Code(1), false) };
    assert_eq!((exit_code(&report, false, &ALONE), exit_code(&report, true, &ALONE)), (FAILED, 143));
    let report = Report { outcome: Outcome::Succeeded, ..report };
    assert_eq!(exit_code(&report, true, &ALONE), SUCCEEDED);
}

#[test]
fn a_failed_rendezvous_has_its_own_code_with_dlrovers_master_only() {
    let endpoint = || Endpoint { host: "h".into(), port: 1 };
    let waited = Duration::from_secs(5);
    let away = Failure::MasterAway { reason: "refused".into(), waited };
    let losses = Vec::new();
    let too_few = JobFailure::TimedOut {
        joined: 1,
        needed: 2,
        waited,
        missing: Some([NodeRank(1)].into_iter().collect()),
        losses,
        refused: None,
    };
    let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 1 };
    for failure in [away, Failure::Job(too_few)] {
        let outcome = Outcome::Failed(failure);
        let report = Report { outcome, workers: BTreeMap::new(), ..failed(ExitCause::Code(1), false) };
        for propagate in [false, true] {
            assert_eq!(exit_code(&report, propagate, &Rendezvous::Master(endpoint())), NO_RENDEZVOUS);
            for rendezvous in [Rendezvous::C10d(endpoint()), Rendezvous::Static(endpoint())] {
                assert_eq!(exit_code(&report, propagate, &rendezvous), FAILED);
            }
        }
        let text = message(&report, &settings, &Rendezvous::C10d(endpoint())).unwrap();
        assert!(text.starts_with("dlrover-run: error: "), "{text}");
        assert!(text.contains("--rdzv-conf=join_timeout=SECONDS"), "{text}");
        assert_eq!(text.lines().count(), 2, "what happened, and what to do: {text}");
    }
}

/// Enough nodes joined, and waited for workers of others to end: no node is missing.
#[test]
fn a_wait_that_no_further_node_ends_asks_for_none() {
    let waited = Duration::from_secs(5);
    let enough = JobFailure::TimedOut {
        joined: 2,
        needed: 2,
        waited,
        missing: None,
        losses: Vec::new(),
        refused: None,
    };
    let text =
        remedy(&Failure::Job(enough), &Rendezvous::C10d(Endpoint { host: "host".into(), port: 1 })).unwrap();
    assert_eq!(text, "--rdzv-conf=join_timeout=SECONDS waits longer.");
}

#[test]
fn a_failure_has_the_cause_the_attempt_the_last_lines_and_the_logs() {
    let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 1 };
    let text = message(&failed(ExitCause::Signal(9), true), &settings, &ALONE).unwrap();
    let mut parts = text.split("dlrover-run: ").skip(1);
    assert_eq!(
        parts.next(),
        Some(
            "root cause: rank 1 (local rank 1, host vm, pid 42): killed by the kernel's OOM killer: ValueError: boom\n"
        )
    );
    let before = parts.next().unwrap();
    assert!(
        before.starts_with("failed (exitcode: -9) local_rank: 1 (pid: 42) of binary: /bin/python3\ntorch."),
        "{before}"
    );
    let after = parts.next().unwrap();
    assert_eq!(
        after,
        "rank 1 (local rank 1, pid 42) failed first: killed by SIGKILL: sent by the kernel's OOM killer; use less \
         memory or raise the container's memory limit\n  attempt: 2 of 2 (--max-restarts=1)\n  earlier, 2 \
         ranks of this node (0, 2) exited with code 0. If rank 1 lost its connection to one of them, let all ranks meet \
         at a barrier before they exit\n  never reached \
         the workers' store: local rank 1\n  last lines of its standard error:\n    | first\n    | Traceback\n    \
         | ValueError: boom\n  log: /logs/1/stderr.log\n  all logs: /logs\n"
    );
}

#[test]
fn a_sigkill_is_no_verdict_on_the_oom_killer_where_its_counter_cannot_be_read() {
    let Outcome::Failed(Failure::Workers(mut group)) = failed(ExitCause::Signal(9), false).outcome else {
        panic!("workers failed");
    };
    let text = |group: &GroupFailure| explained(&group.failures[0], OomCounter::of(group));
    let known = text(&group);
    assert!(
        known.contains("not by the OOM killer, whose counter for this container did not rise"),
        "{known}"
    );
    group.has_oom_counter = false;
    assert_eq!(
        text(&group),
        "killed by SIGKILL: sent by another process, by the worker itself or by the OOM killer; this host has no OOM counter to read: \
         check the kernel log (dmesg)"
    );
    let of_another = explained(&group.failures[0], OomCounter::OfAnotherNode);
    assert_eq!(of_another, "killed by SIGKILL: see the output of that node's launcher");
}

#[test]
fn a_guard_that_exits_is_a_bug_and_one_that_is_killed_is_not() {
    let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
    let text = |cause| {
        let outcome = Outcome::Failed(Failure::GuardDied { cause });
        message(&Report { outcome, ..failed(ExitCause::Code(1), false) }, &settings, &ALONE).unwrap()
    };
    assert_eq!(
        text(ExitCause::Code(1)),
        "dlrover-run: error: the guard process exited with code 1; all workers were killed. This is a bug: report it \
         with the lines above\n"
    );
    let killed = text(ExitCause::Signal(9));
    assert!(killed.contains("was killed by SIGKILL, so") && killed.contains("`kill -9`"), "{killed}");
    assert!(!killed.contains("bug"), "{killed}");
}

fn of_another_node() -> RootCause {
    let failure = WorkerFailure {
        rank: Rank(13),
        local_rank: LocalRank(5),
        pid: 4711,
        cause: ExitCause::Code(1),
        unix_secs: 4,
        out_of_memory: false,
    };
    let output = Output::new(b"Traceback (most recent call last):\n  x\nKeyError: 7\n", true);
    let (host, address, node_id) = ("b".into(), "10.0.0.2".into(), NodeId("b".into()));
    RootCause {
        round: Round(0),
        node: NodeName { rank: Some(NodeRank(1)), host, address, node_id },
        detail: FailureDetail::new(failure, None, &output, false),
    }
}

const OF_ANOTHER_NODE: &str = "dlrover-run: root cause: rank 13 (local rank 5, node rank 1, host b, pid 4711): exited with code 1: KeyError: 7\n";

const ITS_LINES: &str = "  last lines of the standard error of rank 13 on node rank 1 (b, 10.0.0.2):\n    | Traceback \
                         (most recent call last):\n    |   x\n    | KeyError: 7\n";

#[test]
fn a_node_whose_workers_were_well_says_what_the_failed_one_said() {
    let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
    let root_cause = of_another_node();
    let reason = root_cause.detail.failure.to_string();
    let job = JobFailure::Node { node: root_cause.node.clone(), reason };
    let outcome = Outcome::Failed(Failure::Job(job));
    let report = Report { outcome, root_cause: Some(root_cause), ..failed(ExitCause::Code(1), false) };
    assert_eq!(
        message(&report, &settings, &ALONE).unwrap(),
        format!(
            "{OF_ANOTHER_NODE}dlrover-run: error: node rank 1 (b, 10.0.0.2) failed: rank 13 (local rank 5, pid 4711) \
             exited with code 1\n  See the output of that node's launcher.\n{ITS_LINES}"
        )
    );
    let stopped = Report { outcome: Outcome::Interrupted(15), ..report };
    let text = message(&stopped, &settings, &ALONE).unwrap();
    assert_eq!(text, "dlrover-run: stopped by SIGTERM; no worker is left\n");
}

#[test]
fn a_node_whose_workers_failed_too_says_which_failed_before() {
    let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
    let report = Report { root_cause: Some(of_another_node()), ..failed(ExitCause::Code(1), false) };
    let text = message(&report, &settings, &ALONE).unwrap();
    assert!(text.starts_with(OF_ANOTHER_NODE) && text.ends_with(ITS_LINES), "{text}");
    assert_eq!(text.matches("root cause:").count(), 1, "{text}");
    assert!(text.contains("pid 42) failed first on this node: exited with code 1\n"), "{text}");
    assert!(text.contains("ChildFailedError: \n") && text.contains("    | ValueError: boom\n"), "{text}");
}

#[test]
fn a_hang_that_was_reported_is_referred_to() {
    let settings = RunSettings { title: "t.py".into(), program: "/bin/python3".into(), max_restarts: 0 };
    let hang = "hang: no rank has made progress for 5 s: rank 1 is in train.py:7 next_batch; stacks of all ranks, written by the job master: /s";
    let text = |failure| {
        let report = Report { outcome: Outcome::Failed(failure), ..failed(ExitCause::Code(1), false) };
        refer_to_hang(&message(&report, &settings, &ALONE).unwrap(), hang)
    };
    let without =
        remedy(&Failure::Hang { reason: "hang: no rank has made progress for 5 s: x".into() }, &ALONE);
    assert_eq!(without.as_deref(), Some("--max-restarts=N lets such a job restart."), "there are no stacks");
    let own = text(Failure::Hang { reason: hang.into() });
    assert!(
        own.starts_with("dlrover-run: error: the job hung, as reported above\n  --max-restarts=N "),
        "{own}"
    );
    let RootCause { node, .. } = of_another_node();
    let of_job = text(Failure::Job(JobFailure::Node { node: node.clone(), reason: hang.into() }));
    assert_eq!(
        of_job,
        "dlrover-run: error: node rank 1 (b, 10.0.0.2) failed: the job hung, as reported above\n  dlrover-diag stacks \
         --path=DIR shows the stacks again.\n"
    );
    let other = text(Failure::Job(JobFailure::Node { node, reason: "hang: another one".into() }));
    assert!(other.contains("failed: hang: another one\n"), "{other}");
}

#[test]
fn the_copy_for_the_scheduler_carries_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("mine.json");
    let mut report = failed(ExitCause::Code(3), false);
    let source = folder.path().join("error.json");
    fs::write(&source, r#"{"message": {"message": "boom", "extraInfo": {}}}"#).unwrap();
    let evidence = report.workers.get_mut(&LocalRank(1)).unwrap();
    evidence.error_file = agent::read_error_file(&source).transpose();
    copy_root_cause(&report, "", Some(&target)).unwrap();
    let copy: Value = serde_json::from_str(&fs::read_to_string(&target).unwrap()).unwrap();
    assert_eq!(copy["message"]["errorCode"], 3);
    assert!(copy_root_cause(&report, "", Some(Path::new("/nowhere/x"))).is_err());
    report.outcome = Outcome::Interrupted(15);
    copy_root_cause(&report, "dlrover-run: ended\n", Some(&target)).unwrap();
    let own = agent::read_error_file(&target).unwrap().unwrap();
    assert_eq!(own.account, "dlrover-run: ended");
    assert!(own.unix_secs.is_some());
}
