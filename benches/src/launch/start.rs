//! Exec of the launcher -> first instruction of its last worker; exit of the last worker -> exit of the launcher.

use std::process::Stdio;

use super::{Sides, ms, phase};
use crate::{
    Outcome,
    figures::{goal, goal_of_peer, heading, progress, ratio},
    launcher::{Bench, Plan, Side, TIMEOUT},
    stamps::{last_ns, now_ns},
};

const WORKERS: [usize; 2] = [2, 8];

/// Ours and bare take milliseconds and torchrun seconds, so they run more often.
const TURNS_A_ROUND: usize = 5;

pub(super) fn measure(bench: &mut Bench, rounds: usize, starts: bool, exits: bool) -> Outcome<()> {
    let mut measured = [(Sides::default(), Sides::default()), (Sides::default(), Sides::default())];
    for round in 0..rounds {
        for (workers, (start, exit)) in WORKERS.into_iter().zip(&mut measured) {
            progress(format_args!("start and exit, {workers} workers, round {} of {rounds}", round + 1))?;
            for turn in 0..TURNS_A_ROUND {
                let turn = round * TURNS_A_ROUND + turn;
                let (start_ms, exit_ms) = launched(bench, Side::Ours, workers, turn)?;
                start.ours.add(start_ms);
                exit.ours.add(exit_ms);
                let (start_ms, exit_ms) = bare(bench, workers)?;
                start.bare.add(start_ms);
                exit.bare.add(exit_ms);
            }
            if bench.sides().contains(&Side::Torchrun) {
                let (start_ms, exit_ms) = launched(bench, Side::Torchrun, workers, round)?;
                start.torchrun.add(start_ms);
                exit.torchrun.add(exit_ms);
            }
        }
    }
    progress(format_args!(""))?;
    for (workers, (start, exit)) in WORKERS.into_iter().zip(&measured) {
        if starts {
            heading(&format!("exec of the launcher -> first instruction of the last of {workers} workers"))?;
            start.print("ms")?;
            goal_of_peer(100.0, &start.ours, &start.torchrun)?;
            goal("5 times bare", start.ours.median() / start.bare.median(), " times", 5.0)?;
        }
        if exits {
            heading(&format!("exit 0 of the last of {workers} workers -> exit of the launcher"))?;
            exit.print("ms")?;
            ratio("torchrun / ours", exit.torchrun.median() / exit.ours.median())?;
        }
    }
    Ok(())
}

/// To the first instruction of the last worker, and from the last one's last to the end of the launcher.
fn launched(bench: &mut Bench, side: Side, workers: usize, turn: usize) -> Outcome<(f64, f64)> {
    let work = (100.0 + 100.0 * phase(turn)).round().to_string();
    let plan = Plan { workers, options: &[], arguments: &["once", &work], stdout: Stdio::null() };
    let mut running = bench.start(side, plan)?;
    let started = bench.stamps.take(workers, true, TIMEOUT);
    let started = started.map_err(|error| format!("{error}\n{}", running.stderr()))?;
    let worked = bench.stamps.take(workers, false, TIMEOUT)?;
    let ended_ns = running.succeed()?;
    Ok((ms(running.exec_ns, last_ns(&started)), ms(last_ns(&worked), ended_ns)))
}

/// Starts the same workers in a plain loop, and waits for them.
fn bare(bench: &mut Bench, workers: usize) -> Outcome<(f64, f64)> {
    bench.stamps.clear()?;
    let began_ns = now_ns();
    let mut children = Vec::new();
    for _ in 0..workers {
        children.push(bench.worker(&["once", "50"]).spawn()?);
    }
    let started = bench.stamps.take(workers, true, TIMEOUT)?;
    for mut child in children {
        child.wait()?;
    }
    let ended_ns = now_ns();
    let worked = bench.stamps.take(workers, false, TIMEOUT)?;
    Ok((ms(began_ns, last_ns(&started)), ms(last_ns(&worked), ended_ns)))
}
