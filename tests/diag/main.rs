//! `dlrover-diag` and `dlrover-master` as a person at a keyboard meets them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pair;
mod start;

use std::process::{Command, Stdio};

fn diag(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a program that must not go on says, and its exit code.
fn refusal_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
