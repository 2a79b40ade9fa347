//! Builds the fake libraries of NVIDIA's driver: `libnvidia-ml.so.1` of `fake_nvml.rs`, once a process, and others by
//! name. Shared by the suites of `agent` and `tests`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The directory that the fake NVML lies in, for `LD_LIBRARY_PATH`.
///
/// # Panics
/// `rustc` cannot build it.
pub fn folder(scratch: &Path) -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| built(&scratch.join("fake-nvml"), "fake_nvml.rs", "libnvidia-ml.so.1"))
}

/// Builds the library of this name from a file beside this one, and gives its directory.
///
/// # Panics
/// `rustc` cannot build it.
pub fn built(folder: &Path, source: &str, name: &str) -> PathBuf {
    // Several test processes may build at once: each builds its own and renames it into place.
    std::fs::create_dir_all(folder).expect("a directory");
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Clippy asks for the lines of what cargo builds; these libraries it does not see.
    #[test]
    fn every_unsafe_block_of_the_fakes_has_a_safety_comment() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let fakes = [
            "tests/support/fake_cuda.rs",
            "tests/support/fake_nvml.rs",
            "probes/src/child/local/cuda/cublas/fake.rs",
        ];
        for file in fakes {
            let text = fs::read_to_string(tree.join(file)).expect("it is part of the tree");
            let lines: Vec<&str> = text.lines().collect();
            let blocks: Vec<usize> = (1..lines.len()).filter(|at| lines[*at].contains("unsafe {")).collect();
            assert!(!blocks.is_empty(), "{file}: nothing to look at");
            for at in blocks {
                let is_argued = lines[at - 1].trim_start().starts_with("// SAFETY: ");
                assert!(is_argued, "{file}:{}: {}", at + 1, lines[at]);
            }
        }
    }
}
