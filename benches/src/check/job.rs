//! A job of two nodes and a script that does nothing: with a network check, without one, and with torchrun.

use std::{net::TcpListener, process::Stdio};

use crate::{
    Outcome,
    figures::{Figures, goal, heading, line, progress, ratio},
    launcher::{Bench, Plan, Running, Side},
};

/// Goal of the issue, in seconds. DLRover's own takes 14 s.
const GOAL: f64 = 1.5;

/// Measures jobs, side by side.
///
/// # Errors
/// A launcher fails.
pub fn measure(bench: &mut Bench, rounds: usize) -> Outcome<()> {
    let (mut checked, mut plain, mut torchrun) = (Figures::default(), Figures::default(), Figures::default());
    for round in 0..rounds {
        progress(format_args!("a job of two nodes, round {} of {rounds}", round + 1))?;
        checked.add(job(bench, Side::Ours, &["--network-check"])?);
        plain.add(job(bench, Side::Ours, &[])?);
        if round < 2 && bench.sides().contains(&Side::Torchrun) {
            torchrun.add(job(bench, Side::Torchrun, &[])?);
        }
    }
    progress(format_args!(""))?;
    heading("a job of 2 nodes with nothing to do: exec of the first launcher -> end of the last")?;
    line("checked", &checked, "s")?;
    line("without", &plain, "s")?;
    if !torchrun.is_empty() {
        line("torchrun", &torchrun, "s")?;
        ratio("torchrun, which checks nothing / checked", torchrun.median() / checked.median())?;
    }
    goal("1.5 s with a check", checked.median(), " s", GOAL)
}

/// Seconds.
fn job(bench: &mut Bench, side: Side, options: &[&str]) -> Outcome<f64> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let (endpoint, id) = (format!("--rdzv-endpoint=127.0.0.1:{port}"), format!("--rdzv-id=bench-{port}"));
    let meeting = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, &id];
    bench.stamps.clear()?;
    let mut launchers: Vec<Running> = Vec::new();
    for number in 0..2 {
        let plan = Plan { workers: 1, options, arguments: &["once", "0"], stdout: Stdio::null() };
        launchers.push(bench.launch(side, &meeting, plan, &format!("stderr-{number}"))?);
    }
    let began = launchers.iter().map(|launcher| launcher.exec_ns).min().unwrap_or_default();
    let mut ended = 0;
    for launcher in &mut launchers {
        ended = ended.max(launcher.succeed()?);
    }
    Ok((ended as f64 - began as f64) / 1e9)
}
