//! Warm workers: whether Python workers are forked from a template, and what that imports.

use agent::WarmConfig;
use rules::warm::WarmStart;

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::Flag,
    resolve::{checks::one_of, does_nothing},
};

/// The values of `--warm`.
pub(crate) const WARM: &[&str] = &["off", "restart", "start"];

/// The variable that is its default.
const VARIABLE: &str = "DLROVER_WARM";

/// Templates of torch 2.15, alone and with transformers or lightning, took 0.4 to 0.7 GiB.
const LEAST_LIMIT_KIB: u64 = 2 << 20;

/// Of a large node, the template may have a larger part: one of this.
const PART_OF_NODE: u64 = 50;

pub(super) fn resolve(
    cli: &Cli,
    env: Environment<'_>,
    host: &dyn Host,
    notices: &mut Vec<String>,
) -> Result<Option<WarmConfig>, Invalid> {
    let when = match env.get_filled(VARIABLE) {
        Some(value) if !cli.is_given(Flag::Warm) => {
            let given = || Given::in_variable(VARIABLE, value);
            let known = WARM.iter().find(|name| value == **name);
            known.copied().ok_or_else(|| Invalid::Choice { given: given(), choices: WARM })?
        }
        _ => one_of(cli, Flag::Warm)?,
    };
    let limit_kib = match cli.int(Flag::WarmMemory) {
        None => None,
        Some(mib) => match u64::try_from(mib) {
            Ok(mib @ 1..) => Some(mib.saturating_mul(1024)),
            _ => {
                let range = "a number of MiB, at least 1";
                return Err(Invalid::OutOfRange { given: cli.given(Flag::WarmMemory), range });
            }
        },
    };
    let when = match when {
        "restart" => WarmStart::Restart,
        "start" => WarmStart::Start,
        _ => return Ok(None),
    };
    if cli.is_on(Flag::NoPython) && !cli.is_on(Flag::RunPath) {
        if cli.is_on_the_line(Flag::Warm) {
            notices.push(does_nothing(cli, Flag::Warm, "the workers are not started with Python"));
        }
        return Ok(None);
    }
    let modules = cli.list(Flag::WarmModules);
    let modules: Vec<_> = modules.into_iter().filter(|name| !name.is_empty()).map(Into::into).collect();
    let limit_kib = limit_kib.unwrap_or_else(|| default_limit_kib(host));
    Ok(Some(WarmConfig { when, modules: (!modules.is_empty()).then_some(modules), limit_kib }))
}

/// 2 GiB, or 2 % of the node's memory if that is more.
fn default_limit_kib(host: &dyn Host) -> u64 {
    LEAST_LIMIT_KIB.max(host.memory_kib().unwrap_or(0) / PART_OF_NODE)
}
