//! The end of a bench.

use std::{io::Write as _, process::ExitCode};

use crate::Outcome;

/// The exit code of a bench; why it failed is printed.
#[must_use]
pub fn exit_code(bench: &str, outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ignored = writeln!(std::io::stderr(), "\n{bench}: {error}");
            ExitCode::FAILURE
        }
    }
}
