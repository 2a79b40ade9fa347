//! Costs by number of agents.

use std::io::{self, Write as _};

use super::case::Measured;
use crate::{
    Outcome,
    figures::{Short, heading},
};

type Column = (&'static str, fn(&Measured) -> f64);

const COLUMNS: [Column; 8] = [
    ("last join ms", |case| case.join.last.median()),
    ("stopped ms", |case| case.stopped.last.median()),
    ("turn ms", |case| case.turn.last.median()),
    ("turn CPU ms", |case| case.master_cpu.median()),
    ("table kB", |case| case.table_bytes as f64 / 1e3),
    ("idle CPU %", |case| case.idle_cpu),
    ("memory MB", |case| case.memory),
    ("end ms", |case| case.end.as_ref().and_then(|end| end.as_ref().ok()).map_or(f64::NAN, |end| *end)),
];

/// Medians, each with the factor to the line above.
pub(super) fn print(cases: &[Measured], has_memory: bool) -> Outcome<()> {
    if cases.len() < 2 {
        return Ok(());
    }
    let with = if has_memory { "with" } else { "without" };
    heading(&format!("how cost grows with the number of agents, {with} --state-dir (x: to the line above)"))?;
    let mut out = io::stdout().lock();
    write!(out, "  {:>12}", "agents")?;
    for (name, _) in COLUMNS {
        write!(out, " {name:>16}")?;
    }
    writeln!(out)?;
    let mut before: Option<&Measured> = None;
    for case in cases {
        let factor = |now: f64, before: Option<f64>| {
            before.map_or(String::new(), |before| format!(" x{}", Short(now / before)))
        };
        let agents = factor(case.agents as f64, before.map(|case| case.agents as f64));
        write!(out, "  {:>12}", format!("{}{agents}", case.agents))?;
        for (_, of) in COLUMNS {
            let now = of(case);
            write!(out, " {:>16}", format!("{}{}", Short(now), factor(now, before.map(of))))?;
        }
        writeln!(out)?;
        before = Some(case);
    }
    Ok(())
}
