//! Where the output of workers goes, and the launcher's events.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use agent::{LogConfig, LogDir, Streams};

use crate::{
    cli::Cli, environment::Environment, host::Host, invalid::Invalid, options::Flag, python_number,
    resolve::redirects,
};

/// Where the launcher's events go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLog {
    /// Nowhere.
    Null,
    /// JSON lines on standard error.
    Console,
}

/// What precedes a tee'd line when no template is given: torchrun's.
const PREFIX: &str = "[${role_name}${local_rank}]:";

pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    local_world_size: u32,
    notices: &mut Vec<String>,
) -> Result<LogConfig, Invalid> {
    let streams = |flag: Flag| -> Result<Vec<Streams>, Invalid> {
        redirects::parse(cli.text(flag)?, local_world_size)
            .map_err(|why| Invalid::Streams { given: cli.given(flag), why })
    };
    let prefix_template = match cli.text(Flag::LogLinePrefixTemplate)? {
        "" => match env.get_filled("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") {
            Some(template) => template.to_string_lossy().into_owned(),
            None => PREFIX.to_owned(),
        },
        template => template.to_owned(),
    };
    Ok(LogConfig {
        dir: log_dir(cli, env, host, notices)?,
        redirects: streams(Flag::Redirects)?,
        tee: streams(Flag::Tee)?,
        prefix_template,
        console_ranks: console_ranks(cli)?,
        stdout_filters: cli.list(Flag::DuplicateStdoutFilters),
        stderr_filters: cli.list(Flag::DuplicateStderrFilters),
        keep_stderr_tail: env.get("DLROVER_STDERR_TAIL").is_none_or(|value| value != "0"),
    })
}

fn log_dir(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    notices: &mut Vec<String>,
) -> Result<LogDir, Invalid> {
    let given = cli.bytes(Flag::LogDir);
    let (dir, given) = if !given.is_empty() {
        (PathBuf::from(given), cli.given(Flag::LogDir))
    } else if let Some(dir) = env.get_filled("DLROVER_LOG_AGENT_DIR") {
        (PathBuf::from(dir), crate::cli::Given::in_variable("DLROVER_LOG_AGENT_DIR", dir))
    } else {
        return Ok(LogDir::Temporary(temporary_dir(env, host, notices)));
    };
    if dir.as_os_str() == "/dev/null" {
        return Ok(LogDir::Nowhere);
    }
    if host.is_file(&dir) { Err(Invalid::LogDirIsFile { given }) } else { Ok(LogDir::At(dir)) }
}

/// The first directory that takes files, in the order of Python's `tempfile`.
fn temporary_dir(env: Environment<'_>, host: &dyn Host, notices: &mut Vec<String>) -> PathBuf {
    let named: Vec<_> = ["TMPDIR", "TEMP", "TMP"]
        .into_iter()
        .filter_map(|name| {
            Some((crate::cli::Given::in_variable(name, env.get_filled(name)?), env.get(name)?))
        })
        .collect();
    let baseline = ["/tmp", "/var/tmp", "/usr/tmp"].map(Path::new);
    let mut candidates = named.iter().map(|(_, dir)| Path::new(*dir)).chain(baseline);
    let Some(place) = candidates.clone().position(|dir| host.takes_files(dir)) else {
        // The first one fails later, with its error.
        return candidates.next().unwrap_or(baseline[0]).to_owned();
    };
    let dir = candidates.nth(place).unwrap_or(baseline[0]).to_owned();
    for (given, _) in named.iter().take(place) {
        notices.push(format!(
            "`{given}` is not a writable directory: logs go to {}; --log-dir chooses another directory",
            dir.display()
        ));
    }
    dir
}

fn console_ranks(cli: &Cli) -> Result<Option<BTreeSet<u32>>, Invalid> {
    let text = cli.text(Flag::LocalRanksFilter)?;
    if text.is_empty() {
        return Ok(None);
    }
    let ranks: Option<Vec<i64>> = text.split(',').map(python_number::int).collect();
    let ranks = ranks.ok_or_else(|| Invalid::LocalRanks { given: cli.given(Flag::LocalRanksFilter) })?;
    // A rank that cannot be, such as -1, hides the others and shows none, as in torchrun.
    Ok(Some(ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).collect()))
}

/// The file that the outcome of the run is written to. One that cannot be written is refused before the run.
pub(super) fn report_json(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
) -> Result<Option<PathBuf>, Invalid> {
    const VARIABLE: &str = "DLROVER_REPORT_JSON";
    let option = cli.bytes(Flag::ReportJson);
    let (path, given) = match env.get_filled(VARIABLE) {
        _ if !option.is_empty() => (PathBuf::from(option), cli.given(Flag::ReportJson)),
        Some(value) => (PathBuf::from(value), crate::cli::Given::in_variable(VARIABLE, value)),
        None => return Ok(None),
    };
    match host.may_replace(&path) {
        Ok(()) => Ok(Some(path)),
        Err(source) => Err(Invalid::Report { given, source }),
    }
}

pub(super) fn event_log(cli: &Cli) -> Result<EventLog, Invalid> {
    match cli.text(Flag::EventLogHandler)? {
        // torchrun's third handler is for its own rendezvous, and null unless an installation adds to it.
        "null" | "dynamic_rendezvous" => Ok(EventLog::Null),
        "console" => Ok(EventLog::Console),
        _ => Err(Invalid::EventLog { given: cli.given(Flag::EventLogHandler) }),
    }
}
