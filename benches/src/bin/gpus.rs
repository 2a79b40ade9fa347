//! The choice of accelerators: its cost, and its effect.
//!
//!     cargo run --profile dist -p dlrover-benches --bin gpus [CASES] [--rounds N]
//!
//! Cases (all unless some are named): `choice`, `ring`. The rings are simulated: threads that really exchange and add
//! bytes over sockets, each hop paced by the matrix, all slowed down by one factor. Goals are printed and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{Outcome, cases::Cases, gpus, machine};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ignored = writeln!(std::io::stderr(), "\ngpus: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let cases = Cases::from_args(&["choice", "ring"], 3)?;
    writeln!(std::io::stdout(), "{}", machine::facts())?;
    if cases.has("choice") {
        gpus::choice::measure(cases.rounds)?;
    }
    if cases.has("ring") {
        gpus::all_reduce::measure(cases.rounds)?;
    }
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}
