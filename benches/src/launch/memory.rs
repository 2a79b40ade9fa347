//! Proportional set size of a launcher (ours: launcher with an embedded master, and guard) with sleeping workers.

use std::{io::Write as _, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Outcome,
    figures::{goal, heading, progress},
    launcher::{Bench, Plan, Running, Side, TIMEOUT},
    processes::Memory,
};

const WORKERS: usize = 2;

/// Pause until the memory of the start is released.
const SETTLE: Duration = Duration::from_secs(2);

const RESTARTS: usize = 20;

pub(super) fn measure(bench: &mut Bench) -> Outcome<()> {
    heading(&format!("proportional set size with {WORKERS} sleeping workers, in kB"))?;
    for side in bench.sides() {
        progress(format_args!("memory, {side:?}"))?;
        let options = ["--max-restarts=1000000"];
        let plan = Plan { workers: WORKERS, options: &options, arguments: &["sleep"], stdout: Stdio::null() };
        let mut running = bench.start(side, plan)?;
        let mut alive = bench.stamps.take(WORKERS, true, TIMEOUT)?;
        std::thread::sleep(SETTLE);
        progress(format_args!(""))?;
        let total_mb = print(&running, side)? as f64 * 1024.0 / 1e6;
        if side == Side::Ours {
            goal("12 MB in all", total_mb, " MB", 12.0)?;
            for _ in 0..RESTARTS {
                kill(Pid::from_raw(alive[0].pid), Signal::SIGKILL)?;
                alive = bench.stamps.take(WORKERS, true, TIMEOUT)?;
            }
            std::thread::sleep(SETTLE);
            writeln!(std::io::stdout(), "  after {RESTARTS} restarts:")?;
            print(&running, side)?;
        }
        running.stop()?;
    }
    Ok(())
}

fn print(running: &Running, side: Side) -> Outcome<u64> {
    let mut total = Memory::default();
    let mut out = std::io::stdout().lock();
    for (pid, name) in running.own_processes() {
        let memory = Memory::of(pid)?;
        let Memory { pss, pss_anon, pss_file, rss } = memory;
        let side = if side == Side::Ours { "ours" } else { "torchrun" };
        writeln!(
            out,
            "  {side:8} {name:8} {pss:>7} (anonymous {pss_anon:>6}, of files {pss_file:>6}; resident {rss:>7})"
        )?;
        total.pss += pss;
    }
    writeln!(out, "  {:17} {:>7} = {:.1} MB", "in all", total.pss, total.pss as f64 * 1024.0 / 1e6)?;
    Ok(total.pss)
}
