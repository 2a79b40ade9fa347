//! Arithmetic with known results on all multiprocessors of a device, by a kernel of our own, which needs only the
//! driver.
//!
//! Run on an H200 by `tests/hardware`: 6.4 ms a sample.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cudarc::{
    driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg as _},
    nvrtc::Ptx,
};

/// Iterates the logistic map: each number depends on every bit of the one before, so no error is lost. Without
/// flushing to zero and reordering, a processor computes the very same bits.
const KERNEL: &str = include_str!("logistic.ptx");

/// Threads of one launch, and steps of each.
const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;
const TURNS: u32 = 4096;

/// Launches in one sample.
const LAUNCHES: u32 = 64;

/// Start values of a launch; every thread takes one of them.
const SEEDS: usize = 32;

/// Takes `times` samples.
///
/// # Errors
/// A description, when the driver fails or a number is wrong.
pub(super) fn samples(context: &Arc<CudaContext>, times: u32) -> Result<Vec<Duration>, String> {
    let message = |doing: &'static str| move |error: DriverError| format!("{doing}: {error}");
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(KERNEL)).map_err(message("cannot load the kernel"))?;
    let function = module.load_function("logistic").map_err(message("cannot load the kernel"))?;
    let length = BLOCKS * THREADS;
    let mut out = stream
        .alloc_zeros::<f32>(usize::try_from(length).unwrap_or_default())
        .map_err(message("cannot allocate memory"))?;
    let config = LaunchConfig { grid_dim: (BLOCKS, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
    let mut sample = |launches: u32| -> Result<Duration, DriverError> {
        let began = Instant::now();
        for _ in 0..launches {
            let mut launch = stream.launch_builder(&function);
            launch.arg(&mut out).arg(&TURNS);
            // SAFETY: the kernel takes these two, and writes one number per thread, for which there is room.
            unsafe { launch.launch(config) }?;
        }
        stream.synchronize()?;
        Ok(began.elapsed())
    };
    // Wakes the device.
    sample(1).map_err(message("cannot compute"))?;
    let times =
        (0..times).map(|_| sample(LAUNCHES)).collect::<Result<_, _>>().map_err(message("cannot compute"))?;
    let numbers = stream.clone_dtoh(&out).map_err(message("cannot read the result"))?;
    check(&numbers)?;
    Ok(times)
}

/// The result of a thread with this seed.
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
            return Err(format!("wrong arithmetic: thread {thread} computed {got} instead of {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_stays_in_range_and_a_wrong_bit_is_detected() {
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
