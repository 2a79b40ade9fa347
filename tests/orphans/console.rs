//! A console that is no longer read: a paused `less`, a stuck log collector.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::launch::Launch;
use support::{launcher, trainer};

/// Far more than the seconds that a launcher waits for its last output, far less than a grace of 30 s twice.
const LIMIT: Duration = Duration::from_secs(40);

/// A pipe that stays open and is never read, as both streams.
const NOBODY_READS: &str = "mkfifo console; exec 3<>console; exec >console 2>&1";

fn a_stuck_console_delays_nothing(flags: &[&str]) {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return crate::show("torchrun's workers write to the stuck console themselves: skipped\n");
    }
    let run = Launch::new(launcher)
        .after(NOBODY_READS)
        .flags(["--standalone", "--max-restarts=1"])
        .flags(flags)
        .script(trainer("shouter.py"))
        .start();
    run.await_file("full.0");
    // The dead worker was noticed and replaced although nothing could be printed.
    run.await_file("full.1");
    let asked = Instant::now();
    run.signal(Signal::SIGTERM);
    run.finish().expect_code(1);
    assert!(asked.elapsed() < LIMIT, "it took {:?}", asked.elapsed());
}

#[test]
fn a_stuck_console_delays_neither_restart_nor_end() {
    a_stuck_console_delays_nothing(&[]);
}

#[test]
fn a_stuck_console_delays_nothing_with_tee_either() {
    a_stuck_console_delays_nothing(&["--tee=3"]);
}
