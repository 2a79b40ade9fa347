//! SIGKILL of a worker -> first instruction of the last worker of the next generation.

use std::{
    process::{Child, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Sides, ms, phase};
use crate::{
    Outcome,
    figures::{goal, goal_of_peer, heading, progress},
    launcher::{Bench, Plan, TIMEOUT},
    stamps::{Stamp, last_ns, now_ns},
};

const WORKERS: [usize; 2] = [2, 8];
const KILLS_A_ROUND: usize = 10;

pub(super) fn measure(bench: &mut Bench, rounds: usize) -> Outcome<()> {
    let mut measured = [Sides::default(), Sides::default()];
    for round in 0..rounds {
        for (workers, sides) in WORKERS.into_iter().zip(&mut measured) {
            progress(format_args!("restart, {workers} workers, round {} of {rounds}", round + 1))?;
            for side in bench.sides() {
                let options = ["--max-restarts=1000000"];
                let plan = Plan { workers, options: &options, arguments: &["sleep"], stdout: Stdio::null() };
                let mut running = bench.start(side, plan)?;
                let mut alive = bench.stamps.take(workers, true, TIMEOUT)?;
                for turn in 0..KILLS_A_ROUND {
                    rest(turn);
                    let killed_ns = kill_one(&alive, turn)?;
                    alive = bench.stamps.take(workers, true, TIMEOUT)?;
                    sides.of(side).add(ms(killed_ns, last_ns(&alive)));
                }
                running.stop()?;
            }
            bare(bench, workers, sides)?;
        }
    }
    progress(format_args!(""))?;
    for (workers, sides) in WORKERS.into_iter().zip(&measured) {
        heading(&format!("SIGKILL of one of {workers} workers -> first instruction of the last new one"))?;
        sides.print("ms")?;
        goal_of_peer(5.0, &sides.ours, &sides.torchrun)?;
        goal("15 ms", sides.ours.median(), " ms", 15.0)?;
    }
    Ok(())
}

fn rest(turn: usize) {
    std::thread::sleep(Duration::from_millis(100) + Duration::from_millis(100).mul_f64(phase(turn)));
}

fn kill_one(alive: &[Stamp], turn: usize) -> Outcome<u64> {
    let victim = alive.get(turn % alive.len()).ok_or("no worker to kill")?;
    let killed_ns = now_ns();
    kill(Pid::from_raw(victim.pid), Signal::SIGKILL)?;
    Ok(killed_ns)
}

/// The minimum of any launcher: waits for the dead worker, stops the others, starts all again.
fn bare(bench: &mut Bench, workers: usize, sides: &mut Sides) -> Outcome<()> {
    bench.stamps.clear()?;
    let mut children = start(bench, workers)?;
    bench.stamps.take(workers, true, TIMEOUT)?;
    for turn in 0..KILLS_A_ROUND {
        rest(turn);
        let killed_ns = now_ns();
        children[turn % workers].kill()?;
        children[turn % workers].wait()?;
        stop(&mut children)?;
        children = start(bench, workers)?;
        let alive = bench.stamps.take(workers, true, TIMEOUT)?;
        sides.bare.add(ms(killed_ns, last_ns(&alive)));
    }
    stop(&mut children)
}

fn start(bench: &Bench, workers: usize) -> Outcome<Vec<Child>> {
    Ok((0..workers).map(|_| bench.worker(&["sleep"]).spawn()).collect::<Result<_, _>>()?)
}

fn stop(children: &mut [Child]) -> Outcome<()> {
    for child in &mut *children {
        child.kill()?;
    }
    for child in children {
        child.wait()?;
    }
    Ok(())
}
