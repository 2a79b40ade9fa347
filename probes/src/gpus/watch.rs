//! What NVIDIA's driver tells of errors (`Xid`) while a job runs: in a process of its own, which sleeps in the driver.

use std::time::Duration;

use diagnosis::gpus::GpuUse;
use nvml_wrapper::{
    Nvml as Library, bitmasks::event::EventTypes, enums::device::UsedGpuMemory, enums::event::XidError,
    error::NvmlError,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use super::nvml;
use crate::{
    GRACE, Helper,
    child::Voice,
    handle::{Limits, Listeners, hear},
    process,
    wire::{Task, Word},
};
use processes::tree;

/// The driver wakes whoever waits; so long it may let us sleep without a word.
const SLEEP: Duration = Duration::from_secs(60);

/// Between two looks at who holds memory: of that the driver tells nothing by itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Parents of a process that are followed.
const GENERATIONS: usize = 32;

/// What the driver tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuWord {
    /// An error.
    Error {
        /// NVML's number of the device.
        gpu: u32,
        /// NVIDIA's number of the error (`Xid`).
        code: u64,
    },
    /// Who holds memory.
    Memory(Vec<GpuUse>),
}

/// Listens until `cancel` is true or closed, or the driver has no more to say. With `and_memory` it also looks once a
/// second who holds memory. Words for which there is no room are dropped. Gives why it ended.
pub async fn watch_gpus(
    helper: Helper,
    and_memory: bool,
    told: mpsc::Sender<GpuWord>,
    cancel: watch::Receiver<bool>,
) -> String {
    let started = match process::start(&helper, &Task::WatchGpus { and_memory }, None) {
        Ok(started) => started,
        Err(error) => return rules::chain(&error),
    };
    let limits = Limits { cancel: Some(cancel), deadline: None, grace: GRACE };
    let heard = hear(started, limits, Listeners { gpus: Some(told), ..Listeners::default() }).await;
    heard.death()
}

/// In the probe's process. Never ends well: it is told to.
pub(crate) fn listen(and_memory: bool, voice: &Voice) -> Result<(), NvmlError> {
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
    let sleep = if and_memory { LOOK_EVERY } else { SLEEP };
    let patience = u32::try_from(sleep.as_millis()).unwrap_or(u32::MAX);
    loop {
        match set.wait(patience) {
            Ok(event) => {
                let code = match event.event_data {
                    Some(XidError::Value(code)) => code,
                    Some(XidError::Unknown) | None => continue,
                };
                if let Some(gpu) = number(&library, &event.device) {
                    voice.say(&Word::Gpu(GpuWord::Error { gpu, code }));
                }
            }
            Err(NvmlError::Timeout) if and_memory => {
                voice.say(&Word::Gpu(GpuWord::Memory(uses(&library))));
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
