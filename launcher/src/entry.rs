//! The entry point: from argv and the environment to a plan, a text to print, or a refusal.

use std::ffi::OsString;

use crate::{
    cli::{CannotRead, Request},
    completion,
    dry_run::{self, DryHost},
    environment::Environment,
    failure::{FAILED, USAGE},
    help,
    host::Host,
    invalid::Invalid,
    options::Flag,
    resolve::{self, LaunchPlan},
    shadowed,
    usage::UsageError,
};

/// What `main` does next.
#[derive(Debug)]
pub enum Action {
    /// Run this.
    Run(Box<LaunchPlan>),
    /// Write this to standard output, and exit 0.
    Print {
        /// Ends with a line end.
        text: String,
    },
    /// Write `usage` if there is one, then `dlrover-run: error: <message>`, to standard error, and exit.
    Refused {
        /// One sentence, on one line unless the user's values have line ends.
        message: String,
        /// 2 for a command line that cannot be parsed, 1 for anything else.
        exit_code: u8,
        /// The usage line.
        usage: Option<String>,
    },
}

/// Reads a command line (`args[0]` is the program) and resolves it over the environment.
#[must_use]
pub fn entry(args: &[OsString], env: Vec<(OsString, OsString)>, host: &dyn Host) -> Action {
    let words = args.get(1..).unwrap_or_default();
    match Request::read(words, Environment(&env)) {
        Ok(Request::Help) => Action::Print { text: help::text() },
        Ok(Request::Version) => Action::Print { text: help::version() },
        Ok(Request::Completion(shell)) => Action::Print { text: completion::script(&shell) },
        Ok(Request::Run(cli)) if cli.is_on(Flag::DryRun) => {
            let given = env.clone();
            match resolve::resolve(cli, env, &DryHost(host)) {
                Ok(plan) => match dry_run::text(&plan, &given) {
                    Ok(text) => Action::Print { text },
                    Err(error) => {
                        Action::Refused { message: error.to_string(), exit_code: FAILED, usage: None }
                    }
                },
                Err(invalid) => Action::from(invalid),
            }
        }
        Ok(Request::Run(cli)) => {
            let shadowed =
                args.first().and_then(|program| shadowed::notice(program, Environment(&env), host));
            match resolve::resolve(cli, env, host) {
                Ok(mut plan) => {
                    plan.notices.extend(shadowed);
                    Action::Run(Box::new(plan))
                }
                Err(invalid) => Action::from(invalid),
            }
        }
        Err(CannotRead::Usage(error)) => Action::from(error),
        Err(CannotRead::Invalid(invalid)) => Action::from(invalid),
    }
}

impl From<UsageError> for Action {
    fn from(error: UsageError) -> Self {
        Self::Refused { message: error.to_string(), exit_code: USAGE, usage: Some(help::USAGE.to_owned()) }
    }
}

impl From<Invalid> for Action {
    fn from(invalid: Invalid) -> Self {
        let is_usage = invalid.is_usage();
        Self::Refused {
            message: invalid.to_string(),
            exit_code: if is_usage { USAGE } else { FAILED },
            usage: is_usage.then(|| help::USAGE.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
