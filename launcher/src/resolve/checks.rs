//! The checks before workers start: DLRover's options.

use crate::{
    box_pairs::BoxPair,
    cli::Cli,
    invalid::Invalid,
    options::{ACCELERATORS, Flag},
    resolve::nodes::Nodes,
};

/// What is checked before workers start, and what counts as a fault.
#[derive(Debug, Clone)]
pub struct Checks {
    /// Check node and network before every start.
    pub network: bool,
    /// Then measure the bandwidth of the whole job.
    pub comm_perf: bool,
    /// Leave slow nodes out.
    pub exclude_straggler: bool,
    /// Check the switchbox's links too.
    pub switchbox: bool,
    /// The pairs of sockets of the switchbox check, no two alike.
    pub box_pairs: Vec<BoxPair>,
    /// A pair below this is faulty, in MB/s.
    pub min_bandwidth_mb_per_s: f64,
    /// A node with fewer working pairs is faulty; from 1 to the number of pairs.
    pub min_channels: usize,
    /// The kind of accelerator.
    pub accelerator: String,
}

pub(super) fn resolve(cli: &Cli, nodes: &Nodes) -> Result<Checks, Invalid> {
    let precheck = one_of(cli, Flag::Precheck, &["0", "1", "2"])?;
    let network = cli.is_on(Flag::NetworkCheck) || precheck != "0" || nodes.wants_network_check;
    for flag in [Flag::ExcludeStraggler, Flag::SwitchboxCheck] {
        if cli.is_on(flag) && !network {
            return Err(Invalid::NeedsNetworkCheck { said: cli.said(flag) });
        }
    }
    let box_pairs = cli.pairs(Flag::BoxPairs);
    if let Some(why) = why_unusable(&box_pairs) {
        return Err(Invalid::BoxPairs { said: cli.said(Flag::BoxPairs), why });
    }
    let min_bandwidth_mb_per_s = cli.float(Flag::MinBandwidth).unwrap_or_default();
    if !(min_bandwidth_mb_per_s > 0.0 && min_bandwidth_mb_per_s.is_finite()) {
        let range = "a bandwidth is a number of MB/s above 0";
        return Err(Invalid::OutOfRange { said: cli.said(Flag::MinBandwidth), range });
    }
    let said = || cli.said(Flag::MinChannels);
    let min_channels = cli.int(Flag::MinChannels).unwrap_or_default();
    if min_channels < 1 {
        return Err(Invalid::OutOfRange { said: said(), range: "a node needs at least 1 working pair" });
    }
    let min_channels = usize::try_from(min_channels)
        .ok()
        .filter(|channels| *channels <= box_pairs.len())
        .ok_or_else(|| Invalid::MinChannels { said: said(), pairs: box_pairs.len() })?;
    Ok(Checks {
        network,
        comm_perf: cli.is_on(Flag::CommPerfTest) || precheck == "2",
        exclude_straggler: cli.is_on(Flag::ExcludeStraggler),
        switchbox: cli.is_on(Flag::SwitchboxCheck),
        box_pairs,
        min_bandwidth_mb_per_s,
        min_channels,
        accelerator: one_of(cli, Flag::Accelerator, ACCELERATORS)?.to_owned(),
    })
}

/// A choice, also when it comes from the environment.
fn one_of<'a>(cli: &'a Cli, flag: Flag, choices: &'static [&'static str]) -> Result<&'a str, Invalid> {
    let text = cli.text(flag)?;
    if choices.contains(&text) { Ok(text) } else { Err(Invalid::Choice { said: cli.said(flag), choices }) }
}

fn why_unusable(pairs: &[BoxPair]) -> Option<String> {
    for (place, BoxPair(one, other)) in pairs.iter().enumerate() {
        if one == other {
            return Some(format!("{one}:{other} pairs a socket with itself"));
        }
        let is_same = |pair: &BoxPair| *pair == BoxPair(*one, *other) || *pair == BoxPair(*other, *one);
        if pairs.iter().take(place).any(is_same) {
            return Some(format!("{one}:{other} is there twice"));
        }
    }
    None
}
