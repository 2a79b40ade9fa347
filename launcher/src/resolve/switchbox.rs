//! The switchbox check: DLRover's options, and ours for the probe.

use std::ffi::OsStr;

use diagnosis::switchbox::{Expected, Rate, Settings, check_pairs};
use probes::{SwitchboxProbe, SwitchboxTask, TOOL_VARIABLE};

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::{Flag, SWITCHBOX_PATHS},
    resolve::{checks::one_of, command},
};

/// The variable that names the probe where no option does.
pub const VARIABLE: &str = "DLROVER_SWITCHBOX_PROBE";

/// Options are read whether the check is on or not: a wrong one is a mistake in either case. `None`: it is off.
pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
) -> Result<Option<SwitchboxTask>, Invalid> {
    let pairs = cli.pairs(Flag::BoxPairs);
    let loopback = cli.is_on(Flag::ProbeLoopback);
    check_pairs(&pairs, loopback)
        .map_err(|why| Invalid::BoxPairs { given: cli.given(Flag::BoxPairs), why: why.to_string() })?;
    let min = cli.float(Flag::MinBandwidth).and_then(Rate::minimum);
    let given = || cli.given(Flag::MinBandwidth);
    let min = min.ok_or_else(|| Invalid::SwitchboxRange { given: given(), range: Rate::MINIMUM })?;
    let min_channels = min_channels(cli, pairs.len())?;
    let expected = Expected::parse(one_of(cli, Flag::SwitchboxPath)?)
        .ok_or_else(|| Invalid::Choice { given: cli.given(Flag::SwitchboxPath), choices: SWITCHBOX_PATHS })?;
    if !cli.is_on(Flag::SwitchboxCheck) {
        return Ok(None);
    }
    // The models are filled in on the host, after its accelerators were discovered.
    let (are_pairs_given, models) = (cli.is_given(Flag::BoxPairs), Vec::new());
    let settings = Settings { pairs, are_pairs_given, min, min_channels, expected, models };
    Ok(Some(SwitchboxTask::new(settings, probe(cli, env, host)?, env.get(TOOL_VARIABLE))))
}

/// The default of `--min-channels`: two, or the number of pairs if that is less.
pub fn default_min_channels(pairs: usize) -> u32 {
    if pairs < 2 { 1 } else { 2 }
}

fn min_channels(cli: &Cli, pairs: usize) -> Result<u32, Invalid> {
    let given = || cli.given(Flag::MinChannels);
    let Some(asked) = cli.int(Flag::MinChannels) else { return Ok(default_min_channels(pairs)) };
    if asked < 1 {
        return Err(Invalid::SwitchboxRange { given: given(), range: "a number of good pairs, at least 1" });
    }
    let most = u32::try_from(pairs).unwrap_or(u32::MAX);
    match u32::try_from(asked).ok().filter(|asked| *asked <= most) {
        Some(asked) => Ok(asked),
        None => Err(Invalid::MinChannels { given: given(), pairs }),
    }
}

fn probe(cli: &Cli, env: Environment<'_>, host: &dyn Host) -> Result<SwitchboxProbe, Invalid> {
    let given = (cli.bytes(Flag::SwitchboxProbe), cli.given(Flag::SwitchboxProbe));
    let (command, given) = match env.get_filled(VARIABLE) {
        Some(value) if !cli.is_given(Flag::SwitchboxProbe) => (value, Given::in_variable(VARIABLE, value)),
        // An empty variable is ignored; an empty value on the command line is refused.
        _ if given.0.is_empty() && !cli.is_on_the_line(Flag::SwitchboxProbe) => ("auto".as_ref(), given.1),
        _ => given,
    };
    read_probe(command, env, host).ok_or(Invalid::SwitchboxProbe { given })
}

/// Parses a probe; `None` for one plain name that is not a program, which is more likely a typo.
pub fn read_probe(command: &OsStr, env: Environment<'_>, host: &dyn Host) -> Option<SwitchboxProbe> {
    let is_name =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let is_typo =
        command.to_str().is_some_and(|text| is_name(text) && command::on_path(text, env, host).is_none());
    match SwitchboxProbe::from(command) {
        SwitchboxProbe::Command(_) if is_typo => None,
        probe => Some(probe),
    }
}
