//! Signals to the launcher.

use nix::sys::signal::Signal;
use support::launch::{Launch, Outcome};

use crate::differs::torchrun_differs;
use crate::launch;

/// Two workers that record their signals until `last`, with restarts that must not be used.
fn listening(last: &str) -> Launch {
    launch().flags(["--standalone", "--nproc-per-node=2", "--max-restarts=3"]).steps(&[
        "dump",
        "0 touch ready0",
        "1 touch ready1",
        &format!("until {last}"),
        "exit 0",
    ])
}

fn signal_when_ready(run: Launch, signal: Signal) -> Outcome {
    let run = run.start();
    run.await_file("ready0");
    run.await_file("ready1");
    run.signal(signal);
    run.finish()
}

/// Both workers saw exactly this signal, none was restarted, and the launcher exits with 1.
#[track_caller]
fn forwarded(signal: Signal) {
    let name = &signal.as_str()[3..];
    let run = signal_when_ready(listening(name), signal).expect_code(1);
    for rank in [0, 1] {
        assert_eq!(run.file(&format!("{rank}.0.signals")), Some(format!("{name}\n")), "{run:#?}");
    }
    assert_eq!(run.dumps(), [(0, 0), (0, 1)], "no restart after a signal");
    assert!(run.took.as_secs() < 25, "no wait for workers that are gone: {run:#?}");
}

#[test]
fn term_is_forwarded() {
    forwarded(Signal::SIGTERM);
}

#[test]
fn int_is_forwarded() {
    forwarded(Signal::SIGINT);
}

#[test]
fn hup_is_forwarded() {
    forwarded(Signal::SIGHUP);
}

#[test]
fn quit_is_forwarded() {
    forwarded(Signal::SIGQUIT);
}

#[test]
fn workers_that_ignore_sigterm_are_killed_after_the_grace() {
    let deaf = || {
        launch().flags(["--standalone", "--nproc-per-node=2"]).steps(&[
            "ignore TERM",
            "0 touch ready0",
            "1 touch ready1",
            "hang",
        ])
    };
    let run = signal_when_ready(deaf().flags(["--shutdown-timeout=1"]), Signal::SIGTERM).expect_code(1);
    assert!((1..25).contains(&run.took.as_secs()), "{run:#?}");
    assert_eq!(run.left, [], "{run:#?}");
    let run = signal_when_ready(deaf().env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1"), Signal::SIGTERM);
    assert!((1..25).contains(&run.expect_code(1).took.as_secs()));
}

#[test]
fn further_signals_can_be_configured_to_stop() {
    let run = listening("USR1").flags(["--signals-to-handle=SIGTERM,SIGUSR1"]);
    let run = signal_when_ready(run, Signal::SIGUSR1).expect_code(1);
    assert_eq!(run.file("0.0.signals").as_deref(), Some("USR1\n"));
    assert_eq!(run.dump(1, 0).var("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGUSR1");
}

#[test]
fn an_unknown_signal_name_is_a_warning() {
    let run = launch().flags(["--standalone", "--signals-to-handle=SIGTERM,SIGFOO"]).finish().expect_code(0);
    assert!(run.stderr.contains("SIGFOO"), "{run:#?}");
    assert_eq!(run.dump(0, 0).var("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGFOO");
}

#[test]
fn usr1_goes_to_the_workers() {
    let run = listening("USR1").start();
    run.await_file("ready0");
    run.await_file("ready1");
    run.signal(Signal::SIGUSR1);
    let run = run.finish_whatever_is_left();
    if torchrun_differs("usr1_goes_to_the_workers") {
        assert_eq!(run.signal, Some(Signal::SIGUSR1 as i32), "{run:#?}");
        return;
    }
    // The workers handled it and succeeded, so the run did.
    let run = run.expect_code(0);
    for rank in [0, 1] {
        assert_eq!(run.file(&format!("{rank}.0.signals")).as_deref(), Some("USR1\n"), "{run:#?}");
    }
}

#[test]
fn nohup_survives_a_hangup() {
    let run = launch()
        .flags(["--standalone"])
        .after("trap '' HUP")
        .steps(&["dump", "touch ready", "await go"])
        .start();
    run.await_file("ready");
    run.signal(Signal::SIGHUP);
    if torchrun_differs("nohup_survives_a_hangup") {
        let _ = run.finish_whatever_is_left().expect_code(1);
        return;
    }
    run.touch("go");
    let run = run.finish().expect_code(0);
    let inherited = support::seen::ignored_signals(&[Signal::SIGHUP]);
    assert_eq!(run.dump(0, 0).ignored_signals, inherited, "the workers ignore it like the launcher");
}

#[test]
fn a_signal_that_the_parent_ignores_is_not_forwarded() {
    let run = launch()
        .flags(["--standalone"])
        .after("trap '' USR1")
        .steps(&["dump", "touch ready", "await go"])
        .start();
    run.await_file("ready");
    run.signal(Signal::SIGUSR1);
    run.touch("go");
    let run = run.finish().expect_code(0);
    let inherited = support::seen::ignored_signals(&[Signal::SIGUSR1]);
    assert_eq!(run.dump(0, 0).ignored_signals, inherited);
}

#[test]
fn a_parent_that_ignores_sigchld_does_not_hang_the_launcher() {
    // Bash itself cannot pass on an ignored SIGCHLD.
    let run = launch().flags(["--standalone"]).after("exec env --ignore-signal=CHLD \"$@\"");
    let run = run.finish().expect_code(0);
    assert_eq!(run.dumps(), [(0, 0)]);
    if torchrun_differs("a_parent_that_ignores_sigchld_does_not_hang_the_launcher") {
        return;
    }
    let run = launch().flags(["--standalone"]).after("exec env --ignore-signal=CHLD \"$@\"");
    let run = run.steps(&["exit 3"]).finish().expect_code(1);
    assert!(run.stderr.contains("exitcode  : 3 (pid: "), "{run:#?}");
}

#[test]
fn a_second_signal_skips_the_grace() {
    if torchrun_differs("a_second_signal_skips_the_grace") {
        return;
    }
    let run = listening("QUIT").start();
    run.await_file("ready0");
    run.await_file("ready1");
    run.signal(Signal::SIGTERM);
    run.await_file("0.0.signals");
    run.signal(Signal::SIGTERM);
    let run = run.finish().expect_code(1);
    assert!(run.took.as_secs() < 10, "the grace is 30 s: {run:#?}");
}

#[test]
fn a_killed_launcher_leaves_no_workers() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .steps(&[
            "ignore TERM",
            "child stubborn",
            "child setsid",
            "child double",
            "0 touch ready0",
            "1 touch ready1",
            "hang",
        ])
        .start();
    run.await_file("ready0");
    run.await_file("ready1");
    run.signal(Signal::SIGKILL);
    let run = run.finish_whatever_is_left();
    assert_eq!(run.signal, Some(Signal::SIGKILL as i32));
    if torchrun_differs("a_killed_launcher_leaves_no_workers") {
        return;
    }
    assert_eq!(run.left, [], "{run:#?}");
}
