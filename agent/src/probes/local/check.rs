//! The local check, in the probe's process.

use std::time::Duration;

use rules::network_check::{LocalCheck, LocalFault};

use super::{cpu, loopback};
use crate::probes::{child::Voice, wire::Word};

/// Samples of which the median counts.
const SAMPLES: u32 = 3;

/// Everything, in order; the first fault ends it.
pub(in crate::probes) fn check(_accelerators: bool, voice: &Voice) -> LocalCheck {
    match steps(voice) {
        Ok(compute) => LocalCheck { fault: None, compute: Some(compute) },
        Err(fault) => LocalCheck { fault: Some(fault), compute: None },
    }
}

fn steps(voice: &Voice) -> Result<Duration, LocalFault> {
    voice.say(&Word::At("cpu".into()));
    let mut times = cpu::samples(SAMPLES).map_err(|reason| fault("cpu", reason))?;
    voice.say(&Word::At("loopback".into()));
    loopback::check().map_err(|error| fault("loopback", crate::chain(&error)))?;
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}

fn fault(component: &str, reason: String) -> LocalFault {
    LocalFault { component: component.to_owned(), reason }
}

/// Times alone. A fault gives none.
pub(in crate::probes) fn measure(times: u32, _accelerators: bool, voice: &Voice) -> Vec<Duration> {
    voice.say(&Word::At("cpu".into()));
    cpu::samples(times).unwrap_or_default()
}
