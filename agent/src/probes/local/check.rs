//! The local check, in the probe's process.

use std::time::Duration;

use rules::network_check::{LocalCheck, LocalFault};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{cpu, loopback};
use crate::probes::{child::Voice, wire::Word};

/// Samples of which the median counts.
const SAMPLES: u32 = 3;

/// Everything, in order; the first fault ends it.
pub(in crate::probes) fn check(accelerators: bool, voice: &Voice) -> LocalCheck {
    match steps(accelerators, voice) {
        Ok(compute) => LocalCheck { fault: None, compute: Some(compute) },
        Err(fault) => LocalCheck { fault: Some(fault), compute: None },
    }
}

fn steps(accelerators: bool, voice: &Voice) -> Result<Duration, LocalFault> {
    let of_cpu = of_cpu(SAMPLES, voice)?;
    voice.say(&Word::At("loopback".into()));
    loopback::check().map_err(|error| fault("loopback", crate::chain(&error)))?;
    let of_devices = of_devices(accelerators, SAMPLES, voice)?;
    // Where there are devices they do the work, and a node is as slow as its slowest.
    Ok(of_devices.into_iter().map(median).max().unwrap_or_else(|| median(of_cpu)))
}

/// Times alone, of the slowest device where there are any. A fault gives none.
pub(in crate::probes) fn measure(times: u32, accelerators: bool, voice: &Voice) -> Vec<Duration> {
    match of_devices(accelerators, times, voice) {
        Ok(devices) => {
            let slowest = devices.into_iter().max_by_key(|times| median(times.clone()));
            slowest.unwrap_or_else(|| of_cpu(times, voice).unwrap_or_default())
        }
        Err(_) => Vec::new(),
    }
}

fn of_cpu(times: u32, voice: &Voice) -> Result<Vec<Duration>, LocalFault> {
    voice.say(&Word::At("cpu".into()));
    cpu::samples(times).map_err(|reason| fault("cpu", reason))
}

#[cfg(feature = "cuda")]
fn of_devices(wanted: bool, times: u32, voice: &Voice) -> Result<Vec<Vec<Duration>>, LocalFault> {
    if wanted { cuda::samples(times, voice) } else { Ok(Vec::new()) }
}

#[cfg(not(feature = "cuda"))]
fn of_devices(_wanted: bool, _times: u32, _voice: &Voice) -> Result<Vec<Vec<Duration>>, LocalFault> {
    Ok(Vec::new())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn fault(component: &str, reason: String) -> LocalFault {
    LocalFault { component: component.to_owned(), reason }
}
