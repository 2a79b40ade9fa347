//! When a worker fails: which workers are stopped and restarted, and what is reported.

use std::fs;

use support::launch::Outcome;
use support::seen::{Failure, Report};

use crate::differs::torchrun_differs;
use crate::launch;

const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

#[track_caller]
fn report(run: &Outcome) -> Report {
    Report::read(&run.stderr).unwrap_or_else(|wrong| panic!("{wrong}: {run:#?}"))
}

/// A failure without the values that change from run to run.
fn essence(failure: &Failure) -> (&str, &str, &str, &str) {
    (&failure.rank, &failure.exitcode, &failure.error_file, &failure.traceback)
}

#[test]
fn the_first_failure_stops_its_peers_and_is_the_root_cause() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=3"])
        .args(["--some", "args"])
        // Rank 0 records the signal and then dies of it; rank 2 exits with 0 on it.
        .steps(&[
            "0 touch ready0",
            "2 touch ready2",
            "1 await ready0",
            "1 await ready2",
            "1 exit 3",
            "0 until TERM",
            "0 kill TERM",
            "2 until TERM",
            "2 exit 0",
        ])
        .finish()
        .expect_code(1);
    assert_eq!(run.file("0.0.signals").as_deref(), Some("TERM\n"));
    assert_eq!(run.file("2.0.signals").as_deref(), Some("TERM\n"));
    let report = report(&run);
    // The script as given, without its arguments.
    assert_eq!(report.title, support::trainer("probe.py").display().to_string());
    assert_eq!(report.rules, [60; 4]);
    let [stopped] = &report.failures[..] else { panic!("rank 0 and no other is listed: {run:#?}") };
    let stop = "Signal 15 (SIGTERM) received by PID PID";
    assert_eq!(essence(stopped), ("0 (local_rank: 0)", "-15 (pid: PID)  (SIGTERM)", "<N/A>", stop));
    let root = &report.root_cause;
    assert_eq!(essence(root), ("1 (local_rank: 1)", "3 (pid: PID) ", "<N/A>", NO_TRACEBACK));
    assert_eq!((stopped.index, root.index), (1, 0), "in order of detection");
    assert_eq!(stopped.host, root.host);
    // 2026-11-21_00:00:44
    assert_eq!(root.time.len(), 19, "{}", root.time);
    assert_eq!((&root.time[4..5], &root.time[10..11], &root.time[16..17]), ("-", "_", ":"));
}

#[test]
fn a_failure_is_announced_before_the_report() {
    let run = launch().flags(["--standalone"]).steps(&["exit 3"]).finish().expect_code(1);
    let line =
        format!("failed (exitcode: 3) local_rank: 0 (pid: {}) of binary: ", report(&run).root_cause.pid);
    let (before, _) = run.stderr.split_once("ChildFailedError: ").expect("there is a report");
    assert!(before.contains(&line), "`{line}` in {run:#?}");
}

#[test]
fn a_lone_failure_has_no_others_and_a_signal_has_a_name() {
    let run = launch().flags(["--standalone"]).steps(&["kill SEGV"]).finish().expect_code(1);
    let one = report(&run);
    assert_eq!(one.failures, []);
    let segv = "Signal 11 (SIGSEGV) received by PID PID";
    assert_eq!(essence(&one.root_cause), ("0 (local_rank: 0)", "-11 (pid: PID)  (SIGSEGV)", "<N/A>", segv));
    assert!(run.stderr.contains("Failures:\n  <NO_OTHER_FAILURES>\n"));

    let run = launch().flags(["--standalone"]).steps(&["kill 40"]).finish().expect_code(1);
    let unnamed = "Signal 40 (<N/A>) received by PID PID";
    assert_eq!(essence(&report(&run).root_cause), ("0 (local_rank: 0)", "-40 (pid: PID) ", "<N/A>", unnamed));
}

#[test]
fn the_title_is_the_module_or_the_executable() {
    let run = launch().flags(["--standalone", "-m"]).script("probe").steps(&["exit 9"]);
    let run = run.cwd(support::tests_dir().join("trainers")).finish().expect_code(1);
    assert_eq!(report(&run).title, "probe");

    let run = launch().flags(["--standalone", "--no-python"]).script("sh").args(["-c", "exit 200"]);
    let run = run.finish().expect_code(1);
    let sh = report(&run);
    assert_eq!((sh.title.as_str(), sh.root_cause.exitcode.as_str()), ("sh", "200 (pid: PID) "));
    // The rules are as wide as the widest line, 60 at most.
    assert_eq!(sh.rules, [60; 4]);
}

#[test]
fn max_restarts_are_further_attempts_and_finished_ranks_take_part() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2", "--max-restarts=2"])
        // Rank 0 has always finished when rank 1 fails: the launcher sees it as a zombie at most.
        .steps(&[
            "dump",
            "0 exit 0",
            "1@0 await 0.0.dump",
            "1@1 await 0.1.dump",
            "1@2 await 0.2.dump",
            "1 exit 5",
        ])
        .finish()
        .expect_code(1);
    assert_eq!(run.dumps(), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    for (attempt, rank) in run.dumps() {
        let worker = run.dump(rank, attempt);
        assert_eq!(worker.var("TORCHELASTIC_MAX_RESTARTS"), "2");
        assert_eq!(worker.var("WORLD_SIZE"), "2");
        let error_file = worker.var("TORCHELASTIC_ERROR_FILE");
        assert!(error_file.ends_with(&format!("/attempt_{attempt}/{rank}/error.json")), "{error_file}");
        for name in ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"] {
            assert_eq!(worker.var(name), run.dump(0, 0).var(name), "{name} of attempt {attempt}");
        }
    }
    // One report, of the last attempt.
    assert_eq!(run.stderr.matches("ChildFailedError: ").count(), 1);
    assert_eq!(report(&run).root_cause.pid, run.dump(1, 2).pid);
}

#[test]
fn a_run_that_recovers_succeeds() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2", "--max-restarts=3"])
        .steps(&["dump", "1@0 await 0.0.dump", "1@0 kill KILL", "@0 hang"])
        .finish()
        .expect_code(0);
    assert_eq!(run.dumps(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert!(!run.stderr.contains("ChildFailedError"), "{run:#?}");
}

#[test]
fn a_failure_after_a_peer_finished_fails_the_run() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .steps(&["0 touch done", "0 exit 0", "1 await done", "1 exit 7"])
        .finish()
        .expect_code(1);
    let report = report(&run);
    assert_eq!((&report.failures[..], report.root_cause.exitcode.as_str()), (&[][..], "7 (pid: PID) "));
}

#[test]
fn an_error_file_is_reported() {
    let record = r#"{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback:\n  line 1\nValueError: boom\n", "timestamp": "1763683200"}}}"#;
    let run = launch();
    let copy = run.dir().join("reply.json");
    let run = run
        .flags(["--standalone"])
        .env("TORCHELASTIC_ERROR_FILE", &copy)
        .steps(&["dump", &format!("error {record}"), "exit 4"])
        .finish()
        .expect_code(1);
    let root = report(&run).root_cause;
    assert_eq!(root.error_file, run.dump(0, 0).var("TORCHELASTIC_ERROR_FILE"));
    assert_eq!(root.traceback, "Traceback:\n    line 1\n  ValueError: boom\n  ");
    let parent = fs::read_to_string(copy).expect("the root cause is copied to the launcher's parent");
    let parent: serde_json::Value = serde_json::from_str(&parent).expect("JSON");
    assert_eq!(parent["message"]["message"], "ValueError: boom");
    assert_eq!(parent["message"]["errorCode"], 4);
}

#[test]
fn control_characters_of_a_worker_are_escaped_in_the_report() {
    if torchrun_differs("control_characters_of_a_worker_are_escaped_in_the_report") {
        return;
    }
    let record = r#"{"message": {"message": "\u001b[2J\u001b]0;owned\u0007boom", "extraInfo": {"py_callstack": "Traceback:\n  \u001b[1A\rline 1\n", "timestamp": "1763683200"}}}"#;
    let run = launch().flags(["--standalone"]).steps(&[&format!("error {record}"), "exit 4"]);
    let run = run.finish().expect_code(1);
    assert!(run.stderr.contains("line 1"), "{run:#?}");
    let moves = run.stderr.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'));
    assert_eq!(moves, None, "{run:#?}");
}

#[test]
fn an_error_file_may_be_a_plain_message_and_its_time_decides() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .steps(&[
            r#"0 error {"message": "the older one", "timestamp": 1000}"#,
            "0 touch ready",
            "1 await ready",
            "1 exit 3",
            "0 hang",
        ])
        .finish()
        .expect_code(1);
    let report = report(&run);
    assert_eq!(report.root_cause.rank, "0 (local_rank: 0)", "the smallest timestamp is the root cause");
    assert_eq!(report.root_cause.traceback, "the older one");
    assert_eq!(report.failures.len(), 1);
}

#[test]
fn without_an_error_file_nothing_is_copied() {
    let run = launch();
    let copy = run.dir().join("reply.json");
    let run = run.flags(["--standalone"]).env("TORCHELASTIC_ERROR_FILE", &copy).steps(&["exit 4"]);
    let run = run.finish().expect_code(1);
    assert_eq!(run.file("reply.json"), None);
}

#[test]
fn a_failure_of_the_launchers_own_is_recorded_in_its_error_file() {
    for (flags, script) in
        [(vec!["--nnodes=none"], "x"), (vec!["--standalone", "--no-python"], "/no/such/program")]
    {
        let run = launch();
        let record = run.dir().join("reply.json");
        let run = run.flags(flags).script(script).env("TORCHELASTIC_ERROR_FILE", &record).finish();
        let run = run.expect_code(1);
        let record = run.file("reply.json").expect("a record");
        let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
        let message = record["message"]["message"].as_str().expect("a message");
        assert!(message.contains("none") || message.contains("/no/such/program"), "{message}");
        let stamp = record["message"]["extraInfo"]["timestamp"].as_str().expect("a time");
        assert!(stamp.parse::<i64>().is_ok(), "{stamp}");
    }
}

#[test]
fn the_lines_of_a_plain_message_are_left_as_they_are() {
    let run = launch()
        .flags(["--standalone"])
        .steps(&[r#"error {"message": "one\ntwo", "timestamp": 1000}"#, "exit 4"])
        .finish()
        .expect_code(1);
    assert!(run.stderr.contains("traceback : one\ntwo\n"), "{run:#?}");
}

#[test]
fn a_malformed_error_file_is_not_fatal() {
    let run = launch()
        .flags(["--standalone"])
        .steps(&["error {\"message\": tru", "exit 4"])
        .finish()
        .expect_code(1);
    if torchrun_differs("a_malformed_error_file_is_not_fatal") {
        assert!(run.stderr.contains("JSONDecodeError"), "{run:#?}");
        return;
    }
    assert_eq!(report(&run).root_cause.exitcode, "4 (pid: PID) ");
}

#[test]
fn the_launcher_prints_no_traceback_of_its_own() {
    let run = launch().flags(["--standalone"]).steps(&["exit 4"]).finish().expect_code(1);
    assert_eq!(run.stdout, "");
    let traceback = run.stderr.contains("Traceback (most recent call last)");
    assert_eq!(traceback, torchrun_differs("the_launcher_prints_no_traceback_of_its_own"), "{run:#?}");
}

#[test]
fn the_last_lines_of_the_root_cause_are_reported() {
    let run = launch().flags(["--standalone", "-r3"]).steps(&["err out of widgets\\n", "exit 4"]);
    let run = run.finish().expect_code(1);
    let told = run.stderr.contains("out of widgets");
    assert_eq!(told, !torchrun_differs("the_last_lines_of_the_root_cause_are_reported"), "{run:#?}");
}

#[test]
fn grandchildren_of_a_failed_run_are_gone() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .steps(&[
            "child plain",
            "child stubborn",
            "child setsid",
            "child double",
            "0 touch ready",
            "1 await ready",
            "1 kill KILL",
            "0 hang",
        ])
        .start()
        .finish_whatever_is_left()
        .expect_code(1);
    if torchrun_differs("grandchildren_of_a_failed_run_are_gone") {
        return;
    }
    assert_eq!(run.left, [], "{run:#?}");
}

#[test]
fn grandchildren_of_a_run_that_succeeded_are_gone() {
    let run =
        launch().flags(["--standalone"]).steps(&["child plain", "child setsid", "child double"]).start();
    let run = run.finish_whatever_is_left().expect_code(0);
    if torchrun_differs("grandchildren_of_a_run_that_succeeded_are_gone") {
        return;
    }
    assert_eq!(run.left, [], "{run:#?}");
}

#[test]
fn the_grace_is_the_same_after_a_failure() {
    if torchrun_differs("the_grace_is_the_same_after_a_failure") {
        return;
    }
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2", "--shutdown-timeout=1"])
        .steps(&["ignore TERM", "0 touch ready", "1 await ready", "1 exit 3", "0 hang"])
        .finish()
        .expect_code(1);
    let report = report(&run);
    assert_eq!(report.failures[0].exitcode, "-9 (pid: PID)  (SIGKILL)", "a worker that ignores SIGTERM");
    assert!((1..10).contains(&run.took.as_secs()), "{run:#?}");
}
