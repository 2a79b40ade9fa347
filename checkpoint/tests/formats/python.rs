//! Interpreters.

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    path::Path,
    process::Command,
};

/// Runs a script of this directory and returns what it wrote.
#[track_caller]
pub fn run(python: &OsStr, script: &str, arguments: &[&OsStr], variables: &[(&str, &str)]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/python");
    let mut command = Command::new(python);
    command.arg(folder.join(script)).args(arguments).envs(variables.iter().copied());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{script} {arguments:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// The interpreter with torch, or nothing where there is none.
pub fn with_torch() -> Option<OsString> {
    let python = std::env::var_os("TORCH_PYTHON").filter(|python| !python.is_empty());
    if python.is_none() {
        skipped("TORCH_PYTHON is not set");
    }
    python
}

/// Says, past cargo's capture, that something was not tested.
pub fn skipped(why: &str) {
    // A closed stderr must not fail the case.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}
