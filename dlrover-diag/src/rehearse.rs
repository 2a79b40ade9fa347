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
use self::settings::{Asked, What};
use launcher::failure::{SUCCEEDED, USAGE};

/// Runs it.
pub(super) fn main(arguments: &Arguments) -> ExitCode {
    match Asked::read(arguments) {
        Ok(asked) => super::print(&said(&asked), SUCCEEDED),
        Err(error) => {
            super::say(format_args!("error: {error}"));
            ExitCode::from(USAGE)
        }
    }
}

#[cfg(test)]
fn read(line: &str) -> Result<Asked, settings::Wrong> {
    match crate::parse(&format!("rehearse {line}")) {
        Ok(crate::Subcommand::Rehearse(arguments)) => Asked::read(&arguments),
        other => panic!("{line}: {other:?}"),
    }
}

fn said(asked: &Asked) -> String {
    match &asked.what {
        What::Once(settings) => {
            let outcome = rehearse(&settings.cluster, settings.policy.clone());
            match asked.json {
                true => report::json(settings, &outcome),
                false => report::table(settings, &outcome),
            }
        }
        What::Repeat { template, seed, runs } => many::repeat(template, *seed, *runs, asked.json),
        What::Sweep { policy, runs, are_pairs } => many::sweep(policy, *runs, *are_pairs, asked.json),
    }
}
