//! `dlrover-diag`: inspects a cluster, and running jobs. A module for each subcommand, named beside it in
//! `Subcommand`.

mod dump;
mod gpus;
mod merge;
mod pair;
mod rehearse;
mod stack_folder;
mod status;
mod switchbox;
mod table;
mod topo;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use agent::plain;
use clap::Parser;

use launcher::{
    clap_error, completion,
    environment::Environment,
    failure::{FAILED, print_line},
    version::VERSION,
};

/// Inspects running jobs and the cluster they run on
#[derive(Debug, Parser)]
#[command(name = "dlrover-diag", version = VERSION, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    subcommand: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Status(status::Arguments),
    Events(status::EventArguments),
    Dump(dump::Arguments),
    Stacks(merge::Arguments),
    Gpus(gpus::Arguments),
    Pair(pair::Arguments),
    Rehearse(Box<rehearse::Arguments>),
    Topo(topo::Arguments),
    Switchbox(switchbox::Arguments),
    /// Prints a completion script for a shell
    Completion {
        shell: completion::Shell,
    },
}

/// All subcommands and arguments, as `clap` knows them.
#[must_use]
pub fn command() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}

/// `dlrover-diag`: runs its subcommand and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    // Before anything else: this process may be a probe.
    if let Some(code) = probes::run_if_probe() {
        return code;
    }
    let env: Vec<_> = std::env::vars_os().collect();
    let env = Environment(&env);
    match Arguments::try_parse() {
        Err(error) => clap_error::answer("dlrover-diag", error),
        Ok(Arguments { subcommand }) => match subcommand {
            Subcommand::Status(arguments) => status::main(&arguments, env),
            Subcommand::Events(arguments) => status::events(&arguments, env),
            Subcommand::Dump(arguments) => dump::main(&arguments, env),
            Subcommand::Stacks(arguments) => merge::main(&arguments, env),
            Subcommand::Gpus(arguments) => gpus::main(&arguments, env),
            Subcommand::Pair(arguments) => pair::main(&arguments),
            Subcommand::Rehearse(arguments) => rehearse::main(&arguments),
            Subcommand::Topo(arguments) => topo::main(&arguments, env),
            Subcommand::Switchbox(arguments) => switchbox::main(&arguments, env),
            Subcommand::Completion { shell } => completion::answer(shell, command()),
        },
    }
}

/// The arguments of one subcommand, for tests.
#[cfg(test)]
fn parse(line: &str) -> Result<Subcommand, clap::Error> {
    let words = std::iter::once("dlrover-diag").chain(line.split_whitespace());
    Arguments::try_parse_from(words).map(|arguments| arguments.subcommand)
}

fn log_line(words: impl std::fmt::Display) {
    print_line(format_args!("dlrover-diag: {words}"));
}

/// Prints a line, or several, on standard output, without control characters of peers and tools.
fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{}", plain(text))
}

/// [`print_painted`], without control characters of peers and tools.
fn print(text: &str, code: u8) -> ExitCode {
    print_painted(&plain(text), code)
}

/// Prints the result as it is, with its colours, and returns `code`, or the code of a failure when it cannot be written.
/// A closed pipe (`| head`) is not a failure.
fn print_painted(text: &str, code: u8) -> ExitCode {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            log_line(format_args!("error: cannot write to standard output: {error}"));
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
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn the_help_is_pleasant_to_read() {
        let mut command = <Arguments as clap::CommandFactory>::command().term_width(100);
        command.build();
        let mut text = command.render_help().to_string();
        for subcommand in command.get_subcommands_mut().filter(|it| it.get_name() != "help") {
            let help = subcommand.render_help();
            text.push_str(&format!("\n---- {}\n{help}", subcommand.get_name()));
        }
        insta::assert_snapshot!(text);
    }
}
