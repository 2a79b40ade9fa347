//! What NVIDIA's driver tells of errors (`Xid`) while a job runs: in a process of its own, which sleeps in the driver.

use std::time::Duration;

use diagnosis::gpus::GpuUse;
use nvml_wrapper::{
    Nvml as Library, bitmasks::event::EventTypes, enums::device::UsedGpuMemory, enums::event::XidError,
    error::NvmlError,
};

use super::nvml;
use crate::{
    child::Reporter,
    wire::{ProbeMessage, gpus::GpuMessage},
};
use processes::tree;

/// The driver wakes whoever waits; so long it may let us sleep without a word.
const SLEEP: Duration = Duration::from_secs(60);

/// Between two looks at who holds memory: of that the driver tells nothing by itself.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Parents of a process that are followed.
const GENERATIONS: usize = 32;

/// In the probe's process. Never ends well: it is told to.
pub(crate) fn listen(and_memory: bool, reporter: &Reporter) -> Result<(), NvmlError> {
    let library = nvml::open()?;
    let mut set = library.create_event_set()?;
    let mut is_any = and_memory;
    for index in 0..library.device_count()? {
        let Ok(device) = library.device_by_index(index) else { continue };
        // Devices that cannot tell are not asked: what follows takes the set, and loses it when it fails.
        if device.supported_event_types().is_ok_and(|kinds| kinds.contains(EventTypes::CRITICAL_XID_ERROR)) {
            set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)?;
            is_any = true;
        }
    }
    if !is_any {
        return Err(NvmlError::NotSupported);
    }
    let sleep = if and_memory { CHECK_INTERVAL } else { SLEEP };
    let timeout = u32::try_from(sleep.as_millis()).unwrap_or(u32::MAX);
    loop {
        match set.wait(timeout) {
            Ok(event) => {
                let code = match event.event_data {
                    Some(XidError::Value(code)) => code,
                    Some(XidError::Unknown) | None => continue,
                };
                if let Some(gpu) = number(&library, &event.device) {
                    reporter.say(&ProbeMessage::Gpu(GpuMessage::Error { gpu, code }));
                }
            }
            Err(NvmlError::Timeout) if and_memory => {
                reporter.say(&ProbeMessage::Gpu(GpuMessage::Memory(uses(&library))));
            }
            Err(NvmlError::Timeout) => {}
            Err(error) => return Err(error),
        }
    }
}

fn uses(library: &Library) -> Vec<GpuUse> {
    let mut uses = Vec::new();
    for gpu in 0..library.device_count().unwrap_or(0) {
        let processes = library.device_by_index(gpu).and_then(|device| device.running_compute_processes());
        for process in processes.unwrap_or_default() {
            if let UsedGpuMemory::Used(memory) = process.used_gpu_memory {
                uses.push(GpuUse { gpu, lineage: lineage(process.pid), memory });
            }
        }
    }
    uses
}

/// A process and those above it. The first alone where it is not seen from here.
fn lineage(pid: u32) -> Vec<i32> {
    let parent = |pid: &i32| tree::process(*pid).map(|process| process.parent).filter(|parent| *parent > 0);
    std::iter::successors(i32::try_from(pid).ok(), parent).take(GENERATIONS).collect()
}

/// A device that has just fallen off the bus does not tell its number any more: then it is the one that cannot be
/// opened now.
fn number(library: &Library, device: &nvml_wrapper::Device<'_>) -> Option<u32> {
    if let Ok(number) = device.index() {
        return Some(number);
    }
    let count = library.device_count().ok()?;
    (0..count).find(|index| matches!(library.device_by_index(*index), Err(NvmlError::GpuLost)))
}
