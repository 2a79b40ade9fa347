//! Builds the fake libraries of NVIDIA's driver, once a process: `libnvidia-ml.so.1` of `fake_nvml.rs`, `libcuda.so.1`
//! of `fake_cuda.rs`. Shared by the suites of `agent` and `tests`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The folder that the fake NVML lies in, for `LD_LIBRARY_PATH`.
///
/// # Panics
/// When `rustc` cannot build it.
pub fn folder(scratch: &Path) -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| built(&scratch.join("fake-nvml"), "fake_nvml.rs", "libnvidia-ml.so.1"))
}

/// The folder that the fake CUDA driver lies in.
///
/// # Panics
/// When `rustc` cannot build it.
#[allow(dead_code, reason = "not every suite that has this file computes")]
pub fn cuda(scratch: &Path) -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| built(&scratch.join("fake-cuda"), "fake_cuda.rs", "libcuda.so.1"))
}

fn built(folder: &Path, source: &str, name: &str) -> PathBuf {
    // Several test processes may build at once: each makes its own and moves it into place whole.
    std::fs::create_dir_all(folder).expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/support").join(source);
    let own = folder.join(format!("{}.so", std::process::id()));
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"])
        .arg(&own)
        .arg(source)
        .status()
        .expect("rustc, which has built this test");
    assert!(status.success(), "{name} does not build");
    std::fs::rename(&own, folder.join(name)).expect("in place");
    folder.to_owned()
}
