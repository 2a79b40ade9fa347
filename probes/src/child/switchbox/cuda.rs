//! NVIDIA devices: copies from one's memory to the other's, through the driver (`libcuda.so.1`, loaded at run time).
//!
//! The path is derived from the driver's answers: two devices with peer access and native atomics are connected by
//! NVLink, since PCIe has no such atomics; without them by PCIe. Without peer access the driver copies through the
//! host's memory.
//!
//! Run by `tests/hardware` on an H200, from the device to itself; never between two devices. The tests run on a host
//! without the driver.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr as _, DevicePtrMut as _, DriverError, sys,
    sys::{CUdevice_P2PAttribute_enum as Attribute, CUresult, is_culib_present},
};
use diagnosis::switchbox::{Path, SocketPair, Trouble, Wrong};

use super::contract::{Measured, Response};
use crate::{
    LOADS_LIBRARIES, OTHER_BUILD,
    child::pattern::{BLOCK, Pattern},
    wire::switchbox::{Direction, Request},
};

/// Copies are a multiple of this many bytes.
const GRAIN: u64 = BLOCK as u64;

/// At most this fraction of a device's free memory is used.
const SHARE: u64 = 4;

/// Measures each pair of devices.
pub(super) fn measure(request: &Request) -> Response {
    let mut response = Response::new("cuda", 0);
    // SAFETY: loads and unloads the library, whose constructors are the driver's own.
    if !LOADS_LIBRARIES || !unsafe { is_culib_present() } {
        response.devices = None;
        let message = if LOADS_LIBRARIES {
            "libcuda.so.1, NVIDIA's driver, cannot be loaded".to_owned()
        } else {
            format!("this program is statically linked and cannot load libcuda.so.1; {OTHER_BUILD}")
        };
        let wrong = Wrong::new(Trouble::ToolMissing, message);
        response.fail(&request.pairs, &wrong);
        return response;
    }
    // cudarc panics if the driver is older than a function that is called here.
    let all = catch_unwind(AssertUnwindSafe(|| all_pairs(request)));
    all.unwrap_or_else(|_| {
        let mut response = Response { devices: None, ..Response::new("cuda", 0) };
        let wrong = Wrong::new(
            Trouble::ToolMissing,
            "NVIDIA's driver is too old for the CUDA probe: update the driver",
        );
        response.fail(&request.pairs, &wrong);
        response
    })
}

fn all_pairs(request: &Request) -> Response {
    let count = match CudaContext::device_count() {
        Ok(count) => u32::try_from(count).unwrap_or_default(),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY)) => 0,
        Err(error) => {
            let mut response = Response { devices: None, ..Response::new("cuda", 0) };
            response.fail(&request.pairs, &of_driver("cannot begin", error));
            return response;
        }
    };
    let mut response = Response::new("cuda", count);
    for pair in request.pairs.iter().filter(|pair| pair.0 < count && pair.1 < count) {
        match one_pair(*pair, request) {
            Ok(results) => response.results.extend(results),
            Err(wrong) => response.fail(&[*pair], &wrong),
        }
    }
    response
}

fn of_driver(doing: &str, error: DriverError) -> Wrong {
    let trouble = match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE => Trouble::NoSuchDevice,
        CUresult::CUDA_ERROR_NOT_PERMITTED | CUresult::CUDA_ERROR_OPERATING_SYSTEM => Trouble::NoPermission,
        _ => Trouble::NoAnswer,
    };
    Wrong::new(trouble, format!("{doing}: {error}"))
}

/// A device with a buffer in its memory.
struct End {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    buffer: CudaSlice<u8>,
}

fn one_pair(pair: SocketPair, request: &Request) -> Result<Vec<Measured>, Wrong> {
    let [one, other] = [pair.0, pair.1].map(|device| {
        CudaContext::new(device as usize).map_err(|error| of_driver("cannot open the device", error))
    });
    let (one, other) = (one?, other?);
    let free = [&one, &other].map(|context| context.mem_get_info().map(|(free, _)| free as u64));
    let [first, second] =
        free.map(|free| free.map_err(|error| of_driver("cannot query the memory of the device", error)));
    let bytes = size(request.bytes, first?.min(second?));
    let Some(bytes) = bytes else {
        return Err(Wrong::new(Trouble::NoAnswer, "there is no free memory on one of the devices"));
    };
    let path = path_between(&one, &other);
    if pair.0 != pair.1 && path != Path::Host {
        enable_peer_access(&one, &other)?;
        enable_peer_access(&other, &one)?;
    }
    let blocks = Pattern::new(u64::from(pair.0) << 32 | u64::from(pair.1), &[bytes]).blocks();
    let mut sent = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
    (0..bytes / GRAIN).for_each(|index| sent.extend_from_slice(blocks.get(index)));
    let mut ends = [(&one, pair.0), (&other, pair.1)].map(|(context, _)| end(context, bytes));
    let [Ok(a), Ok(b)] = &mut ends else {
        let error = ends.into_iter().find_map(Result::err);
        return Err(error.unwrap_or_else(|| Wrong::new(Trouble::NoAnswer, "no memory")));
    };
    let gpus = Some((name(&one, pair.0), name(&other, pair.1)));
    let mut results = Vec::new();
    for dir in &request.directions {
        let (from, to) = match dir {
            Direction::There => (&mut *a, &mut *b),
            Direction::Back => (&mut *b, &mut *a),
        };
        let rates = repeat(from, to, &sent, request)?;
        for (millis, verified) in rates {
            results.push(Measured {
                pair,
                dir: *dir,
                mbps: Some(megabytes_per_second(bytes, millis)),
                path: Some(path.as_str().to_owned()),
                verified: Some(verified),
                err: None,
                gpus: gpus.clone(),
            });
        }
    }
    Ok(results)
}

fn end(context: &Arc<CudaContext>, bytes: u64) -> Result<End, Wrong> {
    let stream = context.default_stream();
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let buffer = stream.alloc_zeros(length).map_err(|error| of_driver("cannot allocate memory", error))?;
    Ok(End { context: Arc::clone(context), stream, buffer })
}

/// Milliseconds of each copy, and whether the bytes were right. The bytes of the last copy are compared, over a
/// destination that was wiped first.
fn repeat(from: &mut End, to: &mut End, sent: &[u8], request: &Request) -> Result<Vec<(f32, bool)>, Wrong> {
    let failed = |doing: &'static str| move |error| of_driver(doing, error);
    from.stream.memcpy_htod(sent, &mut from.buffer).map_err(failed("cannot fill the memory"))?;
    to.stream.memset_zeros(&mut to.buffer).map_err(failed("cannot clear the memory"))?;
    to.stream.synchronize().map_err(failed("cannot clear the memory"))?;
    let mut times = Vec::new();
    for turn in 0..request.warmup.saturating_add(request.iters) {
        let millis = copy(from, to, sent.len()).map_err(failed("cannot copy"))?;
        if turn >= request.warmup {
            times.push(millis);
        }
    }
    let received = to.stream.clone_dtoh(&to.buffer).map_err(failed("cannot read the received bytes"))?;
    to.stream.synchronize().map_err(failed("cannot read the received bytes"))?;
    let verified = received == sent;
    Ok(times.into_iter().map(|millis| (millis, verified)).collect())
}

fn copy(from: &End, to: &mut End, bytes: usize) -> Result<f32, DriverError> {
    from.context.bind_to_thread()?;
    let flags = Some(sys::CUevent_flags_enum::CU_EVENT_DEFAULT);
    let (begin, end) = (from.context.new_event(flags)?, from.context.new_event(flags)?);
    let (source, _read) = from.buffer.device_ptr(&from.stream);
    let (target, _written) = to.buffer.device_ptr_mut(&to.stream);
    begin.record(&from.stream)?;
    // SAFETY: both buffers are `bytes` long and live until the stream has been waited for, below.
    unsafe {
        sys::cuMemcpyPeerAsync(
            target,
            to.context.cu_ctx(),
            source,
            from.context.cu_ctx(),
            bytes,
            from.stream.cu_stream(),
        )
    }
    .result()?;
    end.record(&from.stream)?;
    from.stream.synchronize()?;
    begin.elapsed_ms(&end)
}

fn path_between(one: &CudaContext, other: &CudaContext) -> Path {
    if one.ordinal() == other.ordinal() {
        return Path::Loopback;
    }
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: a valid place for the result, and two devices that are open.
        let answer = unsafe {
            sys::cuDeviceGetP2PAttribute(&raw mut value, attribute, one.cu_device(), other.cu_device())
        };
        answer.result().is_ok().then_some(value != 0)
    };
    path_of(
        ask(Attribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED),
        ask(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED),
    )
}

/// The path by the driver's two answers; `None`: no answer.
fn path_of(access: Option<bool>, atomics: Option<bool>) -> Path {
    match (access, atomics) {
        (Some(false), _) => Path::Host,
        (Some(true), Some(true)) => Path::Nvlink,
        (Some(true), Some(false)) => Path::Pcie,
        _ => Path::Unknown,
    }
}

fn enable_peer_access(from: &CudaContext, to: &CudaContext) -> Result<(), Wrong> {
    from.bind_to_thread().map_err(|error| of_driver("cannot use the device", error))?;
    // SAFETY: both contexts are open; the flags must be 0.
    let answer = unsafe { sys::cuCtxEnablePeerAccess(to.cu_ctx(), 0) };
    match answer {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => answer.result().map_err(|error| of_driver("cannot reach the other device", error)),
    }
}

fn name(context: &CudaContext, index: u32) -> String {
    let mut address = [0_u8; 16];
    // SAFETY: room for an address such as `0000:1b:00.0` and its terminator.
    let answer = unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr().cast(), 16, context.cu_device()) };
    let text: String = address.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    let address = answer.result().ok().map(|()| text);
    // The model determines whether there should be a link.
    let known: Vec<String> = context.name().ok().into_iter().chain(address).collect();
    if known.is_empty() { format!("GPU {index}") } else { format!("GPU {index} ({})", known.join(", ")) }
}

/// The wanted size, limited to a fraction of the free memory; `None`: less than one grain.
fn size(wanted: u64, free: u64) -> Option<u64> {
    let bytes = wanted.min(free / SHARE) / GRAIN * GRAIN;
    (bytes > 0).then_some(bytes)
}

fn megabytes_per_second(bytes: u64, millis: f32) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let bytes = bytes as f64;
    // Zero elapsed time is not a measurement.
    if millis > 0.0 { bytes / 1e6 / (f64::from(millis) / 1e3) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_copied_when_memory_is_short() {
        assert_eq!(size(256 << 20, 80 << 30), Some(256 << 20));
        assert_eq!(size(256 << 20, 100 << 20), Some(25 << 20));
        assert_eq!(size(256 << 20, (100 << 20) + 77), Some(25 << 20));
        assert_eq!(size(256 << 20, GRAIN * SHARE - 1), None);
        assert_eq!(size(256 << 20, 0), None);
    }

    #[test]
    fn a_megabyte_is_a_million_bytes() {
        assert!((megabytes_per_second(1_000_000_000, 20.0) - 50_000.0).abs() < 1e-6);
        assert!(megabytes_per_second(1, 0.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_link_needs_both_answers_of_the_driver() {
        assert_eq!(path_of(Some(true), Some(true)), Path::Nvlink);
        assert_eq!(path_of(Some(true), Some(false)), Path::Pcie);
        assert_eq!(path_of(Some(true), None), Path::Unknown);
        assert_eq!(path_of(Some(false), Some(true)), Path::Host);
        assert_eq!(path_of(None, Some(true)), Path::Unknown);
    }

    #[test]
    fn a_host_without_the_driver_is_reported() {
        // SAFETY: as above.
        if unsafe { is_culib_present() } {
            return;
        }
        let settings = diagnosis::switchbox::Settings {
            pairs: vec![SocketPair(0, 1)],
            are_pairs_given: true,
            min: diagnosis::switchbox::Rate(1),
            min_channels: 1,
            expected: diagnosis::switchbox::Expected::Any,
            models: Vec::new(),
        };
        let style = diagnosis::switchbox::Style::Repetitions;
        let timeout = std::time::Duration::from_secs(1);
        let request = Request::new(&settings, settings.pairs.clone(), style, timeout);
        let response = measure(&request);
        assert_eq!(response.devices, None);
        assert!(response.results[0].err.as_ref().unwrap().starts_with("tool missing: libcuda.so.1"));
    }
}
