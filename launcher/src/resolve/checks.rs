//! The checks before workers start: DLRover's options.

use std::{ffi::OsString, time::Duration};

use diagnosis::network_check::{Deadlines, OnBadPath, Tainting};
use probes::SwitchboxTask;
use rules::check_terms::{CheckTerms, OnInconclusive};

use crate::{
    cli::{Cli, Given},
    environment::Environment,
    host::Host,
    invalid::Invalid,
    options::{Flag, Kind, OPTIONS},
    python_number,
    resolve::{does_nothing, nodes::Nodes, rdzv_conf, switchbox},
};

/// How long the user's own program may take for one test, as DLRover's check does.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(180);

/// What is checked before workers start, and what counts as a fault.
#[derive(Debug, Clone)]
pub struct Checks {
    /// How the switchbox's links are checked too, when they are.
    pub switchbox: Option<SwitchboxTask>,
    /// The kind of accelerator.
    pub accelerator: String,
    /// What the nodes agree on about their checks; `None`: nodes are not checked.
    pub terms: Option<CheckTerms>,
    /// An accelerator is busy above this, in thousandths of its memory.
    pub busy_permille: u32,
    /// The user's own program for pairs.
    pub command: Option<OsString>,
}

pub(super) fn resolve(
    cli: &Cli,
    nodes: &Nodes,
    env: Environment<'_>,
    host: &dyn Host,
    notices: &mut Vec<String>,
) -> Result<Checks, Invalid> {
    let precheck = one_of(cli, Flag::Precheck)?;
    let comm_perf = cli.is_on(Flag::CommPerfTest) || precheck == "2";
    let network = cli.is_on(Flag::NetworkCheck) || precheck != "0" || comm_perf || nodes.wants_network_check;
    for flag in [Flag::ExcludeStraggler, Flag::SwitchboxCheck] {
        if cli.is_on(flag) && !network {
            return Err(Invalid::NeedsNetworkCheck { given: cli.given(flag) });
        }
    }
    // dlrover's command lines have some of these options without the check, so they are not refused.
    for (check, is_on) in
        [(Flag::NetworkCheck, network), (Flag::SwitchboxCheck, cli.is_on(Flag::SwitchboxCheck))]
    {
        let why = format!("requires {}", check.dashed());
        let unused = OPTIONS.iter().filter(|spec| spec.requires == Some(check) && !is_on);
        let given = unused.filter(|spec| cli.is_on_the_line(spec.flag));
        notices.extend(given.map(|spec| does_nothing(cli, spec.flag, &why)));
    }
    let switchbox = switchbox::resolve(cli, env, host)?;
    let busy_percent = cli.float(Flag::BusyGpuThreshold).unwrap_or_default();
    if !(0.0..=100.0).contains(&busy_percent) {
        let range = "a share of an accelerator's memory from 0 to 100 percent";
        return Err(Invalid::OutOfRange { given: cli.given(Flag::BusyGpuThreshold), range });
    }
    Ok(Checks {
        switchbox,
        busy_permille: permille(busy_percent / 100.0),
        accelerator: one_of(cli, Flag::Accelerator)?.to_owned(),
        terms: network.then(|| terms(cli, env, comm_perf)).transpose()?,
        command: Some(cli.bytes(Flag::CheckCommand)).filter(|it| !it.is_empty()).map(ToOwned::to_owned),
    })
}

/// What the nodes agree on about their checks.
fn terms(cli: &Cli, env: Environment<'_>, measures_bandwidth: bool) -> Result<CheckTerms, Invalid> {
    let has_command = !cli.bytes(Flag::CheckCommand).is_empty();
    let out_of = |flag, range| Invalid::OutOfRange { given: cli.given(flag), range };
    let ratio = cli.float(Flag::StragglerRatio).unwrap_or_default();
    if !(1.001..=1000.0).contains(&ratio) {
        return Err(out_of(Flag::StragglerRatio, "a ratio from 1.001 to 1000"));
    }
    let rounds = cli.int(Flag::CheckMaxRounds).and_then(|rounds| u32::try_from(rounds).ok());
    let rounds = rounds.filter(|rounds| (1..=1000).contains(rounds));
    let ttl = rdzv_conf::seconds(cli.float(Flag::CheckTtl).unwrap_or_default());
    let deadlines = match timeout(cli, env)? {
        Some(hard) if has_command => Deadlines::command(hard),
        None if has_command => Deadlines::command(COMMAND_TIMEOUT),
        Some(hard) => {
            let native = Deadlines::native();
            Deadlines { floor: native.floor.min(hard), hard, ..native }
        }
        None => Deadlines::native(),
    };
    Ok(CheckTerms {
        exclude_straggler: cli.is_on(Flag::ExcludeStraggler),
        straggler_permille: permille(ratio),
        max_rounds: rounds
            .ok_or_else(|| out_of(Flag::CheckMaxRounds, "a number of rounds from 1 to 1000"))?,
        deadlines,
        has_command,
        measures_bandwidth,
        reuse_for: ttl.ok_or_else(|| out_of(Flag::CheckTtl, "a non-negative number of seconds"))?,
        on_inconclusive: match one_of(cli, Flag::OnInconclusive)? {
            "proceed" => OnInconclusive::Proceed,
            "relaunch" => OnInconclusive::Relaunch,
            _ => OnInconclusive::Fail,
        },
        taint_flaky: match one_of(cli, Flag::TaintFlaky)? {
            "now" => Tainting::Now,
            "never" => Tainting::Never,
            _ => Tainting::Confirmed,
        },
        on_bad_path: match one_of(cli, Flag::OnBadPath)? {
            "fail" => OnBadPath::Fail,
            "proceed" => OnBadPath::Proceed,
            _ => OnBadPath::Exclude,
        },
    })
}

/// The option, else the variable that DLRover reads; `None` where neither is given.
fn timeout(cli: &Cli, env: Environment<'_>) -> Result<Option<Duration>, Invalid> {
    const VARIABLE: &str = "NETWORK_CHECK_TIMEOUT";
    let given = cli.bytes(Flag::NetworkCheckTimeout);
    let (value, given) = match env.get_filled(VARIABLE) {
        _ if !given.is_empty() => (given, cli.given(Flag::NetworkCheckTimeout)),
        Some(value) => (value, Given::in_variable(VARIABLE, value)),
        None => return Ok(None),
    };
    let number = value.to_str().and_then(python_number::float);
    let seconds = number.and_then(rdzv_conf::seconds).filter(|it| *it >= Duration::from_millis(100));
    let range = "a number of seconds, at least 0.1";
    seconds.map(Some).ok_or(Invalid::OutOfRange { given, range })
}

/// Thousandths. The caller has checked the range.
pub fn permille(ratio: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range; casts saturate")]
    let thousandths = (ratio * 1000.0).round() as u32;
    thousandths
}

/// One of the option's choices, also when it comes from the environment.
pub(super) fn one_of(cli: &Cli, flag: Flag) -> Result<&str, Invalid> {
    let text = cli.text(flag)?;
    match flag.spec().kind {
        Kind::Choice(choices) if !choices.contains(&text) => {
            Err(Invalid::Choice { given: cli.given(flag), choices })
        }
        _ => Ok(text),
    }
}
