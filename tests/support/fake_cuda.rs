//! A `libcuda.so.1` that has the eight accelerators of `fake_nvml.rs` and opens none, so that a process that computes shows which one
//! it was about to use. It respects `CUDA_VISIBLE_DEVICES` (ids or numbers), and without it counts them from the last one
//! on, as the real one counts the fastest first. What it is shown lands in the file that `FAKE_CUDA_SEEN` names.

#![allow(non_snake_case, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, clippy::not_unsafe_ptr_arg_deref)]

use std::{
    env,
    ffi::{c_char, c_int, c_uint, c_void},
};

const SUCCESS: c_int = 0;
const INVALID_DEVICE: c_int = 101;
const DEVICE_UNAVAILABLE: c_int = 46;

/// The devices that are shown, by NVML's numbers.
fn shown() -> Vec<u8> {
    let Ok(list) = env::var("CUDA_VISIBLE_DEVICES") else { return (0..8).rev().collect() };
    let number = |entry: &str| entry.trim().trim_start_matches("GPU-0000000").get(..1)?.parse().ok();
    list.split(',').map_while(number).collect()
}

fn write(text: &str, to: *mut c_char, length: c_int) -> c_int {
    assert!(text.len() < length as usize);
    // SAFETY: the caller gives `length` bytes, and the text with its zero is no longer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        *to.add(text.len()) = 0;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    if let Ok(file) = env::var("FAKE_CUDA_SEEN") {
        let list = env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "all".into());
        std::fs::write(file, list).unwrap();
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(to: *mut c_int) -> c_int {
    // SAFETY: the caller gives a place for one number.
    unsafe { to.write(shown().len() as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> c_int {
    if ordinal as usize >= shown().len() {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller gives a place for one number.
    unsafe { to.write(ordinal) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(to: *mut c_char, length: c_int, _device: c_int) -> c_int {
    write("NVIDIA Fake 80GB", to, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, length: c_int, device: c_int) -> c_int {
    write(&format!("0000:{:02X}:00.0", 0x10 + shown()[device as usize]), to, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(_context: *mut *mut c_void, _device: c_int) -> c_int {
    DEVICE_UNAVAILABLE
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(_error: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer, and the text is static.
    unsafe { to.write(c"CUDA_ERROR_DEVICE_UNAVAILABLE".as_ptr()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(_error: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer, and the text is static.
    unsafe { to.write(c"it is not opened".as_ptr()) };
    SUCCESS
}
