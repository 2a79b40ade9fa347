//! A vendor's tool, asked for a list. It dies with the probe that asks, which has the deadline, and so does whatever the
//! tool has started.

use std::{
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{self, Command, Stdio},
    thread,
};

use nix::{
    libc,
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
};

use crate::tree;

/// More than any list is long. What is more is not read.
const LONGEST: u64 = 256 << 10;

/// From now on SIGTERM ends this process and all that it has started, whatever it waits for. To be called before there
/// is another thread.
///
/// # Errors
/// What the system says; then tools may leave somebody behind.
pub(super) fn take_tools_along() -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    let told = SigSet::from(Signal::SIGTERM);
    // All threads have it so, and the one below asks for it.
    told.thread_block()?;
    let wait = move || {
        let _signal = told.wait();
        clear_away();
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(1) }
    };
    thread::Builder::new().name("end".into()).spawn(wait).map(drop)
}

/// SIGKILL for whatever a tool has left behind.
pub(super) fn clear_away() {
    let me = i32::try_from(process::id()).unwrap_or(i32::MAX);
    tree::kill_pass(|| tree::below(me));
}

/// What the tool prints.
///
/// # Errors
/// When it cannot be started, or does not end well; with what it complains of.
pub(super) fn ask(tool: &Path, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new(tool);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: the closure makes only system calls: no allocation, no lock.
    unsafe {
        command.pre_exec(|| {
            prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(LONGEST).read_to_end(&mut text)?;
    }
    // Its pipe is closed now: one that prints without end dies of that.
    let status = child.wait()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if status.success() {
        return Ok(text);
    }
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    Err(io::Error::other(format!("it ended with {status} and said: {}", first.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_heard_and_its_complaint_too() {
        assert_eq!(ask(Path::new("/bin/echo"), &["a", "b"]).unwrap(), "a b\n");
        let error = ask(Path::new("/bin/sh"), &["-c", "echo; echo no card; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("no card"), "{error}");
        assert!(ask(Path::new("/nonexistent"), &[]).is_err());
    }

    #[test]
    fn a_tool_that_floods_is_cut_off() {
        let flood = ask(Path::new("/bin/sh"), &["-c", "exec yes"]);
        assert!(flood.is_err());
    }
}
