//! `dlrover-diag rehearse`: the network check on a cluster that is only imagined.

use std::process::ExitCode;

use clap::{ArgMatches, Command};

/// What it is called.
pub(super) const NAME: &str = "rehearse";

/// What it understands.
pub(super) fn command() -> Command {
    Command::new(NAME).about("Try the decisions of the network check on an imagined cluster")
}

/// Does it.
pub(super) fn main(_arguments: &ArgMatches) -> ExitCode {
    ExitCode::SUCCESS
}
