//! What the launcher inherits from its parent: variables, signals, children, descriptors, a full host.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::launch::{Launch, Launcher};
use support::{launcher, wait_for};

use crate::differs::torchrun_differs;
use crate::launch;

/// A run with a launcher that is exec'd by a Python process that did this before.
fn launch_from_python(before: &str) -> Launch {
    let ours = launcher!();
    let program = format!("import os, signal, sys\n{before}\nos.execvp(sys.argv[1], sys.argv[1:])");
    let python = Launcher { program: "python3".into(), is_torchrun: ours.is_torchrun };
    Launch::new(python).flags(["-c", &program]).flags([ours.program])
}

#[test]
fn a_parent_that_ignored_sigchld_hides_no_exit() {
    if torchrun_differs("a_parent_that_ignored_sigchld_hides_no_exit") {
        return;
    }
    let run = launch_from_python("signal.signal(signal.SIGCHLD, signal.SIG_IGN)");
    let run = run.flags(["--standalone", "--nproc-per-node=2"]).steps(&["1 exit 3", "hang"]);
    let outcome = run.finish().expect_code(1);
    assert!(outcome.stderr.contains("failed first: exited with code 3"), "{outcome:#?}");
}

#[test]
fn a_parent_that_blocked_all_signals_delays_nothing() {
    if torchrun_differs("a_parent_that_blocked_all_signals_delays_nothing") {
        return;
    }
    let run = launch_from_python("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())");
    let run = run.flags(["--standalone"]).steps(&["touch ready", "hang"]).start();
    run.await_file("ready");
    run.signal(Signal::SIGTERM);
    let outcome = run.finish().expect_code(1);
    assert!(!outcome.stderr.contains("guard process is still busy"), "{outcome:#?}");
}

#[test]
fn a_guard_that_dies_at_once_is_noticed() {
    if launcher!().is_torchrun {
        return;
    }
    for _ in 0..5 {
        let run = launch().flags(["--standalone"]).steps(&["hang"]).start();
        let children = format!("/proc/{0}/task/{0}/children", run.pid());
        let guard = wait_for("the guard", || fs::read_to_string(&children).ok()?.trim().parse().ok());
        kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
        let outcome = run.finish().expect_code(1);
        assert!(outcome.stderr.contains("the guard process was killed by SIGKILL"), "{outcome:#?}");
    }
}

#[test]
fn a_refusal_with_closed_output_still_exits_with_its_code() {
    let code =
        if torchrun_differs("a_refusal_with_closed_output_still_exits_with_its_code") { 120 } else { 2 };
    let run = launch().flags(["--no-such-flag"]).after("exec 2> /dev/full");
    let _code = run.finish().expect_code(code);
}

#[test]
fn a_signal_that_cannot_be_handled_is_skipped() {
    if torchrun_differs("a_signal_that_cannot_be_handled_is_skipped") {
        return;
    }
    let run = launch().flags(["--standalone", "--signals-to-handle=SIGTERM,SIGSEGV"]);
    let outcome = run.finish().expect_code(0);
    assert!(outcome.stderr.contains("`SIGSEGV`"), "{outcome:#?}");
}

#[test]
fn processes_of_the_launching_script_survive_a_dead_guard() {
    if launcher!().is_torchrun {
        return;
    }
    let run = launch().flags(["--standalone"]).steps(&["touch ready", "hang"]);
    let run = run.after("sleep 1000 & echo $! > beside").start();
    run.await_file("ready");
    let beside: i32 = run.await_file("beside").trim().parse().unwrap();
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    let mut children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let guard = children.find(|pid| *pid != beside).unwrap();
    kill(Pid::from_raw(guard), Signal::SIGKILL).unwrap();
    let outcome = run.finish_whatever_is_left().expect_code(1);
    let left: Vec<i32> = outcome.left.iter().map(|process| process.pid).collect();
    assert_eq!(left, [beside], "{outcome:#?}");
}
