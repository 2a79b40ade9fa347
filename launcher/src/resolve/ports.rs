//! `HOST_PORTS`: the ports that MASTER_PORT may take, as dlrover's master hands them to a pod on the host's
//! network. dlrover writes `p1,p2`; ranges are ours. And which hosts may connect to it.

use std::ops::RangeInclusive;

use crate::{cli::Given, environment::Environment, invalid::Invalid};

pub(crate) fn choices(env: Environment<'_>) -> Result<Vec<RangeInclusive<u16>>, Invalid> {
    let Some(value) = env.get_filled("HOST_PORTS") else { return Ok(Vec::new()) };
    let choices = value.to_str().and_then(|text| text.split(',').map(range).collect());
    choices.ok_or_else(|| Invalid::HostPorts { given: Given::in_variable("HOST_PORTS", value) })
}

/// `DLROVER_STORE_ALLOW`: whether only members of a round may connect to its store.
pub(crate) fn is_store_for_members(env: Environment<'_>) -> Result<bool, Invalid> {
    match env.get_filled("DLROVER_STORE_ALLOW") {
        None => Ok(false),
        Some(value) if value == "members" => Ok(true),
        Some(value) => Err(Invalid::StoreAllow { given: Given::in_variable("DLROVER_STORE_ALLOW", value) }),
    }
}

/// `20000` or `20000-20010`.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let text = text.trim();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some(first..=last)
}
