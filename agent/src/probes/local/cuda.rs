//! NVIDIA devices, through the driver alone (`libcuda.so.1`, looked for when the program runs).
//!
//! Of every device that the driver shows (it minds `CUDA_VISIBLE_DEVICES`): known bytes to its memory and back, and
//! arithmetic of known result on all of its multiprocessors.
//!
//! NOT RUN ON A DEVICE YET: there was none where it was written. What has been tried is a host without the driver,
//! which is a fact and not a fault, and the arithmetic on a processor.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use cudarc::{
    driver::{
        CudaContext, CudaStream, DriverError, LaunchConfig, PushKernelArg as _, result,
        sys::{CUresult, is_culib_present},
    },
    nvrtc::Ptx,
};
use rules::network_check::LocalFault;

use crate::probes::{
    child::Voice,
    pattern::{BLOCK, Pattern},
    wire::Word,
};

/// A step of the logistic map, again and again: each number depends on every bit of the one before, so nothing that
/// goes wrong on the way is lost. No flushing to zero and no reordering, so a processor comes to the very same bits.
const KERNEL: &str = include_str!("logistic.ptx");

/// Threads of one launch, and steps of each.
const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;
const TURNS: u32 = 4096;

/// Launches in one sample.
const LAUNCHES: u32 = 64;

/// Bytes to a device and back.
const MEMORY: usize = 64 << 20;

/// Numbers that a launch begins with; every thread takes one of them.
const SEEDS: usize = 32;

/// So many samples of each device, as they come; one inner list a device. Empty without driver or devices.
///
/// # Errors
/// The first device that does wrong.
pub(super) fn samples(times: u32, voice: &Voice) -> Result<Vec<Vec<Duration>>, LocalFault> {
    voice.say(&Word::At("gpu".into()));
    // SAFETY: loads and unloads the library, whose constructors are the driver's own.
    if !unsafe { is_culib_present() } {
        return Ok(Vec::new());
    }
    // A driver older than a function that is called here makes cudarc panic. It may be well all the same.
    let all = catch_unwind(AssertUnwindSafe(|| all_devices(times, voice)));
    all.unwrap_or(Ok(Vec::new()))
}

fn all_devices(times: u32, voice: &Voice) -> Result<Vec<Vec<Duration>>, LocalFault> {
    let count = match CudaContext::device_count() {
        Ok(count) => count,
        Err(error) if is_absence(&error) => 0,
        Err(error) => return Err(fault("gpu", &error.to_string())),
    };
    (0..count)
        .map(|index| {
            let component = format!("gpu {index}");
            voice.say(&Word::At(component.clone()));
            if let Ok(name) = result::device::get(index).and_then(result::device::get_name) {
                voice.say(&Word::At(format!("{component} ({name})")));
            }
            one_device(usize::try_from(index).unwrap_or_default(), times)
                .map_err(|reason| fault(&component, &reason))
        })
        .collect()
}

/// A library without any device behind it: a host that only builds, a container that was given none.
fn is_absence(error: &DriverError) -> bool {
    matches!(error.0, CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY)
}

fn fault(component: &str, reason: &str) -> LocalFault {
    LocalFault { component: component.to_owned(), reason: reason.to_owned() }
}

fn one_device(index: usize, times: u32) -> Result<Vec<Duration>, String> {
    let words = |doing: &'static str| move |error: DriverError| format!("{doing}: {error}");
    let context = CudaContext::new(index).map_err(words("cannot open the device"))?;
    let stream = context.default_stream();
    memory(&stream)?;
    let module = context.load_module(Ptx::from_src(KERNEL)).map_err(words("cannot load the kernel"))?;
    let function = module.load_function("logistic").map_err(words("cannot load the kernel"))?;
    let length = BLOCKS * THREADS;
    let mut out = stream
        .alloc_zeros::<f32>(usize::try_from(length).unwrap_or_default())
        .map_err(words("cannot get memory"))?;
    let config = LaunchConfig { grid_dim: (BLOCKS, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
    let mut sample = |launches: u32| -> Result<Duration, DriverError> {
        let began = Instant::now();
        for _ in 0..launches {
            let mut launch = stream.launch_builder(&function);
            launch.arg(&mut out).arg(&TURNS);
            // SAFETY: the kernel takes these two, and writes one number a thread, for which there is room.
            unsafe { launch.launch(config) }?;
        }
        stream.synchronize()?;
        Ok(began.elapsed())
    };
    // The first one finds the device asleep.
    sample(1).map_err(words("cannot compute"))?;
    let times =
        (0..times).map(|_| sample(LAUNCHES)).collect::<Result<_, _>>().map_err(words("cannot compute"))?;
    let numbers = stream.clone_dtoh(&out).map_err(words("cannot read the result"))?;
    check(&numbers)?;
    Ok(times)
}

fn memory(stream: &std::sync::Arc<CudaStream>) -> Result<(), String> {
    let blocks = Pattern::new(0, &[MEMORY as u64]).blocks();
    let sent: Vec<u8> = (0..MEMORY / BLOCK).flat_map(|index| blocks.get(index as u64)).copied().collect();
    let words = |error: DriverError| format!("cannot move bytes to the device and back: {error}");
    let there = stream.clone_htod(&sent).map_err(words)?;
    let back = stream.clone_dtoh(&there).map_err(words)?;
    stream.synchronize().map_err(words)?;
    match sent.iter().zip(&back).position(|(sent, back)| sent != back) {
        None => Ok(()),
        Some(at) => Err(format!(
            "wrong bytes in its memory: at offset {at}, 0x{:02x} came back in place of 0x{:02x}",
            back[at], sent[at]
        )),
    }
}

/// What a thread with this seed comes to.
fn expected(seed: usize) -> f32 {
    let mut x = f32::from(u8::try_from(seed + 1).unwrap_or_default()) / 64.0;
    for _ in 0..TURNS {
        x = (-x).mul_add(x, x) * 3.9;
    }
    x
}

fn check(numbers: &[f32]) -> Result<(), String> {
    let expected: Vec<f32> = (0..SEEDS).map(expected).collect();
    for (thread, got) in numbers.iter().enumerate() {
        let expected = expected[thread % SEEDS];
        if got.to_bits() != expected.to_bits() {
            return Err(format!("wrong arithmetic: thread {thread} came to {got} in place of {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_stays_in_its_range_and_a_wrong_bit_is_seen() {
        let mut numbers: Vec<f32> = (0..2 * SEEDS).map(|thread| expected(thread % SEEDS)).collect();
        assert!(numbers.iter().all(|number| *number > 0.0 && *number < 1.0));
        assert_eq!(check(&numbers), Ok(()));
        numbers[SEEDS + 3] = f32::from_bits(numbers[SEEDS + 3].to_bits() ^ 1);
        assert!(check(&numbers).unwrap_err().contains("thread 35 "));
    }

    #[test]
    fn the_kernel_has_the_constants_of_the_check() {
        assert!(KERNEL.contains(&format!("0f{:08X};  // 3.9", 3.9_f32.to_bits())));
        assert!(KERNEL.contains(&format!("0f{:08X};  // 1/64", (1.0_f32 / 64.0).to_bits())));
        assert!(KERNEL.contains(&format!("{};  // seeds - 1", SEEDS - 1)));
        assert!(KERNEL.is_ascii() && !KERNEL.contains('\0'));
    }
}
