//! A library with cuBLAS's functions that works in the processor's memory, for the tests. A program of its own.

#![crate_type = "cdylib"]

use std::ffi::{c_int, c_void};

const INVALID_VALUE: c_int = 7;

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut c_void) -> c_int {
    // SAFETY: the caller gives a place for a handle, as cuBLAS demands.
    unsafe { *handle = 0x1234 as *mut c_void };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: *mut c_void) -> c_int {
    if handle as usize == 0x1234 { 0 } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) -> c_int {
    // A stream that is refused.
    if handle as usize == 0x1234 && stream as usize != 0xbad { 0 } else { INVALID_VALUE }
}

/// The value of the bits, by the standard.
fn value(half: u16) -> f32 {
    let (exponent, behind) = (i32::from(half >> 10 & 0x1f), f32::from(half & 0x3ff) / 1024.0);
    let magnitude = match exponent {
        0 => behind * 2.0_f32.powi(-14),
        exponent => (1.0 + behind) * 2.0_f32.powi(exponent - 15),
    };
    if half >> 15 == 1 { -magnitude } else { magnitude }
}

/// As the manual defines it: C = alpha op(A) op(B) + beta C, column by column; A is m by k, B k by n, C m by n.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn cublasGemmEx(
    handle: *mut c_void,
    transa: c_int,
    transb: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    lda: c_int,
    b: *const c_void,
    b_type: c_int,
    ldb: c_int,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    ldc: c_int,
    compute_type: c_int,
    algo: c_int,
) -> c_int {
    let is_known = [transa, transb, a_type, b_type, c_type, compute_type, algo] == [0, 0, 2, 2, 0, 68, -1];
    if handle as usize != 0x1234 || !is_known || lda < m || ldb < k || ldc < m {
        return INVALID_VALUE;
    }
    let [m, n, k, lda, ldb, ldc] = [m, n, k, lda, ldb, ldc].map(|it| it as usize);
    // SAFETY: with this compute type alpha and beta point to one f32 each, in the memory of the host.
    let (alpha, beta) = unsafe { (*alpha.cast::<f32>(), *beta.cast::<f32>()) };
    let (a, b, c) = (a.cast::<u16>(), b.cast::<u16>(), c.cast::<f32>());
    for row in 0..m {
        for column in 0..n {
            // SAFETY: the leading dimensions were compared above, so both places are within the matrices that the caller gives.
            let term = |i: usize| unsafe { value(*a.add(i * lda + row)) * value(*b.add(column * ldb + i)) };
            let sum: f32 = (0..k).map(term).sum();
            // SAFETY: so is this one, and nothing else refers to it.
            let to = unsafe { &mut *c.add(column * ldc + row) };
            *to = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *to };
        }
    }
    0
}
