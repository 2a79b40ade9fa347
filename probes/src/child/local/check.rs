//! The local check, in the probe's process.

use std::{collections::BTreeMap, time::Duration};

use diagnosis::network_check::{ComputeKind, ComputeTime, LocalCheck, LocalFault};

#[cfg(feature = "cuda")]
use super::cuda;
use super::{cpu, loopback};
use crate::{child::Reporter, wire::ProbeMessage};

/// The median of this many samples counts.
const SAMPLES: u32 = 3;

/// Samples of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Timed {
    pub(super) kind: ComputeKind,
    pub(super) times: Vec<Duration>,
}

/// Numbers of accelerators by PCI address.
type Places = BTreeMap<String, u32>;

/// Runs all steps in order, up to the first fault.
pub(crate) fn check(accelerators: bool, places: &Places, reporter: &Reporter) -> LocalCheck {
    match steps(accelerators, places, reporter) {
        Ok(compute) => LocalCheck { compute: Some(compute), ..LocalCheck::default() },
        Err(fault) => LocalCheck { fault: Some(fault), ..LocalCheck::default() },
    }
}

fn steps(accelerators: bool, places: &Places, reporter: &Reporter) -> Result<ComputeTime, LocalFault> {
    let of_cpu = of_cpu(SAMPLES, reporter)?;
    reporter.send(&ProbeMessage::At("loopback".into()));
    loopback::check().map_err(|error| LocalFault::new("loopback", rules::chain(&error)))?;
    let of_devices = of_devices(accelerators, SAMPLES, places, reporter)?;
    // Where there are devices they do the work.
    let Timed { kind, times } = slowest(of_devices).unwrap_or(of_cpu);
    Ok(ComputeTime { time: median(times), kind })
}

/// Measures times only, of the slowest device if there is one. Empty on a fault.
pub(crate) fn measure(times: u32, accelerators: bool, reporter: &Reporter) -> Vec<ComputeTime> {
    let Ok(of_devices) = of_devices(accelerators, times, &Places::new(), reporter) else { return Vec::new() };
    let Some(Timed { kind, times }) = slowest(of_devices).or_else(|| of_cpu(times, reporter).ok()) else {
        return Vec::new();
    };
    times.into_iter().map(|time| ComputeTime { time, kind: kind.clone() }).collect()
}

/// A node is as slow as its slowest device. Only devices with the same kind of measurement as the first, which is the
/// fastest in the driver's order, can be compared.
fn slowest(devices: Vec<Timed>) -> Option<Timed> {
    let kind = devices.first()?.kind.clone();
    let alike = devices.into_iter().filter(|device| device.kind == kind);
    alike.max_by_key(|device| median(device.times.clone()))
}

fn of_cpu(times: u32, reporter: &Reporter) -> Result<Timed, LocalFault> {
    reporter.send(&ProbeMessage::At("cpu".into()));
    let times = cpu::samples(times).map_err(|reason| LocalFault::new("cpu", reason))?;
    Ok(Timed { kind: ComputeKind::Processor, times })
}

#[cfg(feature = "cuda")]
fn of_devices(
    wanted: bool,
    times: u32,
    places: &Places,
    reporter: &Reporter,
) -> Result<Vec<Timed>, LocalFault> {
    if wanted { cuda::samples(times, places, reporter) } else { Ok(Vec::new()) }
}

#[cfg(not(feature = "cuda"))]
fn of_devices(
    _wanted: bool,
    _times: u32,
    _places: &Places,
    _voice: &Reporter,
) -> Result<Vec<Timed>, LocalFault> {
    Ok(Vec::new())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(kind: ComputeKind, millis: [u64; 3]) -> Timed {
        Timed { kind, times: millis.map(Duration::from_millis).to_vec() }
    }

    #[test]
    fn the_slowest_device_counts_among_those_that_timed_the_same() {
        let cublas = |millis| timed(ComputeKind::Cublas { model: "a".to_owned() }, millis);
        let kernel = |millis| timed(ComputeKind::OwnKernel { model: "a".to_owned() }, millis);
        let found = slowest(vec![cublas([9, 1, 2]), cublas([3, 3, 3]), kernel([50, 50, 50])]);
        assert_eq!(found, Some(cublas([3, 3, 3])));
        assert_eq!(slowest(vec![kernel([5, 5, 5]), cublas([9, 9, 9])]), Some(kernel([5, 5, 5])));
        assert_eq!(slowest(Vec::new()), None);
    }
}
