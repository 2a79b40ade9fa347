//! CPU time and wake-ups of a launcher while its workers run.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    Outcome,
    figures::{Short, heading, progress},
    launcher::{Bench, Plan, Running, Side, TIMEOUT},
};

use std::io::Write as _;

const WORKERS: usize = 2;

/// Pause until the start is over.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) fn measure(bench: &mut Bench, seconds: u64) -> Outcome<()> {
    // All at once: nothing here takes a CPU from another.
    let mut all: Vec<(Side, Running)> = Vec::new();
    for side in bench.sides() {
        let plan = Plan { workers: WORKERS, options: &[], arguments: &["sleep"], stdout: Stdio::null() };
        all.push((side, bench.start(side, plan)?));
        bench.stamps.take(WORKERS, true, TIMEOUT)?;
    }
    progress(format_args!("idle for {seconds} s"))?;
    std::thread::sleep(SETTLE);
    let before = all.iter().map(|(_, running)| running.used()).collect::<Outcome<Vec<_>>>()?;
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(seconds));
    progress(format_args!(""))?;
    heading(&format!("idle for {seconds} s with {WORKERS} sleeping workers (ours: launcher and guard)"))?;
    for ((side, running), before) in all.iter_mut().zip(before) {
        let spent = running.used()?.since(before);
        let elapsed = began.elapsed().as_secs_f64();
        writeln!(
            std::io::stdout(),
            "  {:10} {} ms of CPU a minute, {} voluntary switches a second",
            if *side == Side::Ours { "ours" } else { "torchrun" },
            Short(spent.cpu_ns as f64 / 1e6 / elapsed * 60.0),
            Short(spent.voluntary_switches as f64 / elapsed)
        )?;
        running.stop()?;
    }
    Ok(())
}
