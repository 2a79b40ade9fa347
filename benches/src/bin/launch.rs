//! Our launcher and torchrun, under the same work, in one run.
//!
//!     cargo build --profile dist -p launcher --bin dlrover-run
//!     TORCHRUN=.../bin/torchrun cargo run --profile dist -p dlrover-benches --bin launch [-- CASES OPTIONS]
//!
//! Cases (all of them unless some are named, by letter or name):
//!
//! ```text
//! a start    exec of the launcher -> first instruction of the last worker
//! b restart  SIGKILL of a worker -> first instruction of the last new one
//! c memory   proportional set size with sleeping workers
//! d idle     CPU time and wake-ups with sleeping workers
//! e tee      MB/s of workers that print as fast as they can
//! f exit     exit of the last worker -> exit of the launcher
//! ```
//!
//! Options: `--rounds N` (5), `--idle-seconds N` (20), `--print-mb N` (32, each worker).
//!
//! The workers are this package's `stamp`, a native program: what is measured is the launcher. `bare` is the
//! same workers started by a plain loop. Goals are printed with the figures and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{
    Outcome,
    end::exit_code,
    launch::{self, Amount, CASES, Case},
    launcher::{self, Bench},
    machine,
};

fn main() -> ExitCode {
    exit_code("launch", run())
}

fn run() -> Outcome<()> {
    let (cases, amount) = read(std::env::args().skip(1))?;
    let mut bench = Bench::new()?;
    launcher::watch_interrupt()?;
    writeln!(std::io::stdout(), "{}\n{}", machine::facts(), bench.about())?;
    launch::measure(&cases, &mut bench, amount)?;
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}

fn read(mut args: impl Iterator<Item = String>) -> Outcome<(Vec<Case>, Amount)> {
    let mut amount = Amount { rounds: 5, idle_secs: 20, print_mb: 32 };
    let mut cases = Vec::new();
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|text| text.parse().ok()).ok_or(format!("{arg} needs a number"));
        match arg.as_str() {
            "--rounds" => amount.rounds = usize::try_from(number()?)?,
            "--idle-seconds" => amount.idle_secs = number()?,
            "--print-mb" => amount.print_mb = usize::try_from(number()?)?,
            _ => {
                let named = CASES.iter().find(|(letter, name, _)| arg == *letter || arg == *name);
                let (_, _, case) = named.ok_or(format!("unknown case `{arg}`; cases are a to f"))?;
                cases.push(*case);
            }
        }
    }
    if cases.is_empty() {
        cases.extend(CASES.map(|(_, _, case)| case));
    }
    Ok((cases, amount))
}
