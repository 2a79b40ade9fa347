//! The real loading path, with a library of four functions that is compiled by the test.

use std::{path::PathBuf, process::Command, ptr::null_mut};

use tempfile::TempDir;

use super::{
    super::{super::factors, matmul::half},
    *,
};

const SIZE: usize = 24;

/// Compiles the library.
fn fake(folder: &TempDir, code: &str) -> PathBuf {
    let (source, library) = (folder.path().join("fake.rs"), folder.path().join("libcublas.so.13"));
    std::fs::write(&source, code).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let made =
        Command::new(rustc).args(["--edition=2024", "-o"]).arg(&library).arg(&source).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    library
}

#[test]
fn the_product_passes_the_check_and_a_wrong_number_fails_it() {
    let folder = TempDir::new().unwrap();
    let api = Api::load(fake(&folder, include_str!("fake.rs"))).unwrap();
    let left = factors::matrix(SIZE, factors::left, half);
    let right = factors::matrix(SIZE, factors::right, half);
    // SAFETY: the library that was made here works on the processor's memory and knows no streams.
    let handle = unsafe { Handle::new(api, null_mut()) }.unwrap();
    let product = |left: &[u16], right: &[u16]| {
        let mut product = vec![f32::NAN; SIZE * SIZE];
        let size = c_int::try_from(SIZE).unwrap();
        let to = product.as_mut_ptr().cast();
        // SAFETY: all three have SIZE by SIZE numbers.
        unsafe { handle.multiply(size, left.as_ptr().cast(), right.as_ptr().cast(), to) }.unwrap();
        product
    };
    let mut right_one = product(&left, &right);
    assert_eq!(factors::check(SIZE, &right_one), Ok(()));
    assert!(factors::check(SIZE, &product(&right, &left)).is_err());
    right_one[3 * SIZE + 1] -= 1.0;
    assert!(factors::check(SIZE, &right_one).unwrap_err().contains("row 3 "));
}

#[test]
fn a_missing_library_or_function_or_a_failed_call_is_an_error() {
    let folder = TempDir::new().unwrap();
    let api = Api::load(fake(&folder, include_str!("fake.rs"))).unwrap();
    // SAFETY: the library that was made here knows no streams.
    let refused = unsafe { Handle::new(api, 0xbad as *mut c_void) };
    assert_eq!(refused.unwrap_err(), CublasError::Status(7));
    let folder = TempDir::new().unwrap();
    let hollow = fake(
        &folder,
        "#![crate_type = \"cdylib\"]\n#[unsafe(no_mangle)] extern \"C\" fn cublasCreate_v2() {}",
    );
    assert_eq!(Api::load(hollow).unwrap_err(), CublasError::Absent);
    std::fs::write(folder.path().join("text"), "no library").unwrap();
    for name in ["text", "nothing"] {
        assert_eq!(Api::load(folder.path().join(name)).unwrap_err(), CublasError::Absent);
    }
}
