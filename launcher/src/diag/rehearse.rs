//! `dlrover-diag rehearse`: the network check on a cluster that is only imagined.
//!
//! [`arguments`] is what it understands, [`settings`] what is asked for, [`report`] what it says, [`missed`] what the
//! check did not find.

mod arguments;
mod missed;
mod report;
mod settings;

use std::process::ExitCode;

use clap::ArgMatches;
use rules::network_check::rehearsal::rehearse;

pub(super) use self::arguments::{NAME, command};
use self::settings::Settings;
use crate::failure::{SUCCEEDED, USAGE};

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
        true => report::json(&settings, &outcome),
        false => report::table(&settings, &outcome),
    };
    super::print(&text, SUCCEEDED)
}
