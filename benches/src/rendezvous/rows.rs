//! The table of one case.

use std::{
    error::Error,
    io::{self, Write as _},
};

use super::{
    agents::last,
    case::{Measured, Times},
};
use crate::{
    Outcome,
    figures::{Figures, Short, goal, heading, progress},
};

/// Numbers of agents, and their goals.
const JOIN_GOAL: (usize, f64) = (4096, 1000.0);
const STOPPED_GOAL: (usize, f64) = (1024, 250.0);
const MEMORY_GOAL: (usize, f64) = (4096, 200.0);

fn title(agents: usize, has_memory: bool) -> String {
    let with = if has_memory { "with" } else { "without" };
    format!("{agents} agents, one master {with} --state-dir")
}

pub(super) fn failed(agents: usize, has_memory: bool, error: &dyn Error) -> Outcome<()> {
    progress(format_args!(""))?;
    heading(&format!("{}\n  failed: {error}", title(agents, has_memory)))
}

pub(super) fn print(case: &Measured, has_memory: bool) -> Outcome<()> {
    heading(&title(case.agents, has_memory))?;
    let mut out = io::stdout().lock();
    writeln!(out, "  {:34} {} ms", "all connect and join, last subscribed", Short(case.subscribe))?;
    writeln!(out, "  {:34} {} ms", "all connect and join, last assignment", Short(case.first_assignments))?;
    times("last join -> assignments", &case.join)?;
    judge(case.agents, JOIN_GOAL, "1000 ms to 99 % of 4096 agents", case.join.agents.at(0.99), " ms")?;
    judge(case.agents, JOIN_GOAL, "1000 ms to the last, in every round", case.join.last.at(1.0), " ms")?;
    times("failure -> others stopped", &case.stopped)?;
    judge(case.agents, STOPPED_GOAL, "250 ms to 99 % of 1024 agents", case.stopped.agents.at(0.99), " ms")?;
    judge(case.agents, STOPPED_GOAL, "250 ms to the last, in every round", case.stopped.last.at(1.0), " ms")?;
    times("failure -> next assignments", &case.turn)?;
    let (ours, bench) = (Short(case.master_cpu.median()), Short(case.bench_cpu.median()));
    writeln!(out, "  {:34} {ours} ms of the master, {bench} ms of the agents' process", "CPU of that turn")?;
    let (took, slowest) = (Short(case.table.median()), Short(case.table.at(1.0)));
    writeln!(out, "  {:34} {} bytes to each agent", "an assignment", case.assignment_bytes)?;
    let bytes = case.table_bytes;
    writeln!(out, "  {:34} {bytes} bytes in {took} ms (longest {slowest})", "the whole table, on request")?;
    let (cpu, switches) = (Short(case.idle_cpu), Short(case.idle_switches));
    writeln!(
        out,
        "  {:34} {cpu} % of a core, {switches} wake-ups a second",
        "idle master, heartbeats included"
    )?;
    let (memory, peak) = (Short(case.memory), Short(case.peak));
    writeln!(out, "  {:34} {memory} MB (PSS; peak resident {peak} MB)", "memory of the master")?;
    judge(case.agents, MEMORY_GOAL, "200 MB", case.memory, " MB")?;
    reconnects(case)?;
    match &case.end {
        Some(Ok(took)) => writeln!(out, "  {:34} {} ms", "all succeed -> last one knows", Short(*took))?,
        Some(Err(error)) => writeln!(out, "  the end failed: {error}")?,
        None => {}
    }
    Ok(())
}

fn times(name: &str, Times { agents, last }: &Times) -> Outcome<()> {
    writeln!(
        io::stdout(),
        "  {name:34} p50 {:>5}  p99 {:>5} ms of agents; the last {:>5} ms (worst of {} rounds {:>5})",
        Short(agents.median()),
        Short(agents.at(0.99)),
        Short(last.median()),
        last.len(),
        Short(last.at(1.0))
    )?;
    Ok(())
}

fn judge(agents: usize, (of, max): (usize, f64), text: &str, measured: f64, unit: &str) -> Outcome<()> {
    if agents == of { goal(text, measured, unit, max) } else { Ok(()) }
}

fn reconnects(case: &Measured) -> Outcome<()> {
    let name = "master killed -> all are back";
    let mut out = io::stdout().lock();
    match &case.reconnects {
        Some(Ok(reconnects)) => {
            let mut back = Figures::default();
            back.extend(&reconnects.back);
            writeln!(
                out,
                "  {name:34} subscribed {} ms, state reported: p50 {} ms, last {} ms; {} stopped; {} MB after it",
                Short(last(&reconnects.subscribed)),
                Short(back.median()),
                Short(back.at(1.0)),
                reconnects.stopped,
                Short(case.memory_after)
            )?;
        }
        Some(Err(error)) => writeln!(out, "  {name:34} failed: {error}")?,
        None => {}
    }
    Ok(())
}
