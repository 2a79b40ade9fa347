//! The guard is killed: alone, the launcher cleans up; together with the launcher, the next start does.

use std::sync::PoisonError;
use std::time::Duration;

use nix::sys::signal::Signal;
use support::census::Process;
use support::launch::Launch;
use support::{launcher, wait_for};

use crate::{Bred, STARTS, VANISH, breeding, show};

const ALL: &str = "plain,stubborn,setsid,daemon,bare,hopper";

/// The parent of the workers.
pub fn guard_of(bred: &Bred) -> Process {
    let guard = Process::of(bred.workers[0].process.parent).expect("the workers live, so the guard does");
    assert_eq!((guard.parent, &*guard.name), (bred.run.pid(), "dlrover-guard"));
    guard
}

fn guard_is_killed(options: &[&str], flags: &[&str]) {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return show("torchrun has no guard: skipped\n");
    }
    let mut bred = Bred::start(breeding(launcher, ALL, options).flags(flags));
    if options.contains(&"leader-dies") {
        bred.await_death_of(0);
    }
    let guard = guard_of(&bred);
    let _known_from_now_on = bred.census.enlisted();
    guard.signal(Signal::SIGKILL);
    let run = bred.finish().expect_code(1);
    assert!(run.stderr.contains("guard process was killed by SIGKILL"), "{run:#?}");
    assert!(run.took.as_secs() < 25, "nothing is waited for: {run:#?}");
}

#[test]
fn a_killed_guard_ends_the_run_and_leaves_no_process() {
    guard_is_killed(&[], &[]);
}

#[test]
fn a_killed_guard_causes_no_restart() {
    guard_is_killed(&["leader-dies"], &["--max-restarts=3"]);
}

#[test]
fn a_stopped_guard_cannot_keep_the_run_from_ending() {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return show("torchrun has no guard: skipped\n");
    }
    let mut bred = Bred::start(breeding(launcher, ALL, &[]).flags(["--shutdown-timeout=1"]));
    let guard = guard_of(&bred);
    let _known_from_now_on = bred.census.enlisted();
    guard.signal(Signal::SIGSTOP);
    bred.run.signal(Signal::SIGTERM);
    let _ = bred.finish().expect_code(1);
}

#[test]
fn the_next_start_sweeps_leftovers_of_a_killed_launcher_and_guard_and_no_sibling() {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return show("torchrun sweeps nothing: skipped\n");
    }
    let mut sibling = Bred::start(breeding(launcher.clone(), "plain,stubborn,setsid,daemon,bare", &[]));
    // `bare` has no marker and cannot be found, as documented. A hopper can.
    let mut dead = Bred::start(breeding(launcher.clone(), "plain,stubborn,setsid,daemon,hopper", &[]));
    let guard = guard_of(&dead);
    let _no_other_sweep = STARTS.write().unwrap_or_else(PoisonError::into_inner);
    let _known_from_now_on = dead.census.enlisted();

    // A launcher that is stopped cannot answer its guard's death before its own.
    dead.run.signal(Signal::SIGSTOP);
    wait_for("the launcher stops", || (Process::of(dead.run.pid())?.state == 'T').then_some(()));
    guard.signal(Signal::SIGKILL);
    dead.run.signal(Signal::SIGKILL);
    dead.run.wait();
    dead.await_death_of(0);
    dead.await_death_of(1);
    let left = dead.census.living(false);
    assert!(!left.is_empty(), "nothing was left to sweep, so this test shows nothing");

    let next = Bred::start_unguarded(breeding(launcher, "", &[]));
    let still_left = dead.census.left_after(VANISH);
    assert!(still_left.is_empty(), "the next start left {still_left:?} of {left:?}");
    next.run.touch("go");
    let next = next.finish().expect_code(0);
    assert!(next.stderr.contains("left behind by a killed launcher"), "{left:?}, {next:#?}");

    let here = sibling.census.enlisted();
    assert_eq!(here.len(), 10, "five a worker");
    assert!(here.iter().all(|one| one.process.still_lives()), "a sibling's were swept: {here:?}");
    assert!(sibling.workers.iter().all(|worker| worker.process.still_lives()));
    sibling.run.touch("go");
    let sibling = sibling.finish().expect_code(0);
    assert!(!sibling.stderr.contains("left behind"), "{sibling:#?}");
}

#[test]
fn a_short_run_completes_its_sweep() {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return show("torchrun sweeps nothing: skipped\n");
    }
    let mut dead = Bred::start(breeding(launcher.clone(), "plain,stubborn,setsid,daemon,hopper", &[]));
    let guard = guard_of(&dead);
    let _no_other_sweep = STARTS.write().unwrap_or_else(PoisonError::into_inner);
    let _known_from_now_on = dead.census.enlisted();
    dead.run.signal(Signal::SIGSTOP);
    wait_for("the launcher stops", || (Process::of(dead.run.pid())?.state == 'T').then_some(()));
    guard.signal(Signal::SIGKILL);
    dead.run.signal(Signal::SIGKILL);
    dead.run.wait();
    let next = Launch::new(launcher).flags(["--standalone", "--no-python"]).script("true").finish();
    let _ = next.expect_code(0);
    // All of them were killed; the last may still be dying.
    let left = dead.census.left_after(Duration::from_millis(500));
    assert!(left.is_empty(), "the run ended before its sweep did: {left:?}");
}
