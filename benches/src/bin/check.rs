//! What a network check costs: a whole small job with one, the verdict on a silent node, the decision by size.
//!
//!     cargo build --release -p launcher -p dlrover-benches --bins
//!     [TORCHRUN=.../bin/torchrun] target/release/check [CASES] [--rounds N]
//!
//! Cases (all unless some are named): `job`, `silent`, `decision`. TORCHRUN, which checks nothing, is measured at the
//! same job. Goals are printed beside the figures and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{
    Outcome, check,
    launcher::{self, Bench},
    machine,
};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "\ncheck: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let mut rounds = 5;
    let mut cases = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => {
                let number = words.next().and_then(|text| text.parse().ok());
                rounds = number.filter(|rounds| *rounds > 0).ok_or("--rounds needs a number above 0")?;
            }
            "job" | "silent" | "decision" => cases.push(word),
            _ => return Err(format!("`{word}` is no case; cases are job, silent and decision").into()),
        }
    }
    let is_wanted = |case: &str| cases.is_empty() || cases.iter().any(|wanted| wanted == case);
    let mut bench = Bench::new()?;
    launcher::watch_interrupt()?;
    writeln!(std::io::stdout(), "{}\n{}", machine::facts(), bench.about())?;
    if is_wanted("job") {
        check::job::measure(&mut bench, rounds)?;
    }
    if is_wanted("silent") {
        check::silent::measure(&mut bench, rounds)?;
    }
    if is_wanted("decision") {
        check::decision::measure()?;
    }
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}
