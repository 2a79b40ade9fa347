//! `dlrover-diag`: looks into a cluster, outside any job. One file a subcommand.

mod gpus;
mod pair;
mod rehearse;
mod switchbox;
mod table;
mod topo;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use agent::plain;
use clap::Command;

use launcher::{
    failure::{FAILED, USAGE, tell},
    misread,
};

/// `dlrover-diag`: does what its subcommand says and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    // Before anything else: this process may be a probe.
    if let Some(code) = probes::run_if_probe() {
        return code;
    }
    let arguments = match command().try_get_matches_from(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => return misread::answer("dlrover-diag", error),
    };
    match arguments.subcommand() {
        Some((gpus::NAME, arguments)) => gpus::main(arguments),
        Some((pair::NAME, arguments)) => pair::main(arguments),
        Some((rehearse::NAME, arguments)) => rehearse::main(arguments),
        Some((topo::NAME, arguments)) => topo::main(arguments),
        Some((switchbox::NAME, arguments)) => switchbox::main(arguments),
        _ => {
            say(format_args!("error: a subcommand is needed; see dlrover-diag --help"));
            ExitCode::from(USAGE)
        }
    }
}

/// What `dlrover-diag` understands.
fn command() -> Command {
    Command::new("dlrover-diag")
        .about("Looks into a cluster, outside any job.")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(gpus::command())
        .subcommand(pair::command())
        .subcommand(rehearse::command())
        .subcommand(topo::command())
        .subcommand(switchbox::command())
}

fn say(words: impl std::fmt::Display) {
    tell(format_args!("dlrover-diag: {words}"));
}

/// A line, or several, on standard output, in words that move no cursor: other ends and tools of vendors have a say.
fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{}", plain(text))
}

/// Prints what was asked for; gives `code`, or that of a failure when it cannot be written. A reader that has seen
/// enough (`| head`) is no failure of anyone.
fn print(text: &str, code: u8) -> ExitCode {
    match line(text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("error: cannot write the outcome: {error}"));
            ExitCode::from(FAILED)
        }
        _ => ExitCode::from(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        command().debug_assert();
    }
}
