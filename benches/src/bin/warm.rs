//! Warm workers: what a person waits for after a start and after a fault, beside torchrun and beside starts without a
//! template.
//!
//!     cargo build --profile dist -p launcher -p dlrover-benches --bins
//!     TORCH_PYTHON=.../bin/python TORCHRUN=.../bin/torchrun target/dist/warm [--rounds N] [--kills N] [--ranks N,...]
//!         [--device cpu|cuda] [--flash packaging/wheel/python]
//!
//! The job is a DDP training on gloo, from a checkpoint after a restart; it needs torch. With `--device cuda` all ranks
//! use the first device; one rank alone uses NCCL, which does not let two share a device. With `--flash`, which names
//! the directory of this project's Python package, ranks save to memory and restore from it; torchrun is left out
//! then. A try of more than 60 s counts as hung. Goals are printed with the figures and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{
    Outcome,
    end::exit_code,
    launcher::{self, Bench},
    machine, warm_starts,
};

fn main() -> ExitCode {
    exit_code("warm", run())
}

fn run() -> Outcome<()> {
    let amount = warm_starts::amount(std::env::args().skip(1))?;
    let python = warm_starts::python()?;
    let mut bench = Bench::new()?;
    launcher::watch_interrupt()?;
    writeln!(std::io::stdout(), "{}\n{}", machine::facts(), bench.about())?;
    warm_starts::measure(&mut bench, &python, &amount)?;
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}
