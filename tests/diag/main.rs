//! `dlrover-diag` and `dlrover-master` as a person at a keyboard meets them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pair;

use std::process::{Command, Stdio};

fn diag(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
