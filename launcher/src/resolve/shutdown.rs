//! Signals that stop a run, and the shutdown timeout of its workers.

use std::{str::FromStr, time::Duration};

use nix::sys::signal::Signal;

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    invalid::Invalid,
    options::Flag,
    python_number,
};

/// torchrun's default.
const GRACE: Duration = Duration::from_secs(30);

/// The signals that end the run, and the text that workers find in `TORCHELASTIC_SIGNALS_TO_HANDLE`. A name
/// that is no signal, or one that no program can handle, gets a notice; the run continues, as in torchrun.
pub(super) fn signals(cli: &Cli, notices: &mut Vec<String>) -> Result<(Vec<String>, String), Invalid> {
    let text = cli.text(Flag::SignalsToHandle)?;
    let mut names = Vec::new();
    for name in text.split(',').map(str::trim) {
        match Signal::from_str(name) {
            Ok(Signal::SIGKILL | Signal::SIGSTOP) => {
                notices.push(format!(
                    "`{}`: {name} cannot be handled by a program, and is ignored",
                    cli.given(Flag::SignalsToHandle)
                ));
            }
            Ok(_) if names.iter().any(|known| known == name) => {}
            Ok(_) => names.push(name.to_owned()),
            Err(_) => notices.push(format!(
                "`{}`: '{name}' is not the name of a signal such as SIGTERM, and is ignored",
                cli.given(Flag::SignalsToHandle)
            )),
        }
    }
    Ok((names, text.to_owned()))
}

/// `--shutdown-timeout`, else `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, else 30 s.
pub(super) fn timeout(cli: &Cli, env: Environment<'_>) -> Result<Duration, Invalid> {
    const RANGE: &str = "a whole number of seconds, at least 0 (shutdown_timeout must be non-negative)";
    let (seconds, given) = match cli.int(Flag::ShutdownTimeout) {
        Some(seconds) => (Some(seconds), cli.given(Flag::ShutdownTimeout)),
        None => match env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") {
            None => return Ok(GRACE),
            Some(value) => (
                value.to_str().and_then(python_number::int),
                Given::in_variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", value),
            ),
        },
    };
    // Beyond 32 bits of seconds the wait has no limit.
    let seconds =
        seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(|seconds| seconds.min(u32::MAX.into()));
    seconds.map(Duration::from_secs).ok_or(Invalid::OutOfRange { given, range: RANGE })
}
