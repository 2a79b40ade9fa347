//! What follows from a hang, and what is not watched.

use support::launcher;

use crate::{
    case::Case,
    observed::{await_hang, diag, hang_lines},
};

#[test]
fn a_restart_is_spent_once() {
    let case = Case::of("lock", 2, 1);
    let run = case.launch(launcher!()).flags(["--on-hang=restart", "--max-restarts=2"]);
    let run = run.args(["--steps=8", "--at=3"]).finish().expect_code(0);
    assert_eq!(hang_lines(&run.stderr).len(), 1, "{run:#?}");
    let restart = "restarting all workers because of the hang (restart 1 of 2)";
    assert_eq!(run.stderr.matches(restart).count(), 1, "{run:#?}");
    // By round and rank: the count of restarts.
    let ran = ["ran.0.0", "ran.0.1", "ran.1.0", "ran.1.1"].map(|name| run.file(name));
    assert_eq!(
        ran.each_ref().map(Option::as_deref),
        [Some("0"), Some("0"), Some("1"), Some("1")],
        "{run:#?}"
    );
    assert_eq!(run.file("ran.2.0"), None, "{run:#?}");
}

#[test]
fn a_restart_that_is_not_left_fails_the_job() {
    let case = Case::of("stopped", 2, 0);
    let run = case.launch(launcher!()).flags(["--on-hang=restart", "--max-restarts=0"]);
    let run = run.finish().expect_code(1);
    assert!(run.stderr.contains("not restarting after the hang (max restarts: 0)"), "{run:#?}");
    assert_eq!(run.stderr.matches("rank 0 is stopped (SIGSTOP)").count(), 1, "{run:#?}");
    let report = run.stderr.rsplit_once("dlrover-run: error: ").map(|(_, report)| report);
    assert!(report.is_some_and(|report| report.starts_with("the job hung, as reported above\n")), "{run:#?}");
    // Without a log the report has the words.
    let quiet = case.launch(launcher!()).flags(["--on-hang=restart", "--max-restarts=0", "-q"]);
    let quiet = quiet.finish().expect_code(1);
    assert_eq!(quiet.stderr.matches("rank 0 is stopped (SIGSTOP)").count(), 1, "{quiet:#?}");
}

#[test]
fn a_hang_can_end_the_job() {
    let case = Case::of("sleep", 2, 1);
    let run = case.launch(launcher!()).flags(["--on-hang=exit"]).finish().expect_code(1);
    let sentence = "back_off; 0 waits in all_reduce";
    assert_eq!(hang_lines(&run.stderr).iter().filter(|line| line.contains(sentence)).count(), 1, "{run:#?}");
    let report = run.stderr.rsplit_once("dlrover-run: error: ").map(|(_, report)| report);
    let refers = |report: &str| {
        report.contains(" failed: the job hung, as reported above\n") && !report.contains(sentence)
    };
    assert!(report.is_some_and(refers), "{run:#?}");
}

/// The option takes precedence over xpu_timer's variable, by which this pause is a hang.
#[test]
fn zero_turns_it_off() {
    let case = Case::of("long pause", 2, 1);
    let launch = || {
        let launch = case.launch(launcher!()).env("XPU_TIMER_HANG_TIMEOUT", "1").args(["--pause=3"]);
        launch.args(["--steps=8", "--at=3"])
    };
    let run = launch().flags(["--hang-timeout=0"]).finish().expect_code(0);
    assert_eq!(hang_lines(&run.stderr).len(), 0, "{run:#?}");
    let run = launch().flags(["--hang-timeout=1"]).finish().expect_code(0);
    assert_eq!(hang_lines(&run.stderr).len(), 1, "{run:#?}");
    assert!(run.stderr.contains("long_pause"), "{run:#?}");
}

/// The cases give --hang-timeout.
#[test]
fn a_job_whose_hangs_could_not_be_seen_says_so_once() {
    let missing = "no worker of this node has shown progress within 2 s of its start";
    let run = Case::of("silent", 2, 0).launch(launcher!()).args(["--steps=50"]).finish().expect_code(0);
    assert_eq!(run.stderr.matches(missing).count(), 1, "{run:#?}");
    let run = Case::of("healthy", 2, 0).launch(launcher!()).flags(["--hang-grace=2"]);
    let run = run.args(["--steps=50", "--pace=0.1"]).finish().expect_code(0);
    assert_eq!(run.stderr.matches("has shown progress").count(), 0, "{run:#?}");
}

#[test]
fn a_dump_by_hand_names_the_same_rank() {
    let case = Case::of("held fifo", 3, 1);
    let run = case.launch(launcher!()).start();
    let line = await_hang(&run);
    let folder = run.dir().join("by-hand");
    let folder = folder.to_str().expect("text");
    let run_id = run.await_file("run-id");
    let text = diag(&["dump", "--run-id", &run_id, "--path", folder, "--json"]);
    let dump: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let suspects = dump["suspects"].as_array().expect("a list");
    let ranks: Vec<_> = suspects.iter().map(|suspect| suspect["rank"].as_u64()).collect();
    assert_eq!(ranks, [Some(1)], "{dump:#}");
    assert!(line.contains(dump["headline"].as_str().expect("a sentence")), "{line}\n{dump:#}");
}
