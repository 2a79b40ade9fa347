//! Reports errors (`Xid`) of NVIDIA's driver while a job runs, in a process of its own, which sleeps in the driver.

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

/// How long it may sleep in the driver without an event.
const SLEEP: Duration = Duration::from_secs(60);

/// Between two queries of the memory in use, for which the driver has no event.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Ancestors of a process that are followed.
const GENERATIONS: usize = 32;

/// Reports events until it is killed, or the driver fails.
pub(crate) fn listen(and_memory: bool, reporter: &Reporter) -> Result<(), NvmlError> {
    let library = nvml::open()?;
    let mut set = library.create_event_set()?;
    let mut is_any = and_memory;
    for index in 0..library.device_count()? {
        let Ok(device) = library.device_by_index(index) else { continue };
        // Devices without support are not registered: `register_events` consumes the set and loses it on failure.
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
                    reporter.send(&ProbeMessage::Gpu(GpuMessage::Error { gpu, code }));
                }
            }
            Err(NvmlError::Timeout) if and_memory => {
                reporter.send(&ProbeMessage::Gpu(GpuMessage::Memory(uses(&library))));
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

/// Returns the process and its ancestors; the process alone if it is not visible from here.
fn lineage(pid: u32) -> Vec<i32> {
    let parent = |pid: &i32| tree::process(*pid).map(|process| process.parent).filter(|parent| *parent > 0);
    std::iter::successors(i32::try_from(pid).ok(), parent).take(GENERATIONS).collect()
}

/// The number of a device. A device that has just fallen off the bus no longer reports it: then it is the device that
/// cannot be opened now.
fn number(library: &Library, device: &nvml_wrapper::Device<'_>) -> Option<u32> {
    if let Ok(number) = device.index() {
        return Some(number);
    }
    let count = library.device_count().ok()?;
    (0..count).find(|index| matches!(library.device_by_index(*index), Err(NvmlError::GpuLost)))
}
