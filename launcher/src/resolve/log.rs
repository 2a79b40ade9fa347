//! The launcher's own log: `--log-format`, `-q` and `-v`.

use agent::{LogFormat, LogStyle};
use tracing::Level;

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    invalid::Invalid,
    options::Flag,
    resolve::checks::one_of,
};

/// The variable that names the form of log lines, for launcher and job master.
pub(crate) const FORMAT_VARIABLE: &str = "DLROVER_LOG_FORMAT";

/// The forms of log lines.
pub(crate) const FORMATS: &[&str] = &["text", "json"];

/// The log of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPlan {
    /// The form of its lines.
    pub style: LogStyle,
    /// The level of the log of its insides that `-q` or `-v` sets; `None`: neither is given.
    pub level: Option<Level>,
}

impl LogPlan {
    /// `-q`, and how often `-v`.
    pub(crate) fn new(format: LogFormat, is_quiet: bool, verbose: i64) -> Self {
        let level = match verbose {
            _ if is_quiet => Some(Level::ERROR),
            ..=0 => None,
            1 => Some(Level::INFO),
            2.. => Some(Level::DEBUG),
        };
        Self { style: LogStyle { format, is_quiet }, level }
    }
}

pub(super) fn resolve(cli: &Cli, env: Environment<'_>) -> Result<LogPlan, Invalid> {
    let format = match env.get_filled(FORMAT_VARIABLE) {
        Some(value) if !cli.is_given(Flag::LogFormat) => {
            let given = || Given::in_variable(FORMAT_VARIABLE, value);
            format_of(&value.to_string_lossy())
                .ok_or_else(|| Invalid::Choice { given: given(), choices: FORMATS })?
        }
        _ => format_of(one_of(cli, Flag::LogFormat)?).unwrap_or_default(),
    };
    let (quiet, verbose) = (cli.is_on(Flag::Quiet), cli.int(Flag::Verbose).unwrap_or_default().max(0));
    // The command line takes precedence over the environment.
    let (quiet, verbose) = match (cli.is_on_the_line(Flag::Quiet), cli.is_on_the_line(Flag::Verbose)) {
        (true, false) => (quiet, 0),
        (false, true) => (false, verbose),
        _ if quiet && verbose > 0 => return Err(Invalid::QuietAndVerbose),
        _ => (quiet, verbose),
    };
    Ok(LogPlan::new(format, quiet, verbose))
}

/// The form of this name.
pub(crate) fn format_of(name: &str) -> Option<LogFormat> {
    match name {
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    }
}
