//! NVIDIA accelerators by NVML, the management library of the driver, which is loaded at run time.
//!
//! Every query is independent: if driver, device or permissions do not answer it, its value stays empty, which is not
//! an error.

mod links;

use std::path::PathBuf;

use diagnosis::gpus::{Gpu, GpuProcess, GpuTrouble, MAX_GPUS, RemappedRows, Vendor};
use nvml_wrapper::{
    Device, Nvml as Library,
    bitmasks::{InitFlags, device::ThrottleReasons},
    enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
};

use super::{Collector, Source, bus};
use crate::LOADS_LIBRARIES;

/// The first is the driver's own file, the second the link of a development package.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Throttle reasons that are reported. An idle device and configured clocks are not among them.
const THROTTLED: [(ThrottleReasons, &str); 5] = [
    (ThrottleReasons::SW_POWER_CAP, "power limit"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "temperature (software)"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "temperature (hardware)"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
];

/// Queries NVML.
pub(super) struct Nvml {
    /// Contains `sys`: the kernel knows the NUMA nodes.
    pub(super) root: PathBuf,
}

impl Source for Nvml {
    fn take(&self, collector: &mut Collector<'_>) {
        collector.at("the NVIDIA driver (NVML)");
        let library = match open() {
            Ok(library) => library,
            Err(error) => {
                collector.note(absence(&error));
                return;
            }
        };
        collector.inventory.driver = library.sys_driver_version().ok();
        let count = match library.device_count() {
            Ok(count) => count,
            Err(error) => {
                collector.note(format!("NVML did not report the number of devices: {error}"));
                return;
            }
        };
        if count > 0 {
            collector.found(Vendor::Nvidia);
        }
        let count = count.min(u32::try_from(MAX_GPUS).unwrap_or(u32::MAX));
        for index in 0..count {
            collector.at(format!("GPU {index}"));
            let gpu = match library.device_by_index(index) {
                Ok(device) => self.one(&library, &device, index, collector),
                Err(error) => Gpu { index, trouble: Some(trouble(&error)), ..Gpu::default() },
            };
            collector.inventory.gpus.push(gpu);
            collector.keep();
        }
        collector.at("the links between devices");
        collector.inventory.links = links::between(&library, &collector.inventory.gpus);
    }
}

impl Nvml {
    fn one(&self, library: &Library, device: &Device<'_>, index: u32, collector: &mut Collector<'_>) -> Gpu {
        let mut gpu = ask(library, device, index, collector);
        // NVML's own query concerns devices that are NUMA nodes themselves.
        gpu.numa_node = gpu.pci.as_ref().and_then(|pci| bus::numa_node(&self.root, pci));
        gpu
    }
}

/// Opens the library.
///
/// # Errors
/// When it is missing, or the driver does not answer.
pub(super) fn open() -> Result<Library, NvmlError> {
    if !LOADS_LIBRARIES {
        return Err(NvmlError::LibraryNotFound);
    }
    let open = |name: &str| Library::builder().lib_path(name.as_ref()).flags(InitFlags::NO_GPUS).init();
    let [first, second] = NAMES;
    open(first).or_else(|error| match error {
        NvmlError::LibloadingError(_) => open(second),
        other => Err(other),
    })
}

fn absence(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "no NVML: libnvidia-ml.so.1 not found".into(),
        NvmlError::LibraryNotFound => {
            "NVML is not used: this program is statically linked and cannot load libnvidia-ml.so.1".into()
        }
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".into(),
        other => format!("NVML cannot be initialized: {other}"),
    }
}

fn trouble(error: &NvmlError) -> GpuTrouble {
    match error {
        NvmlError::GpuLost => GpuTrouble::Lost,
        NvmlError::NoPermission => GpuTrouble::NotPermitted,
        other => GpuTrouble::CannotOpen(other.to_string()),
    }
}

fn ask(library: &Library, device: &Device<'_>, index: u32, collector: &mut Collector<'_>) -> Gpu {
    let name = device.name().ok();
    if let Some(name) = &name {
        collector.at(format!("GPU {index} ({name})"));
    }
    let memory = match device.memory_info() {
        // Opened, and lost since.
        Err(NvmlError::GpuLost) => {
            return Gpu { index, name, trouble: Some(GpuTrouble::Lost), ..Gpu::default() };
        }
        memory => memory.ok(),
    };
    let process = |it: nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
        pid: it.pid,
        memory: match it.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
    Gpu {
        index,
        name,
        uuid: device.uuid().ok(),
        pci: device.pci_info().ok().map(|pci| bus::place(&pci.bus_id)),
        memory_total: memory.as_ref().map(|memory| memory.total),
        memory_used: memory.as_ref().map(|memory| memory.used),
        processes: device.running_compute_processes().unwrap_or_default().into_iter().map(process).collect(),
        utilisation_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        throttled: THROTTLED
            .iter()
            .filter(|(reason, _)| reasons.contains(*reason))
            .map(|(_, message)| (*message).to_owned())
            .collect(),
        ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        remapped: remapped(library, device),
        nvlinks: links::of(device),
        xids: Vec::new(),
        numa_node: None,
        is_mig: device.mig_mode().is_ok_and(|mode| mode.current != 0),
        trouble: None,
    }
}

/// The safe layer lacks this query.
fn remapped(library: &Library, device: &Device<'_>) -> Option<RemappedRows> {
    let ask = library.lib().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is of the library, which is open as long as `library` lives; the four places are valid.
    let answer = unsafe {
        ask(device.handle(), &raw mut correctable, &raw mut uncorrectable, &raw mut pending, &raw mut failed)
    };
    (answer == nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_SUCCESS).then_some(RemappedRows {
        correctable,
        uncorrectable,
        pending: pending != 0,
        failed: failed != 0,
    })
}
