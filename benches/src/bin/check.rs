//! What a network check costs: a whole small job with one, the verdict on a silent node, the decision by size.
//!
//!     cargo build --profile dist -p launcher -p dlrover-benches --bins
//!     [TORCHRUN=.../bin/torchrun] target/dist/check [CASES] [--rounds N]
//!
//! Cases (all unless some are named): `job`, `silent`, `decision`. TORCHRUN, which checks nothing, is measured at the
//! same job. Goals are printed with the figures and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{
    Outcome,
    cases::Cases,
    check,
    end::exit_code,
    launcher::{self, Bench},
    machine,
};

fn main() -> ExitCode {
    exit_code("check", run())
}

fn run() -> Outcome<()> {
    let cases = Cases::from_args(&["job", "silent", "decision"], 5)?;
    let mut bench = Bench::new()?;
    launcher::watch_interrupt()?;
    writeln!(std::io::stdout(), "{}\n{}", machine::facts(), bench.about())?;
    if cases.has("job") {
        check::job::measure(&mut bench, cases.rounds)?;
    }
    if cases.has("silent") {
        check::silent::measure(&mut bench, cases.rounds)?;
    }
    if cases.has("decision") {
        check::decision::measure()?;
    }
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}
