//! Matrix products by cuBLAS, timed by the device's clock: factors in half precision, sums in `f32`, so that they run
//! on the tensor cores as training does. The work is the same on every device.
//!
//! A failure of the library itself is not held against the device: our own kernel tests it then.
//!
//! Run on an H200 by `tests/hardware`, with cuBLAS 13. The numbers, their order, the check, and hosts without the
//! library are tested on a processor.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr as _, DevicePtrMut as _, DriverError,
    sys::CUevent_flags::CU_EVENT_DEFAULT,
};

use super::{
    super::factors,
    cublas::{Api, CublasError, Handle, NAMES},
};

/// Rows and columns. 128 MiB in a device's memory.
const SIZE: usize = 4096;

/// Products in one sample: 10.6 to 12 ms on an H200; about 40 ms on an A100 and 350 ms on a T4, by the vendor's figures.
const PRODUCTS: u32 = 64;

/// Devices below this compute capability have no tensor cores and would take seconds.
const OLDEST: i32 = 7;

/// The library must be loaded and have multiplied once within this. It has hundreds of MB, perhaps on a network file
/// system, which must not make a device look faulty.
const TIMEOUT: Duration = Duration::from_secs(15);

// Below this `f32` represents every whole number.
const _: () = assert!(SIZE as u64 * (factors::LARGEST as u64).pow(2) <= 1 << 24);

/// The library, once it was searched for.
#[derive(Debug, Default)]
pub(super) struct Matmul {
    /// The inner `None`: no library can multiply.
    api: Option<Option<Api>>,
}

impl Matmul {
    /// Takes `times` samples of this device. `None`: there is no library, or it cannot be used with this device.
    ///
    /// # Errors
    /// A description, when the device fails or a product is wrong.
    pub(super) fn samples(
        &mut self,
        context: &Arc<CudaContext>,
        times: u32,
    ) -> Result<Option<Vec<Duration>>, String> {
        if context.compute_capability().is_ok_and(|(major, _)| major < OLDEST) {
            return Ok(None);
        }
        let Some(api) = *self.api.get_or_insert_with(|| find(context)) else { return Ok(None) };
        match timed(api, context, times) {
            Ok(times) => Ok(Some(times)),
            Err(Wrong::Library) => Ok(None),
            Err(Wrong::Device(reason)) => Err(reason),
        }
    }
}

/// Returns the first library that can multiply on this device in time.
fn find(context: &Arc<CudaContext>) -> Option<Api> {
    let context = context.clone();
    let can_multiply = move |api: &Api| Device::new(*api, &context).and_then(|mut it| it.sample(1)).is_ok();
    within(TIMEOUT, move || NAMES.into_iter().filter_map(|name| Api::load(name).ok()).find(can_multiply))
}

/// Runs `work` on a thread with a time limit. A thread that hangs is abandoned: this process ends soon.
fn within<T: Send + 'static>(
    timeout: Duration,
    question: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let (answer, output) = mpsc::channel();
    let asked = thread::Builder::new().name("cublas".to_owned()).spawn(move || {
        let _nobody_waits = answer.send(question());
    });
    asked.ok().and_then(|_| output.recv_timeout(timeout).ok().flatten())
}

/// What failed.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    /// cuBLAS, or too little memory for it.
    Library,
    /// The device, with a description.
    Device(String),
}

impl From<CublasError> for Wrong {
    fn from(_: CublasError) -> Self {
        Self::Library
    }
}

fn timed(api: Api, context: &Arc<CudaContext>, times: u32) -> Result<Vec<Duration>, Wrong> {
    let mut device = Device::new(api, context)?;
    // Wakes the device.
    device.sample(2)?;
    let times = (0..times).map(|_| device.sample(PRODUCTS)).collect::<Result<_, _>>()?;
    factors::check(SIZE, &device.read()?).map_err(Wrong::Device)?;
    Ok(times)
}

fn message(doing: &'static str) -> impl Fn(DriverError) -> Wrong {
    move |error| Wrong::Device(format!("{doing}: {error}"))
}

/// Two factors and their product in a device's memory.
#[derive(Debug)]
struct Device {
    // Dropped first: its work may still be running.
    handle: Handle,
    stream: Arc<CudaStream>,
    left: CudaSlice<u16>,
    right: CudaSlice<u16>,
    product: CudaSlice<f32>,
}

impl Device {
    fn new(api: Api, context: &Arc<CudaContext>) -> Result<Self, Wrong> {
        let stream = context.default_stream();
        // Memory in use by others is not a fault of the device; the sums show whether the factors arrived intact.
        let no_room = |_: DriverError| Wrong::Library;
        context.bind_to_thread().map_err(message("cannot open the device"))?;
        // SAFETY: the stream is kept beside the handle, and dropped after it; the context was made this thread's.
        let handle = unsafe { Handle::new(api, stream.cu_stream().cast()) }?;
        let factor = |number| stream.clone_htod(&factors::matrix(SIZE, number, half)).map_err(no_room);
        let (left, right) = (factor(factors::left)?, factor(factors::right)?);
        let product = stream.alloc_zeros(SIZE * SIZE).map_err(no_room)?;
        Ok(Self { handle, stream, left, right, product })
    }

    /// The device's time for this many products.
    fn sample(&mut self, products: u32) -> Result<Duration, Wrong> {
        let event = |stream: &CudaStream| {
            stream.record_event(Some(CU_EVENT_DEFAULT)).map_err(message("cannot compute"))
        };
        let began = event(&self.stream)?;
        for _ in 0..products {
            self.multiply()?;
        }
        let ended = event(&self.stream)?;
        let millis = began.elapsed_ms(&ended).map_err(message("cannot compute"))?;
        Ok(Duration::try_from_secs_f64(f64::from(millis) / 1000.0).unwrap_or_default())
    }

    fn multiply(&mut self) -> Result<(), CublasError> {
        let size = i32::try_from(SIZE).unwrap_or_default();
        let (left, _reads_left) = self.left.device_ptr(&self.stream);
        let (right, _reads_right) = self.right.device_ptr(&self.stream);
        let (product, _writes) = self.product.device_ptr_mut(&self.stream);
        // SAFETY: SIZE by SIZE numbers each, in this device's memory; they live as long as the handle.
        unsafe { self.handle.multiply(size, left as *const _, right as *const _, product as *mut _) }
    }

    fn read(&self) -> Result<Vec<f32>, Wrong> {
        let numbers = self.stream.clone_dtoh(&self.product).map_err(message("cannot read the result"))?;
        self.stream.synchronize().map_err(message("cannot read the result"))?;
        Ok(numbers)
    }
}

/// A whole number of at most 11 bits in half precision: sign, 5 bits of exponent, 10 behind the point.
pub(super) fn half(number: i16) -> u16 {
    let magnitude = number.unsigned_abs();
    let Some(exponent) = magnitude.checked_ilog2().and_then(|it| u16::try_from(it).ok()) else { return 0 };
    let sign = u16::from(number < 0) << 15;
    sign | (exponent + 15) << 10 | (magnitude << 10u16.saturating_sub(exponent)) & 0x3ff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of those bits, by the standard.
    fn value(half: u16) -> f32 {
        let (exponent, behind) = (i32::from(half >> 10 & 0x1f), f32::from(half & 0x3ff) / 1024.0);
        let magnitude = if exponent == 0 {
            behind * 2.0_f32.powi(-14)
        } else {
            (1.0 + behind) * 2.0_f32.powi(exponent - 15)
        };
        if half >> 15 == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn whole_numbers_are_exact_in_half_precision() {
        for number in -2047..=2047 {
            assert_eq!(value(half(number)), f32::from(number), "{number}: {:#06x}", half(number));
        }
        assert_eq!([half(0), half(1), half(-2)], [0, 0x3c00, 0xc000]);
    }

    #[test]
    fn a_late_or_panicking_thread_has_no_result() {
        assert_eq!(within(Duration::from_secs(60), || Some(1)), Some(1));
        assert_eq!(within(Duration::from_secs(60), || None::<u8>), None);
        assert_eq!(within(Duration::from_secs(60), || -> Option<u8> { panic!("as cudarc may") }), None);
        let (hold, held) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(1), move || held.recv().is_err().then_some(1)), None);
        drop(hold);
    }
}
