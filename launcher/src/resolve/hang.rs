//! Hang detection: when the job counts as hanging, what follows, and where the stacks go.

use std::time::Duration;

use agent::{LogConfig, LogDir};
use master::StackFolder;
use rules::hang::{HangSources, HangTerms, OnHang};

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    invalid::Invalid,
    options::Flag,
    python_number,
    resolve::{checks::one_of, rdzv_conf},
};

/// The values of `--on-hang`.
pub(crate) const ON_HANG: &[&str] = &["dump", "restart", "exit"];

/// The values of `--progress`.
pub(crate) const PROGRESS: &[&str] = &["auto", "declared"];

/// xpu_timer's variable for the timeout.
const TIMEOUT_VARIABLE: &str = "XPU_TIMER_HANG_TIMEOUT";

/// xpu_timer's variable for the directory of stacks, and its default.
const FOLDER_VARIABLE: &str = "XPU_TIMER_TIMELINE_PATH";
const DEFAULT_FOLDER: &str = "/root/timeline";

/// Shorter ones are those of a slow step.
const SHORTEST: Duration = Duration::from_millis(100);

/// The terms of hang detection; `None`: it is off.
pub(super) fn terms(cli: &Cli, env: Environment<'_>) -> Result<Option<HangTerms>, Invalid> {
    let Some(timeout) = timeout(cli, env)? else { return Ok(None) };
    let grace = rdzv_conf::seconds(cli.float(Flag::HangGrace).unwrap_or_default());
    let range = "a non-negative number of seconds";
    let grace = grace.ok_or_else(|| Invalid::OutOfRange { given: cli.given(Flag::HangGrace), range })?;
    // A longer timeout does not require that both are given.
    let grace = if cli.is_given(Flag::HangGrace) { grace } else { grace.max(timeout) };
    if grace < timeout {
        let range = "a number of seconds, at least that of --hang-timeout (if not given: \
                     XPU_TIMER_HANG_TIMEOUT, else 300)";
        return Err(Invalid::OutOfRange { given: cli.given(Flag::HangGrace), range });
    }
    let on_hang = match one_of(cli, Flag::OnHang)? {
        "restart" => OnHang::Restart,
        "exit" => OnHang::Exit,
        _ => OnHang::Dump,
    };
    Ok(Some(HangTerms { timeout, grace, sources: sources(cli)?, on_hang }))
}

/// Whether a timeout was given, by the option or the variable.
pub(super) fn is_asked_for(cli: &Cli, env: Environment<'_>) -> bool {
    cli.is_given(Flag::HangTimeout) || env.get_filled(TIMEOUT_VARIABLE).is_some()
}

/// The option, else xpu_timer's variable, else 300 s. 0 turns it off.
fn timeout(cli: &Cli, env: Environment<'_>) -> Result<Option<Duration>, Invalid> {
    let (value, given) = match env.get_filled(TIMEOUT_VARIABLE) {
        Some(value) if !cli.is_given(Flag::HangTimeout) => {
            (value, Given::in_variable(TIMEOUT_VARIABLE, value))
        }
        _ => (cli.bytes(Flag::HangTimeout), cli.given(Flag::HangTimeout)),
    };
    let number = value.to_str().and_then(python_number::float).and_then(rdzv_conf::seconds);
    let range = "a number of seconds, at least 0.1, or 0 for no hang detection";
    match number {
        Some(Duration::ZERO) => Ok(None),
        Some(timeout) if timeout >= SHORTEST => Ok(Some(timeout)),
        _ => Err(Invalid::OutOfRange { given, range }),
    }
}

fn sources(cli: &Cli) -> Result<HangSources, Invalid> {
    let mut sources = HangSources::default();
    for source in cli.text(Flag::HangSource)?.split(',').map(str::trim) {
        match source {
            "progress" => {}
            "output" => sources.output = true,
            "cpu" => sources.cpu = true,
            _ => {
                let range = "a list of progress, output and cpu";
                return Err(Invalid::OutOfRange { given: cli.given(Flag::HangSource), range });
            }
        }
    }
    Ok(sources)
}

/// Whether Python workers count their optimizer steps by themselves.
pub(super) fn is_progress_automatic(cli: &Cli) -> Result<bool, Invalid> {
    Ok(one_of(cli, Flag::Progress)? == "auto")
}

/// The directory for stacks that the environment names, or the usual one, in which each job has its own.
#[must_use]
pub fn stack_folder(env: Environment<'_>) -> StackFolder {
    match env.get_filled(FOLDER_VARIABLE) {
        Some(path) => StackFolder::Named(path.into()),
        None => StackFolder::Shared(DEFAULT_FOLDER.into()),
    }
}

/// Where stacks are written: the first that takes files. `other`: where the log is.
pub(crate) fn folders(env: Environment<'_>, other: Option<StackFolder>) -> Vec<StackFolder> {
    std::iter::once(stack_folder(env)).chain(other).collect()
}

/// The log directory, which several jobs may have.
pub(super) fn log_folder(logs: &LogConfig) -> Option<StackFolder> {
    match &logs.dir {
        LogDir::At(dir) => Some(StackFolder::Shared(dir.clone())),
        LogDir::Temporary(dir) => Some(StackFolder::Shared(dir.join("dlrover-stacks"))),
        LogDir::Nowhere => None,
    }
}
