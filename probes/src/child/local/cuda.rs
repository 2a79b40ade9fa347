//! NVIDIA devices, through the driver (`libcuda.so.1`) and, if available, cuBLAS, both loaded at run time.
//!
//! For every visible device (`CUDA_VISIBLE_DEVICES`): known bytes to its memory and back, and arithmetic with known
//! results on all of its multiprocessors: matrix products by cuBLAS ([`matmul`]), as in training, else a kernel of
//! our own ([`kernel`]).
//!
//! Run on an H200 by `tests/hardware`. The tests run on hosts without the driver and without cuBLAS, which is not a
//! fault; the arithmetic is tested on a processor.

mod cublas;
mod kernel;
mod matmul;

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cudarc::driver::{
    CudaContext, CudaStream, DriverError, result,
    sys::{CUresult, cuDeviceGetPCIBusId, is_culib_present},
};
use diagnosis::network_check::{ComputeKind, LocalFault};

use self::matmul::Matmul;
use super::check::Timed;
use crate::{
    LOADS_LIBRARIES,
    child::{
        Reporter, bus,
        pattern::{BLOCK, Pattern},
    },
    wire::ProbeMessage,
};

/// Bytes to a device and back.
const MEMORY: usize = 64 << 20;

/// Takes `times` samples of each device, in the driver's order. Empty without driver or devices. `places` maps PCI
/// addresses to numbers.
///
/// # Errors
/// The first faulty device.
pub(super) fn samples(
    times: u32,
    places: &BTreeMap<String, u32>,
    reporter: &Reporter,
) -> Result<Vec<Timed>, LocalFault> {
    reporter.send(&ProbeMessage::At("GPU".into()));
    // SAFETY: loads and unloads the library, whose constructors are the driver's own.
    if !LOADS_LIBRARIES || !unsafe { is_culib_present() } {
        return Ok(Vec::new());
    }
    // cudarc panics if the driver is older than a function that is called here. The device may be good all the same.
    let all = catch_unwind(AssertUnwindSafe(|| all_devices(times, places, reporter)));
    all.unwrap_or(Ok(Vec::new()))
}

fn all_devices(
    times: u32,
    places: &BTreeMap<String, u32>,
    reporter: &Reporter,
) -> Result<Vec<Timed>, LocalFault> {
    let count = match CudaContext::device_count() {
        Ok(count) => count,
        Err(error) if is_absence(&error) => 0,
        Err(error) => return Err(LocalFault::new("GPU", error.to_string())),
    };
    let mut matmul = Matmul::default();
    (0..count)
        .map(|index| {
            let component = component(index, places);
            reporter.send(&ProbeMessage::At(component.clone()));
            let model = result::device::get(index).and_then(result::device::get_name).unwrap_or_default();
            if !model.is_empty() {
                reporter.send(&ProbeMessage::At(format!("{component} ({model})")));
            }
            one_device(usize::try_from(index).unwrap_or_default(), model, times, &mut matmul)
                .map_err(|reason| LocalFault::new(component, reason))
        })
        .collect()
}

/// `GPU 4`, by the number of the inventory. CUDA's own differs: it counts the visible devices, the fastest first.
fn component(ordinal: i32, places: &BTreeMap<String, u32>) -> String {
    match place(ordinal) {
        None => format!("CUDA device {ordinal}"),
        Some(place) => match places.get(&place) {
            Some(index) => format!("GPU {index}"),
            None => format!("GPU at {place}"),
        },
    }
}

/// The PCI address of a device.
fn place(ordinal: i32) -> Option<String> {
    let device = result::device::get(ordinal).ok()?;
    let mut text = [0_u8; 32];
    let length = c_int::try_from(text.len()).ok()?;
    // SAFETY: the device is the driver's, and it writes at most `length` bytes.
    let answer = unsafe { cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), length, device) };
    answer.result().ok()?;
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    let is_word = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
    Some(bus::place(text)).filter(|place| !place.is_empty() && place.bytes().all(is_word))
}

/// A library without any device: a build host, or a container without devices.
fn is_absence(error: &DriverError) -> bool {
    matches!(error.0, CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY)
}

fn one_device(index: usize, model: String, times: u32, matmul: &mut Matmul) -> Result<Timed, String> {
    let context = CudaContext::new(index).map_err(|error| format!("cannot open the device: {error}"))?;
    memory(&context.default_stream())?;
    if let Some(times) = matmul.samples(&context, times)? {
        return Ok(Timed { kind: ComputeKind::Cublas { model }, times });
    }
    Ok(Timed { kind: ComputeKind::OwnKernel { model }, times: kernel::samples(&context, times)? })
}

fn memory(stream: &Arc<CudaStream>) -> Result<(), String> {
    let blocks = Pattern::new(0, &[MEMORY as u64]).blocks();
    let sent: Vec<u8> = (0..MEMORY / BLOCK).flat_map(|index| blocks.get(index as u64)).copied().collect();
    let message = |error: DriverError| format!("cannot move bytes to the device and back: {error}");
    let there = stream.clone_htod(&sent).map_err(message)?;
    let back = stream.clone_dtoh(&there).map_err(message)?;
    stream.synchronize().map_err(message)?;
    match sent.iter().zip(&back).position(|(sent, back)| sent != back) {
        None => Ok(()),
        Some(at) => Err(format!(
            "wrong bytes in its memory: at offset {at}, 0x{:02x} came back instead of 0x{:02x}",
            back[at], sent[at]
        )),
    }
}
