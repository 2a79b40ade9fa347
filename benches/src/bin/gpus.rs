//! The choice of accelerators: its cost, and its effect.
//!
//!     cargo run --profile dist -p dlrover-benches --bin gpus [CASES] [--rounds N]
//!
//! Cases (all unless some are named): `choice`, `ring`. The rings are simulated: threads that really exchange and add
//! bytes over sockets, each hop paced by the matrix, all slowed down by one factor. Goals are printed and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{Outcome, cases::Cases, end::exit_code, gpus, machine};

fn main() -> ExitCode {
    exit_code("gpus", run())
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
