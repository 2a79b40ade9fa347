//! Thousands of agents and one job master; a few launchers and torchrun.
//!
//!     cargo build --profile dist -p launcher -p dlrover-benches --bins
//!     TORCHRUN=.../bin/torchrun cargo run --profile dist -p dlrover-benches --bin rendezvous [-- NUMBERS OPTIONS]
//!
//! NUMBERS are those of agents: 16 256 1024 4096 unless some are named. `agents` or `launchers` measures only
//! that; `watching` measures what it costs to watch a job (`--http`), and what scrapes and requests take. Options:
//! `--rounds N` (10), `--idle-seconds N` (10), `--meetings N` (3), `--hold-seconds N` (0): how long a watched job
//! stays, to look at its page.
//!
//! The master is a real process, found in the directory of this one or named by DLROVER_MASTER. The agents are
//! tasks of this process, each with a connection of its own and the calls of a real agent; their workers take no time
//! to start and to stop. Their cost is part of the figures, and the last agent to get a message waits for the others.
//! Goals are printed with the figures and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{
    Outcome,
    end::exit_code,
    launcher::{self, Bench},
    machine,
    rendezvous::{self, Amount},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Agents,
    Launchers,
    Watching,
}

fn main() -> ExitCode {
    exit_code("rendezvous", run())
}

fn run() -> Outcome<()> {
    let (parts, amount) = read(std::env::args().skip(1))?;
    launcher::watch_interrupt()?;
    writeln!(std::io::stdout(), "{}", machine::facts())?;
    if parts.contains(&Part::Agents) {
        writeln!(std::io::stdout(), "{}", rendezvous::about()?)?;
        rendezvous::agents(&amount)?;
    }
    if parts.contains(&Part::Watching) {
        writeln!(std::io::stdout(), "{}", rendezvous::about()?)?;
        rendezvous::watching(&amount)?;
    }
    if parts.contains(&Part::Launchers) && std::env::var_os("TORCHRUN").is_some() {
        let mut bench = Bench::new()?;
        writeln!(std::io::stdout(), "\n{}", bench.about())?;
        rendezvous::meeting(&mut bench, &amount)?;
    }
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}

fn read(mut args: impl Iterator<Item = String>) -> Outcome<(Vec<Part>, Amount)> {
    let mut amount = Amount { agents: Vec::new(), rounds: 10, idle_secs: 10, meetings: 3, hold_secs: 0 };
    let mut parts = Vec::new();
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|text| text.parse().ok()).ok_or(format!("{arg} needs a number"));
        match arg.as_str() {
            "--rounds" => amount.rounds = usize::try_from(number()?)?,
            "--idle-seconds" => amount.idle_secs = number()?,
            "--meetings" => amount.meetings = usize::try_from(number()?)?,
            "--hold-seconds" => amount.hold_secs = number()?,
            "watching" => parts.push(Part::Watching),
            "agents" => parts.push(Part::Agents),
            "launchers" => parts.push(Part::Launchers),
            _ => match arg.parse() {
                Ok(agents) if agents >= 2 => amount.agents.push(agents),
                _ => return Err(format!("invalid argument `{arg}`; give numbers of agents, from 2").into()),
            },
        }
    }
    if parts.is_empty() {
        parts.extend([Part::Agents, Part::Launchers]);
    }
    if amount.agents.is_empty() {
        amount.agents.extend([16, 256, 1024, 4096]);
    }
    Ok((parts, amount))
}
