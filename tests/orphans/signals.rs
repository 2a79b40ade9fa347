//! Signals that do not end a run, workers that are stopped when it ends, and deaths of unusual signals.

use nix::sys::signal::Signal;
use support::launch::{Launch, Launcher};
use support::seen::Report;
use support::{launcher, wait_for};

use crate::{Bred, breeding, show, start};

/// Only for ours; torchrun is measured with the table only.
fn ours() -> Option<Launcher> {
    let launcher = launcher!();
    if launcher.is_torchrun {
        show("measured by the table alone: skipped\n");
        return None;
    }
    Some(launcher)
}

#[test]
fn user_signals_reach_the_workers_only_and_the_run_continues() {
    let Some(launcher) = ours() else { return };
    let launch = Launch::new(launcher).flags(["--standalone", "--nproc-per-node=2"]);
    let steps = ["child plain", "0 touch ready0", "1 touch ready1", "until USR2", "await go", "exit 0"];
    let run = start(launch.steps(&steps));
    run.await_file("ready0");
    run.await_file("ready1");
    run.signal(Signal::SIGUSR1);
    for rank in [0, 1] {
        let name = format!("{rank}.0.signals");
        wait_for("SIGUSR1 arrives", || (run.await_file(&name) == "USR1\n").then_some(()));
    }
    run.signal(Signal::SIGUSR2);
    for rank in [0, 1] {
        let name = format!("{rank}.0.signals");
        wait_for("SIGUSR2 arrives", || (run.await_file(&name) == "USR1\nUSR2\n").then_some(()));
    }
    // It was not sent to the children; it would have killed them.
    let children = [0, 1].map(|rank| run.await_file(&format!("{rank}.0.child.plain")));
    let living: Vec<String> = run.processes().iter().map(|one| one.pid.to_string()).collect();
    assert!(children.iter().all(|child| living.contains(child)), "{children:?} of {living:?}");
    run.touch("go");
    let _ = run.finish().expect_code(0);
}

#[test]
fn an_ignored_hangup_does_not_end_the_run_and_its_end_leaves_no_process() {
    let Some(launcher) = ours() else { return };
    let launch = breeding(launcher, "plain,stubborn,setsid,daemon,bare,hopper", &[]);
    let mut bred = Bred::start(launch.after("trap '' HUP").flags(["--shutdown-timeout=1"]));
    let _known_from_now_on = bred.census.enlisted();
    bred.run.signal(Signal::SIGHUP);
    bred.run.signal(Signal::SIGTERM);
    let run = bred.finish().expect_code(1);
    assert!(run.stderr.contains("stopped by SIGTERM"), "the hangup came first and was ignored: {run:#?}");
}

#[test]
fn stopped_processes_are_continued_to_end() {
    let Some(launcher) = ours() else { return };
    // The grace of 30 s would show in the time it takes.
    let mut bred = Bred::start(breeding(launcher, "plain,setsid,daemon,bare", &[]));
    let enlisted: Vec<_> = bred.census.enlisted().iter().map(|one| one.process.clone()).collect();
    for process in bred.workers.iter().map(|worker| &worker.process).chain(&enlisted) {
        process.signal(Signal::SIGSTOP);
        wait_for("it stops", || (support::census::Process::of(process.pid)?.state == 'T').then_some(()));
    }
    bred.run.signal(Signal::SIGTERM);
    let run = bred.finish().expect_code(1);
    assert!(run.took.as_secs() < 25, "they could have answered: {run:#?}");
}

#[test]
fn a_stopped_peer_does_not_delay_a_restart_beyond_the_grace() {
    let Some(launcher) = ours() else { return };
    let launch = breeding(launcher, "stubborn,daemon", &["restart"]);
    // Stopped before the other one fails: it says it is ready, and the last rank fails at once. So it is the
    // stubborn descendants that hold the stop, stopped or not.
    let mut bred = Bred::start(launch.flags(["--shutdown-timeout=1", "--max-restarts=1"]));
    bred.workers[0].process.signal(Signal::SIGSTOP);
    let _known_from_now_on = bred.census.enlisted();
    bred.of_attempt(1);
    bred.run.touch("go");
    let run = bred.finish().expect_code(0);
    for rank in [0, 1] {
        assert_eq!(run.file(&format!("old.{rank}.1")).as_deref(), Some(""), "{run:#?}");
    }
}

#[test]
fn a_death_by_a_real_time_signal_is_reported() {
    let Some(launcher) = ours() else { return };
    let launch = Launch::new(launcher).flags(["--standalone", "--nproc-per-node=2"]);
    let launch = launch.steps(&["child daemon", "1 kill 40", "hang"]);
    let run = start(launch).finish().expect_code(1);
    let report = Report::read(&run.stderr).expect("a report as torchrun writes it");
    assert!(report.root_cause.rank.starts_with("1 "), "{run:#?}");
    assert!(report.root_cause.exitcode.starts_with("-40 "), "{run:#?}");
}

#[test]
fn a_death_by_a_real_time_signal_is_restarted() {
    let Some(launcher) = ours() else { return };
    let launch = Launch::new(launcher).flags(["--standalone", "--nproc-per-node=2", "--max-restarts=1"]);
    let launch = launch.steps(&["child stubborn", "1@0 kill 64", "@0 hang", "dump"]);
    let run = start(launch.flags(["--shutdown-timeout=1"])).finish().expect_code(0);
    assert_eq!(run.dumps(), [(1, 0), (1, 1)]);
}
