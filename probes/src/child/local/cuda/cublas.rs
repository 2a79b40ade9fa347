//! cuBLAS, of which four functions are needed, looked for when the program runs.
//!
//! It is looked for where the system's loader looks: `LD_LIBRARY_PATH` and the loader's own cache. The one in a pip wheel
//! (`site-packages/nvidia/cu13/lib`, before CUDA 13 `site-packages/nvidia/cublas/lib`) is on no such path: who wants it to be
//! used puts that folder into `LD_LIBRARY_PATH`. Nothing else is searched.
//!
//! What is declared here is in the headers of CUDA 11 to 13 alike. cudarc has it too, but looks for no library newer than
//! the driver that it was built for, and panics where a function is missing.

use std::{
    ffi::{OsStr, c_int, c_void},
    ptr::{from_ref, null_mut},
};

use libloading::Library;

/// By which names it is looked for, the newest first.
pub(super) const NAMES: [&str; 4] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"];

const SUCCESS: c_int = 0;
/// `CUBLAS_OP_N`: not transposed.
const AS_IT_IS: c_int = 0;
/// `CUDA_R_16F` and `CUDA_R_32F`.
const HALF: c_int = 2;
const SINGLE: c_int = 0;
/// `CUBLAS_COMPUTE_32F`: sums are single precision.
const SUMS_IN_SINGLE: c_int = 68;
/// `CUBLAS_GEMM_DEFAULT`: the library's choice.
const ITS_CHOICE: c_int = -1;

type RawHandle = *mut c_void;
type Create = unsafe extern "C" fn(*mut RawHandle) -> c_int;
type Destroy = unsafe extern "C" fn(RawHandle) -> c_int;
type SetStream = unsafe extern "C" fn(RawHandle, *mut c_void) -> c_int;
/// Handle, two transpositions, rows, columns, depth, a factor to the product; twice the matrix, its type and the length of
/// its columns; a factor to the sum; the same of the sum; type of the sums, algorithm.
type GemmEx = unsafe extern "C" fn(
    RawHandle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// What the library said, by its number; or that it was not found, or lacks a function.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CublasError {
    Absent,
    Status(c_int),
}

fn status(status: c_int) -> Result<(), CublasError> {
    if status == SUCCESS { Ok(()) } else { Err(CublasError::Status(status)) }
}

/// The library's functions. It stays loaded for good: devices may still work for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    gemm_ex: GemmEx,
}

impl Api {
    pub(super) fn load(name: impl AsRef<OsStr>) -> Result<Self, CublasError> {
        // SAFETY: runs the library's constructors, which are NVIDIA's own.
        let library = unsafe { Library::new(name.as_ref()) }.map_err(|_| CublasError::Absent)?;
        let library: &Library = Box::leak(Box::new(library));
        // SAFETY: each has the type that the library's header gives it.
        unsafe {
            Ok(Self {
                create: function(library, b"cublasCreate_v2\0")?,
                destroy: function(library, b"cublasDestroy_v2\0")?,
                set_stream: function(library, b"cublasSetStream_v2\0")?,
                gemm_ex: function(library, b"cublasGemmEx\0")?,
            })
        }
    }
}

/// # Safety
/// The function must have this type.
unsafe fn function<F: Copy>(library: &Library, name: &[u8]) -> Result<F, CublasError> {
    // SAFETY: the caller knows the type.
    unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|_| CublasError::Absent)
}

/// The library, at work on one stream of one device.
#[derive(Debug)]
pub(super) struct Handle {
    api: Api,
    raw: RawHandle,
}

impl Handle {
    /// # Safety
    /// The stream must outlive the handle, and its device's context be this thread's.
    pub(super) unsafe fn new(api: Api, stream: *mut c_void) -> Result<Self, CublasError> {
        let mut raw = null_mut();
        // SAFETY: there is room for the handle.
        status(unsafe { (api.create)(&raw mut raw) })?;
        let handle = Self { api, raw };
        // SAFETY: the handle is valid, and the caller's stream is.
        status(unsafe { (api.set_stream)(handle.raw, stream) })?;
        Ok(handle)
    }

    /// Begins to compute the product of two square matrices in half precision, in single precision; all of them row by row.
    ///
    /// # Safety
    /// The three must be the addresses of `size` times `size` numbers where the stream's device can reach them, until the
    /// stream is done; nobody else may touch the product meanwhile.
    pub(super) unsafe fn multiply(
        &self,
        size: c_int,
        left: *const c_void,
        right: *const c_void,
        product: *mut c_void,
    ) -> Result<(), CublasError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        // The library counts column by column and so sees every matrix transposed; and the transpose of a product is the
        // product of the transposes, the other way round.
        // SAFETY: as the caller says of the matrices; the two factors are read before the call returns.
        status(unsafe {
            (self.api.gemm_ex)(
                self.raw,
                AS_IT_IS,
                AS_IT_IS,
                size,
                size,
                size,
                from_ref(&one).cast(),
                right,
                HALF,
                size,
                left,
                HALF,
                size,
                from_ref(&zero).cast(),
                product,
                SINGLE,
                size,
                SUMS_IN_SINGLE,
                ITS_CHOICE,
            )
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it came from the library, and nobody has destroyed it. What is said to this is of no use to anybody.
        let _ignored = unsafe { (self.api.destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests;
