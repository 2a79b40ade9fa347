//! The launcher: argv, environment, messages, exit codes.
//!
//! Read first: [`mod@entry`], which calls the others in order: `argv` (parses options as argparse does),
//! `cli` (options over `PET_*`), `resolve` (to the configuration of the agent). The table of options is
//! in `options`.
//!
//! Public are [`main`] and [`master_main`] for the programs, [`mod@entry`], [`help`] and [`host`] for what measures and
//! fuzzes them, and what `dlrover-diag` shares: the grammar and defaults of options ([`box_pairs`], [`numbers`],
//! [`options::SWITCHBOX_PATHS`], [`resolve::switchbox`], [`resolve::permille`]), the discovery of accelerators
//! ([`gpu_choice`]), [`script_of`] a command line, [`environment`], and how errors and exit codes are reported ([`clap_error`], [`failure`]).

mod accelerators;
mod activity;
mod argv;
mod child_failed;
mod cli;
mod dry_run;
mod embedded;
mod endpoint_listener;
mod events;
mod host_names;
mod invalid;
mod loopback;
mod metrics_compat;
mod numa;
mod open_files;
mod open_job;
mod port_mux;
mod python_number;
mod remedy;
mod rendezvous;
mod run;
mod run_report;
mod shadowed;
mod telemetry;
#[cfg(test)]
mod testing;
mod timed_write;
mod token_in_environment;
mod usage;
mod wrap;

pub mod box_pairs;
pub mod clap_error;
pub mod completion;
pub mod endpoint;
pub mod entry;
pub mod environment;
pub mod failure;
pub mod gpu_choice;
pub mod help;
pub mod host;
pub mod job_token;
pub mod master_main;
pub mod numbers;
pub mod options;
pub mod resolve;
pub mod status_socket;
pub mod version;

pub use argv::script_of;
pub use box_pairs::BoxPair;

use std::{io::Write as _, process::ExitCode};

use entry::{Action, entry};

/// What was asked for cannot be printed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
struct CannotPrint(#[source] std::io::Error);

/// `dlrover-run`: reads argv and the environment, runs, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    // Before anything else: this process may be a probe of another launcher's.
    if let Some(code) = probes::run_if_probe() {
        return code;
    }
    // Or its saver.
    if let Some(code) = saver::run_if_saver() {
        return code;
    }
    let args: Vec<_> = std::env::args_os().collect();
    let env: Vec<_> = std::env::vars_os().collect();
    // SAFETY: no thread has been started yet, and the environment was copied.
    unsafe { token_in_environment::forget() };
    let own_error_file = failure::own_error_file(&env);
    match entry(&args, env, &host::ThisHost) {
        Action::Run(plan) => run::run(*plan),
        Action::Print { text } => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            // `dlrover-run --help | head` is not a failure.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(source) => failure::cannot_run(&CannotPrint(source)),
        },
        Action::Refused { message, exit_code, usage } => {
            if let Some(usage) = usage {
                failure::print_line(usage);
            }
            failure::print_line(format_args!("dlrover-run: error: {message}"));
            // A command line that cannot be parsed leaves no record, as with argparse.
            let target = own_error_file.as_deref().filter(|_| exit_code == failure::FAILED);
            if let Err(error) = failure::record_own(&message, target) {
                failure::print_line(format_args!("dlrover-run: {}", rules::chain(&error)));
            }
            ExitCode::from(exit_code)
        }
    }
}
