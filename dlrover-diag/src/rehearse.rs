//! `dlrover-diag rehearse`: the network check on a simulated cluster.
//!
//! | question | file |
//! |---|---|
//! | its arguments | `arguments` |
//! | the requested rehearsals | `settings` |
//! | what the check did not find, and which healthy nodes it blames | `truth` |
//! | what a job would do after it | `job` |
//! | the report of one rehearsal | `report` |
//! | how many are made and counted | `many` |

mod arguments;
mod job;
mod many;
mod report;
mod settings;
mod truth;
mod words;

use std::process::ExitCode;

use diagnosis::network_check::rehearsal::rehearse;

pub(super) use self::arguments::Arguments;
use self::settings::{Mode, Request};
use launcher::failure::{SUCCEEDED, USAGE};

/// Runs it.
pub(super) fn main(arguments: &Arguments) -> ExitCode {
    match Request::read(arguments) {
        Ok(request) => super::print(&said(&request), SUCCEEDED),
        Err(error) => {
            super::log_line(format_args!("error: {error}"));
            ExitCode::from(USAGE)
        }
    }
}

#[cfg(test)]
fn read(line: &str) -> Result<Request, settings::Wrong> {
    match crate::parse(&format!("rehearse {line}")) {
        Ok(crate::Subcommand::Rehearse(arguments)) => Request::read(&arguments),
        other => panic!("{line}: {other:?}"),
    }
}

fn said(request: &Request) -> String {
    match &request.mode {
        Mode::Once(settings) => {
            let outcome = rehearse(&settings.cluster, settings.policy.clone());
            match request.json {
                true => report::json(settings, &outcome),
                false => report::table(settings, &outcome),
            }
        }
        Mode::Repeat { template, seed, runs } => many::repeat(template, *seed, *runs, request.json),
        Mode::Sweep { policy, runs, are_pairs } => many::sweep(policy, *runs, *are_pairs, request.json),
    }
}
