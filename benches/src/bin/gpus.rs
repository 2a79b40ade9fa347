//! The choice of accelerators: what it costs, and what it is worth.
//!
//!     cargo run --release -p dlrover-benches --bin gpus [CASES] [--rounds N]
//!
//! Cases (all unless some are named): `choice`, `ring`. The rings are simulated: threads that really exchange and add
//! bytes over sockets, each hop paced by the matrix, all slowed down by one factor. Goals are printed and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{Outcome, gpus, machine};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "\ngpus: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let mut rounds = 3;
    let mut cases = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => {
                let number = words.next().and_then(|text| text.parse().ok());
                rounds = number.filter(|rounds| *rounds > 0).ok_or("--rounds needs a number above 0")?;
            }
            "choice" | "ring" => cases.push(word),
            _ => return Err(format!("`{word}` is no case; cases are choice and ring").into()),
        }
    }
    let is_wanted = |case: &str| cases.is_empty() || cases.iter().any(|wanted| wanted == case);
    writeln!(std::io::stdout(), "{}", machine::facts())?;
    if is_wanted("choice") {
        gpus::choice::measure(rounds)?;
    }
    if is_wanted("ring") {
        gpus::all_reduce::measure(rounds)?;
    }
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}
