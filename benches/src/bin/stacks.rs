//! The stacks of a job of 64 ranks: dump and merge by hand, and in a hang; what workers pay for it.
//!
//!     cargo build --profile dist -p launcher -p dlrover-diag -p dlrover-benches --bins
//!     [PY_SPY=.../bin/py-spy] target/dist/stacks [CASES] [--ranks N] [--rounds N]
//!
//! Cases (all unless some are named):
//!
//! ```text
//! dump    dlrover-diag dump of a job, beside py-spy for each of its processes
//! merge   dlrover-diag stacks on the files of one node, of 8 nodes, and of 16 times as many ranks
//! hang    the job hangs, and the launcher takes the stacks: from the timeout to its line
//! pause   how long a worker does not run while stacks are taken
//! armed   time and CPU time of steps with hang diagnosis and without, and CPU time of the launcher
//! ```
//!
//! Jobs are real ones, of `dlrover-run --standalone` and a script of Python's standard library; PYTHON_EXEC names the
//! interpreter. A dump that lacks the stack of a rank, a hang that names another rank than the odd one, and a process
//! that is left behind end the bench with exit code 1. Goals are printed with the figures and never asserted.

use std::{io::Write as _, process::ExitCode};

use dlrover_benches::{
    Outcome,
    end::exit_code,
    launcher, machine,
    stack_dumps::{self, Amount},
};

fn main() -> ExitCode {
    exit_code("stacks", run())
}

fn run() -> Outcome<()> {
    let amount = Amount::of(std::env::args().skip(1))?;
    launcher::watch_interrupt()?;
    writeln!(std::io::stdout(), "{}", machine::facts())?;
    stack_dumps::measure(amount)?;
    writeln!(std::io::stdout(), "\n{} at the end", machine::load())?;
    Ok(())
}
