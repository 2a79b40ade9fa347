//! Another `dlrover-run` on PATH, such as upstream's console script in the same image.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
};

const OURS: &str = env!("CARGO_BIN_EXE_dlrover-run-under-test");

/// Standard error of a small job.
fn told(program: impl AsRef<std::ffi::OsStr>, folders: &[&Path]) -> String {
    let system = [Path::new("/usr/bin"), Path::new("/bin")];
    let path = std::env::join_paths(folders.iter().copied().chain(system)).unwrap();
    let mut command = Command::new(program);
    let output = command
        .args(["--standalone", "--no-python", "true"])
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    words
}

#[test]
fn another_dlrover_run_on_path_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, link, upstream] = ["ours", "link", "upstream"].map(|name| folder.path().join(name));
    for folder in [&ours, &link, &upstream] {
        fs::create_dir(folder).unwrap();
    }
    for folder in [&ours, &link] {
        symlink(OURS, folder.join("dlrover-run")).unwrap();
    }
    let script = upstream.join("dlrover-run");
    fs::write(&script, "#!/bin/sh\nexit 9\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();

    let words = told("dlrover-run", &[&ours, &link, &upstream]);
    let line = format!("PATH has another dlrover-run: {}; ", script.display());
    assert_eq!(words.matches(&line).count(), 1, "{words}");
    assert!(
        words.contains("dlrover-run: this is /") && words.contains("dlrover-run-under-test; "),
        "{words}"
    );

    for words in [told("dlrover-run", &[&ours, &link]), told(OURS, &[&ours, &upstream])] {
        assert!(!words.contains("another dlrover-run"), "one program, or one by its path: {words}");
    }
}
