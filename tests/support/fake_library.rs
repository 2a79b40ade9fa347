//! Builds the fake `libnvidia-ml.so.1` of `fake_nvml.rs`, once a process. Shared by the suites of `agent` and `tests`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The folder that it lies in, for `LD_LIBRARY_PATH`.
///
/// # Panics
/// When `rustc` cannot build it.
pub fn folder(scratch: &Path) -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Several test processes may build at once: each makes its own and moves it into place whole.
        let folder = scratch.join("fake-nvml");
        std::fs::create_dir_all(&folder).expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/support/fake_nvml.rs");
        let own = folder.join(format!("{}.so", std::process::id()));
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"])
            .arg(&own)
            .arg(source)
            .status()
            .expect("rustc, which has built this test");
        assert!(status.success(), "the fake NVML does not build");
        std::fs::rename(&own, folder.join("libnvidia-ml.so.1")).expect("in place");
        folder
    })
}
