//! A `libnvidia-ml.so.1` that has the accelerators which `FAKE_NVML` describes, for the tests of the loading path:
//!
//! ```text
//! rustc --crate-type cdylib -o .../libnvidia-ml.so.1 fake_nvml.rs
//! FAKE_NVML='gpus=8;links=dgx1;lost=3;closed=4;denied=6;ecc=2:5;pending=1;used=0:61;pid=0:4711;hang=5;xid=2:79'
//! ```
//!
//! `gpus=N` devices of 80 GB with 1 GB taken; `used=GPU:GB` and `pid=GPU:PID` may be repeated. A call that is not here
//! is missing from the library, as in an old driver. `used` may also be read anew from the file `FAKE_NVML_USED`
//! (one number of GB for all), so that memory can be given back during an inspection; `<file>.seen` shows that there was one.

#![allow(non_snake_case, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, clippy::not_unsafe_ptr_arg_deref)]

use std::{
    ffi::{c_char, c_int, c_uint, c_ulonglong, c_void},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NO_PERMISSION: c_int = 4;
const INSUFFICIENT_SIZE: c_int = 7;
const TIMEOUT: c_int = 10;
const GPU_IS_LOST: c_int = 15;
const UNKNOWN: c_int = 999;

const GB: u64 = 1_000_000_000;

/// Links of a DGX-1 with V100s: what `nvidia-smi topo -m` shows there.
const DGX1: [[u8; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

#[repr(C)]
pub struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    sub_system_id: c_uint,
    bus_id: [c_char; 32],
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
pub struct Process {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
pub struct EventData {
    device: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// All values of a key: `used=0:61` has (0, 61), `hang=5` has (5, 0).
fn values_of(key: &str) -> Vec<(usize, u64)> {
    let plan = std::env::var("FAKE_NVML").unwrap_or_default();
    let entries = plan.split(';').filter_map(|entry| entry.split_once('='));
    let numbers = |value: &str| {
        let (gpu, number) = value.split_once(':').unwrap_or((value, "0"));
        Some((gpu.parse().ok()?, number.parse().ok()?))
    };
    entries.filter(|(name, _)| *name == key).filter_map(|(_, value)| numbers(value)).collect()
}

fn of(key: &str, gpu: usize) -> Option<u64> {
    values_of(key).into_iter().find(|(of, _)| *of == gpu).map(|(_, number)| number)
}

fn count() -> usize {
    values_of("gpus").first().map_or(0, |(count, _)| *count)
}

fn has_links() -> bool {
    std::env::var("FAKE_NVML").is_ok_and(|plan| plan.contains("links=dgx1"))
}

/// Handles are places, counted from 1.
fn place(device: *mut c_void) -> usize {
    let gpu = (device as usize).wrapping_sub(1);
    if of("hang", gpu).is_some() {
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    gpu
}

fn write(text: &str, to: *mut c_char, length: c_uint) -> c_int {
    if text.len() + 1 > length as usize {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller gives `length` bytes, and the text with its zero is no longer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        *to.add(text.len()) = 0;
    }
    SUCCESS
}

fn put<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: every caller in this file passes on a place for one T that NVML's caller gave.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> c_int {
    write("535.161.08", to, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_int {
    put(to, count() as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut *mut c_void) -> c_int {
    let index = index as usize;
    if index >= count() {
        INVALID_ARGUMENT
    } else if of("lost", index).is_some() {
        GPU_IS_LOST
    } else if of("denied", index).is_some() {
        NO_PERMISSION
    } else if of("closed", index).is_some() {
        UNKNOWN
    } else {
        put(to, (index + 1) as *mut c_void)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetIndex(device: *mut c_void, to: *mut c_uint) -> c_int {
    put(to, (device as usize - 1) as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(device: *mut c_void, to: *mut c_char, length: c_uint) -> c_int {
    place(device);
    write("NVIDIA Fake 80GB", to, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, to: *mut c_char, length: c_uint) -> c_int {
    write(&format!("GPU-0000000{}-fake", place(device)), to, length)
}

fn pci(gpu: usize) -> PciInfo {
    let mut info = PciInfo {
        legacy: [0; 16],
        domain: 0,
        bus: 0x10 + gpu as c_uint,
        device: 0,
        pci_device_id: 0,
        sub_system_id: 0,
        bus_id: [0; 32],
    };
    write(&format!("00000000:{:02X}:00.0", 0x10 + gpu), info.bus_id.as_mut_ptr(), 32);
    info
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(device: *mut c_void, to: *mut PciInfo) -> c_int {
    put(to, pci(place(device)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, to: *mut Memory) -> c_int {
    let gpu = place(device);
    let of_file = std::env::var("FAKE_NVML_USED").ok().and_then(|file| {
        let used = std::fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok()?;
        // For tests that wait for an inspection.
        std::fs::write(format!("{file}.seen"), used.to_string()).ok()?;
        Some(used)
    });
    let used = of_file.or_else(|| of("used", gpu)).unwrap_or(1) * GB;
    let total = 80 * GB;
    // SAFETY: the caller gives a place for one of these, and `total` to `reserved` are plain numbers.
    unsafe {
        (*to).total = total;
        (*to).used = used;
        (*to).free = total.saturating_sub(used);
        (*to).reserved = 0;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    room: *mut c_uint,
    to: *mut Process,
) -> c_int {
    let gpu = place(device);
    // Those of the plan, and those that a file names: device, process, GB.
    let file = std::env::var("FAKE_NVML_PROCESSES").ok().and_then(|file| std::fs::read_to_string(file).ok());
    let file = file.unwrap_or_default();
    let of_file = file.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        Some((numbers.next()?, numbers.next()?, numbers.next()?))
    });
    let of_file = of_file.filter(|(of, ..)| *of == gpu as u64).map(|(_, pid, used)| (pid, used));
    let of_plan = values_of("pid").into_iter().filter(|(of, _)| *of == gpu);
    let of_plan = of_plan.map(|(_, pid)| (pid, of("used", gpu).unwrap_or(1)));
    let pids: Vec<(u64, u64)> = of_plan.chain(of_file).collect();
    // SAFETY: the caller says in this number how much room it gives.
    let has_room = unsafe { *room } as usize >= pids.len();
    put(room, pids.len() as c_uint);
    if !has_room {
        return INSUFFICIENT_SIZE;
    }
    for (place, (pid, used)) in pids.iter().enumerate() {
        let used = used * GB;
        let process =
            Process { pid: *pid as c_uint, used, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
        // SAFETY: there is room for all of them, as was just compared.
        unsafe { to.add(place).write(process) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(device: *mut c_void, to: *mut Utilization) -> c_int {
    place(device);
    put(to, Utilization { gpu: 7, memory: 1 })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(device: *mut c_void, _sensor: c_uint, to: *mut c_uint) -> c_int {
    put(to, 40 + place(device) as c_uint)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(device: *mut c_void, to: *mut c_ulonglong) -> c_int {
    // Idle is no fault; 0x40 is the hardware's own thermal slowdown.
    put(to, if of("hot", place(device)).is_some() { 0x41 } else { 1 })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: *mut c_void,
    _kind: c_uint,
    _counter: c_uint,
    to: *mut c_ulonglong,
) -> c_int {
    put(to, of("ecc", place(device)).unwrap_or(0))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRemappedRows(
    device: *mut c_void,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_int {
    let gpu = place(device);
    put(corrected, 0);
    put(uncorrected, 0);
    put(pending, c_uint::from(of("pending", gpu).is_some()));
    put(failed, 0)
}

/// Where link `number` of this device leads.
fn remote(gpu: usize, number: c_uint) -> Option<usize> {
    let row = DGX1.get(gpu).filter(|_| has_links())?;
    let ends = row.iter().enumerate().flat_map(|(to, count)| std::iter::repeat_n(to, usize::from(*count)));
    ends.clone().nth(number as usize).filter(|to| *to < count())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkState(device: *mut c_void, number: c_uint, to: *mut c_uint) -> c_int {
    match remote(place(device), number) {
        Some(_) => put(to, 1),
        None => NOT_SUPPORTED,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: *mut c_void,
    number: c_uint,
    to: *mut c_uint,
) -> c_int {
    // 0 is a device, 2 would be a switch.
    if remote(place(device), number).is_some() { put(to, 0) } else { INVALID_ARGUMENT }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: *mut c_void,
    number: c_uint,
    to: *mut PciInfo,
) -> c_int {
    remote(place(device), number).map_or(INVALID_ARGUMENT, |gpu| put(to, pci(gpu)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    a: *mut c_void,
    b: *mut c_void,
    to: *mut c_uint,
) -> c_int {
    // One bridge for each two, a NUMA node for each four.
    let (a, b) = (place(a), place(b));
    put(to, if a / 2 == b / 2 { 10 } else if a / 4 == b / 4 { 40 } else { 50 })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(to: *mut *mut c_void) -> c_int {
    put(to, std::ptr::dangling_mut::<u64>().cast())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetSupportedEventTypes(device: *mut c_void, to: *mut c_ulonglong) -> c_int {
    place(device);
    put(to, 8)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(device: *mut c_void, _kinds: c_ulonglong, _set: *mut c_void) -> c_int {
    place(device);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(_set: *mut c_void, to: *mut EventData, timeout_ms: c_uint) -> c_int {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if let Some((gpu, code)) = values_of("xid").first().copied()
        && !REPORTED.swap(true, Ordering::Relaxed)
    {
        let device = (gpu + 1) as *mut c_void;
        return put(to, EventData { device, kind: 8, data: code, gpu_instance: 0, compute_instance: 0 });
    }
    thread::sleep(Duration::from_millis(u64::from(timeout_ms)));
    TIMEOUT
}
