//! Hang detection: its terms, and where the stacks go.

use std::{slice, time::Duration};

use master::StackFolder;
use rules::hang::{HangSources, HangTerms, OnHang};

use super::*;

const TIMEOUT: &str = "XPU_TIMER_HANG_TIMEOUT";
const FOLDER: &str = "XPU_TIMER_TIMELINE_PATH";

fn terms_in(env: &[(&str, &str)], line: &str) -> Option<HangTerms> {
    plan_in(env, line).agent.terms.hang
}

fn timeout_and_grace(env: &[(&str, &str)], line: &str) -> Option<(u64, u64)> {
    terms_in(env, line).map(|terms| (terms.timeout.as_secs(), terms.grace.as_secs()))
}

#[test]
fn only_declared_progress_counts_unless_more_is_asked_for() {
    let sources = |line: &str| terms_in(&[], line).unwrap().sources;
    let of = |output: bool, cpu: bool| HangSources { output, cpu };
    assert_eq!(sources("x"), of(false, false));
    assert_eq!(sources("--hang-source=progress x"), of(false, false));
    assert_eq!(sources("--hang-source=output x"), of(true, false));
    assert_eq!(sources("--hang-source=progress,cpu x"), of(false, true));
    assert_eq!(sources("--hang-source cpu,output,progress x"), of(true, true));
    for wrong in ["gpu", "output,", "Output", ",", ""] {
        let refusal = refusal(&[], &format!("--hang-source=progress,{wrong} x"));
        assert!(refusal.contains(&format!("progress,{wrong}")), "{refusal}");
        assert!(refusal.contains("a list of progress, output and cpu"), "{refusal}");
    }
}

#[test]
fn the_timeout_is_that_of_the_option_or_the_variable() {
    assert_eq!(timeout_and_grace(&[], "x"), Some((300, 1800)));
    assert_eq!(timeout_and_grace(&[(TIMEOUT, "60")], "x"), Some((60, 1800)));
    assert_eq!(timeout_and_grace(&[(TIMEOUT, "")], "x"), Some((300, 1800)));
    assert_eq!(timeout_and_grace(&[(TIMEOUT, "60")], "--hang-timeout=20 x"), Some((20, 1800)));
    let shortest = terms_in(&[], "--hang-timeout=0.1 x").unwrap();
    assert_eq!(shortest.timeout, Duration::from_millis(100));
    let asks = |env: &[(&str, &str)], line: &str| plan_in(env, line).agent.reports_missing_progress;
    assert!(asks(&[], "--hang-timeout=300 x") && asks(&[(TIMEOUT, "300")], "x"));
    assert!(!asks(&[], "--hang-grace=900 x"));
    for wrong in ["0.09", "-1", "nan", "five"] {
        let by_option = refusal(&[], &format!("--hang-timeout={wrong} x"));
        assert!(by_option.contains("--hang-timeout") && by_option.contains(wrong), "{by_option}");
        let by_variable = refusal(&[(TIMEOUT, wrong)], "x");
        assert!(by_variable.contains(TIMEOUT) && by_variable.contains(wrong), "{by_variable}");
    }
}

#[test]
fn zero_is_no_hang_detection() {
    assert_eq!(terms_in(&[], "--hang-timeout=0 x"), None);
    assert_eq!(terms_in(&[(TIMEOUT, "0")], "x"), None);
    assert_eq!(timeout_and_grace(&[(TIMEOUT, "0")], "--hang-timeout=5 x"), Some((5, 1800)));
}

/// A longer timeout raises the default grace, and contradicts one that was given.
#[test]
fn the_grace_is_not_shorter_than_the_timeout() {
    assert_eq!(timeout_and_grace(&[], "--hang-grace=300 x"), Some((300, 300)));
    assert_eq!(timeout_and_grace(&[], "--hang-timeout=3600 x"), Some((3600, 3600)));
    assert_eq!(timeout_and_grace(&[(TIMEOUT, "3600")], "x"), Some((3600, 3600)));
    for (env, line) in [
        (&[][..], "--hang-grace=299 x"),
        (&[], "--hang-timeout=10 --hang-grace=9 x"),
        (&[(TIMEOUT, "600")], "--hang-grace=500 x"),
        (&[], "--hang-timeout=10 --hang-grace=0 x"),
    ] {
        let refusal = refusal(env, line);
        assert!(refusal.contains("--hang-grace"), "{refusal}");
        assert!(refusal.contains("at least that of --hang-timeout"), "{refusal}");
    }
    assert!(refusal(&[], "--hang-grace=-1 x").contains("a non-negative number of seconds"));
}

#[test]
fn what_follows_from_a_hang_is_chosen() {
    let on_hang = |line: &str| terms_in(&[], line).unwrap().on_hang;
    assert_eq!(on_hang("x"), OnHang::Dump);
    assert_eq!(on_hang("--on-hang=restart x"), OnHang::Restart);
    assert_eq!(on_hang("--on-hang=exit x"), OnHang::Exit);
    assert!(refusal(&[], "--on-hang=kill x").contains("kill"));
    let counts = |line: &str| plan(line).agent.counts_steps;
    assert!(counts("x") && counts("--progress=auto x") && !counts("--progress=declared x"));
}

/// The first directory that takes files has the stacks; docs/hangs.md has this list.
#[test]
fn stacks_go_to_the_named_folder_or_the_usual_one_and_else_to_the_logs() {
    let folders = |env: &[(&str, &str)], line: &str| plan_in(env, line).master.stacks.folders;
    let named = |path: &str| StackFolder::Named(path.into());
    let shared = |path: &str| StackFolder::Shared(path.into());
    let usual = shared("/root/timeline");
    assert_eq!(folders(&[], "x"), [usual.clone(), shared("/tmp/dlrover-stacks")]);
    assert_eq!(folders(&[("TMPDIR", "/scratch")], "x"), [usual.clone(), shared("/scratch/dlrover-stacks")]);
    assert_eq!(folders(&[], "--log-dir=/logs x"), [usual.clone(), shared("/logs")]);
    assert_eq!(folders(&[("DLROVER_LOG_AGENT_DIR", "/logs")], "x"), [usual.clone(), shared("/logs")]);
    assert_eq!(folders(&[], "--log-dir=/dev/null x"), slice::from_ref(&usual));

    let env = [(FOLDER, "/shared/stacks")];
    assert_eq!(folders(&env, "x"), [named("/shared/stacks"), shared("/tmp/dlrover-stacks")]);
    assert_eq!(folders(&env, "--log-dir=/logs x"), [named("/shared/stacks"), shared("/logs")]);
    assert_eq!(folders(&env, "--log-dir=/dev/null x"), [named("/shared/stacks")]);
    assert_eq!(folders(&[(FOLDER, "")], "--log-dir=/dev/null x"), [usual]);
}
