//! `dlrover-diag rehearse`: the network check on a cluster that is only imagined.
//!
//! [`arguments`] is what it understands, [`settings`] what is asked for, [`report`] what it says.

mod arguments;
mod report;
mod settings;

use std::{io::Write as _, process::ExitCode};

use clap::ArgMatches;
use rules::network_check::rehearsal::rehearse;

pub(super) use self::arguments::{NAME, command};
use self::settings::Settings;
use crate::failure::{FAILED, SUCCEEDED, USAGE};

/// Does it.
pub(super) fn main(arguments: &ArgMatches) -> ExitCode {
    let settings = match Settings::read(arguments) {
        Ok(settings) => settings,
        Err(error) => {
            super::say(format_args!("error: {error}"));
            return ExitCode::from(USAGE);
        }
    };
    let outcome = rehearse(&settings.cluster, settings.policy.clone());
    let text = match settings.json {
        true => report::json(&outcome),
        false => report::table(&settings, &outcome),
    };
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Ok(()) => ExitCode::from(SUCCEEDED),
        // `dlrover-diag rehearse ... | head` is no failure of anyone.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(SUCCEEDED),
        Err(error) => {
            super::say(format_args!("error: cannot write the outcome: {error}"));
            ExitCode::from(FAILED)
        }
    }
}
