//! Launchers that rendezvous on loopback, ours and torchrun's: the time until their workers run, and until they run
//! again after one was killed.

use std::{net::TcpListener, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::Amount;
use crate::{
    Outcome,
    figures::{Figures, heading, line, progress, ratio},
    launcher::{Bench, Plan, Running, Side, TIMEOUT},
    stamps::{Stamp, last_ns, now_ns},
};

const LAUNCHERS: [usize; 3] = [2, 4, 8];

/// Ours take milliseconds and torchrun seconds, so ours run more often.
const TURNS_OF_OURS: usize = 3;

/// Between the start and the kill.
const REST: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
struct Sides {
    ours: Figures,
    torchrun: Figures,
}

impl Sides {
    fn of(&mut self, side: Side) -> &mut Figures {
        match side {
            Side::Ours => &mut self.ours,
            Side::Torchrun => &mut self.torchrun,
        }
    }

    fn print(&self) -> Outcome<()> {
        for (name, figures) in [("ours", &self.ours), ("torchrun", &self.torchrun)] {
            if !figures.is_empty() {
                line(name, figures, "ms")?;
            }
        }
        ratio("torchrun / ours", self.torchrun.median() / self.ours.median())
    }
}

/// Measures launchers of both kinds, side by side.
///
/// # Errors
/// A launcher fails.
pub fn measure(bench: &mut Bench, amount: &Amount) -> Outcome<()> {
    for launchers in LAUNCHERS {
        let (mut starts, mut restarts) = (Sides::default(), Sides::default());
        for round in 0..amount.meetings {
            for side in bench.sides() {
                let turns = if side == Side::Ours { TURNS_OF_OURS } else { 1 };
                for _ in 0..turns {
                    let of = amount.meetings;
                    progress(format_args!("{launchers} launchers, {side:?}, round {} of {of}", round + 1))?;
                    let (start, restart) = meet(bench, side, launchers)?;
                    starts.of(side).add(start);
                    restarts.of(side).add(restart);
                }
            }
        }
        progress(format_args!(""))?;
        heading(&format!(
            "{launchers} launchers of 1 worker meet: exec of the last -> first instruction of the last worker"
        ))?;
        starts.print()?;
        heading(&format!(
            "{launchers} launchers of 1 worker: SIGKILL of a worker -> first instruction of the last new one"
        ))?;
        restarts.print()?;
    }
    Ok(())
}

/// Returns the milliseconds of the start and of the restart.
fn meet(bench: &mut Bench, side: Side, launchers: usize) -> Outcome<(f64, f64)> {
    let port = free_port()?;
    let meeting = [
        format!("--nnodes={launchers}"),
        "--rdzv-backend=c10d".to_owned(),
        format!("--rdzv-endpoint=127.0.0.1:{port}"),
        format!("--rdzv-id=bench-{port}"),
        "--max-restarts=1".to_owned(),
    ];
    let meeting: Vec<&str> = meeting.iter().map(String::as_str).collect();
    bench.stamps.clear()?;
    let mut all = Vec::new();
    for number in 0..launchers {
        let plan = Plan { workers: 1, options: &[], arguments: &["sleep"], stdout: Stdio::null() };
        all.push(bench.launch(side, &meeting, plan, &format!("stderr-{number}"))?);
    }
    let exec_ns = all.last().map_or(0, |launcher| launcher.exec_ns);
    let started = workers(bench, &all)?;
    std::thread::sleep(REST);
    let victim = started.get(launchers / 2).ok_or("no worker to kill")?;
    let killed_ns = now_ns();
    kill(Pid::from_raw(victim.pid), Signal::SIGKILL)?;
    let again = workers(bench, &all)?;
    for launcher in &all {
        // It may have exited already.
        let _ = kill(Pid::from_raw(launcher.pid), Signal::SIGTERM);
    }
    for launcher in &mut all {
        launcher.wait()?;
    }
    Ok((ms(exec_ns, last_ns(&started)), ms(killed_ns, last_ns(&again))))
}

/// Waits for the first instruction of one worker of each launcher.
fn workers(bench: &mut Bench, all: &[Running]) -> Outcome<Vec<Stamp>> {
    let stamps = bench.stamps.take(all.len(), true, TIMEOUT);
    stamps.map_err(|error| {
        let report: Vec<String> = all.iter().map(Running::stderr).collect();
        format!("{error}\n{}", report.join("\n---\n")).into()
    })
}

/// Returns a port without a listener.
fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}
