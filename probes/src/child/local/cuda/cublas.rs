//! cuBLAS: the four functions that are needed, loaded at run time.
//!
//! It is searched where the system's loader searches: `LD_LIBRARY_PATH` and the loader's cache. The directory of a pip
//! wheel (`site-packages/nvidia/cu13/lib`, before CUDA 13 `site-packages/nvidia/cublas/lib`) has to be added to
//! `LD_LIBRARY_PATH`.
//!
//! The declarations are the same in the headers of CUDA 11 to 13. cudarc's own bindings look for no library newer
//! than the driver that they were built for, and panic where a function is missing.

use std::{
    ffi::{OsStr, c_int, c_void},
    ptr::{from_ref, null_mut},
};

use libloading::Library;

/// Names that are tried, the newest first.
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
/// Handle, two transpositions, rows, columns, depth, a factor to the product; twice the matrix, its type and its
/// leading dimension; a factor to the sum; the same of the sum; compute type, algorithm.
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

/// A status of the library, or that it or one of its functions was not found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CublasError {
    Absent,
    Status(c_int),
}

fn status(status: c_int) -> Result<(), CublasError> {
    if status == SUCCESS { Ok(()) } else { Err(CublasError::Status(status)) }
}

/// The library's functions. It is never unloaded: devices may still work for it.
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

/// The library on one stream of one device.
#[derive(Debug)]
pub(super) struct Handle {
    api: Api,
    raw: RawHandle,
}

impl Handle {
    /// # Safety
    /// The stream must outlive the handle, and its device's context must be current on this thread.
    pub(super) unsafe fn new(api: Api, stream: *mut c_void) -> Result<Self, CublasError> {
        let mut raw = null_mut();
        // SAFETY: there is room for the handle.
        status(unsafe { (api.create)(&raw mut raw) })?;
        let handle = Self { api, raw };
        // SAFETY: the handle is valid, and the caller's stream is.
        status(unsafe { (api.set_stream)(handle.raw, stream) })?;
        Ok(handle)
    }

    /// Starts the product of two square matrices in half precision, accumulated in single precision; all of them row
    /// by row.
    ///
    /// # Safety
    /// The three must be the addresses of `size` times `size` numbers in memory of the stream's device until the
    /// stream is done; nothing else may access the product meanwhile.
    pub(super) unsafe fn multiply(
        &self,
        size: c_int,
        left: *const c_void,
        right: *const c_void,
        product: *mut c_void,
    ) -> Result<(), CublasError> {
        let (one, zero) = (1.0_f32, 0.0_f32);
        // The library works column by column and so sees every matrix transposed; the transpose of a product is the
        // product of the transposes in reverse order.
        // SAFETY: as the caller guarantees for the matrices; the two
        // factors are read before the call returns.
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
        // SAFETY: created by the library and destroyed only here. A failure has no consequence.
        let _ignored = unsafe { (self.api.destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests;
