//! Builds the fake libraries of NVIDIA's driver: `libnvidia-ml.so.1` of `fake_nvml.rs`, once a process, and others by
//! name. Shared by the suites of `agent` and `tests`.

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

/// Builds the library of this name from a file beside this one, and gives its folder.
///
/// # Panics
/// When `rustc` cannot build it.
pub fn built(folder: &Path, source: &str, name: &str) -> PathBuf {
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
