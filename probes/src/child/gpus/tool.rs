//! A vendor's tool: it may be missing, fail, flood its output or hang. It and its descendants die with the probe,
//! which has the deadline.

use std::{
    env,
    ffi::OsStr,
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
};

use nix::{
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
    unistd::{AccessFlags, access},
};

use crate::child::{Reporter, session::descendants};
use processes::{reap::exit_cause, tree};

/// Longer than any list, in bytes.
const LONGEST: u64 = 256 << 10;

/// The characters of a tool's error message that are reported.
const LONGEST_MESSAGE: usize = 120;

/// Why a tool gave no usable output.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    /// The tool cannot be started.
    #[error("cannot be started: {0}")]
    Start(#[source] io::Error),
    /// The pipe or the exit status of the tool cannot be read.
    #[error("its output cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The tool prints too much.
    #[error("killed: printed more than {LONGEST} bytes")]
    Flood,
    #[error("{}{}{message}", exit_cause(*.status), if .message.is_empty() { "" } else { ": " })]
    Failed { status: ExitStatus, message: String },
}

/// Finds the first program with this name in the directories of a list like `PATH`. A relative directory is skipped.
pub(super) fn find(path: &OsStr, name: &str) -> Option<PathBuf> {
    let is_program = |tool: &PathBuf| tool.is_file() && access(tool, AccessFlags::X_OK).is_ok();
    env::split_paths(path).map(|folder| folder.join(name)).filter(|tool| tool.is_absolute()).find(is_program)
}

/// Describes a call of a tool: `/usr/bin/nvidia-smi topo -m`. Values of `--name=value` are left out.
pub(super) fn describe(tool: &Path, arguments: &[&str]) -> String {
    let mut message = tool.display().to_string();
    for argument in arguments {
        message.push(' ');
        match argument.split_once('=') {
            Some((name, _)) => message.push_str(&format!("{name}=...")),
            None => message.push_str(argument),
        }
    }
    message
}

/// Makes SIGTERM kill this process and all its descendants, whatever it waits for. Call it before there is a second
/// thread.
///
/// # Errors
/// The error of the system; then descendants of tools may be left behind.
pub(super) fn kill_tools_on_sigterm(reporter: Reporter) -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    let sigterm = SigSet::from(Signal::SIGTERM);
    // Inherited by all threads; the thread below waits for it.
    sigterm.thread_block()?;
    let wait = move || {
        let _signal = sigterm.wait();
        reporter.close(kill_leftovers)
    };
    thread::Builder::new().name("end".into()).spawn(wait).map(drop)
}

/// Kills what a tool has left behind.
pub(super) fn kill_leftovers() {
    tree::kill_pass(descendants);
}

/// Returns the output of the tool.
///
/// # Errors
/// When it cannot be started, prints too much, or fails; with its message.
pub(super) fn ask(tool: &Path, arguments: &[&str]) -> Result<String, ToolError> {
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
    let mut child = command.spawn().map_err(ToolError::Start)?;
    let mut text = Vec::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(LONGEST + 1).read_to_end(&mut text),
        None => Ok(0),
    };
    let is_flood = text.len() as u64 > LONGEST;
    if is_flood || read.is_err() {
        // It may have exited already.
        let _ended = child.kill();
    }
    let status = child.wait().map_err(ToolError::Read)?;
    read.map_err(ToolError::Read)?;
    if is_flood {
        return Err(ToolError::Flood);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    if status.success() {
        return Ok(text);
    }
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    Err(ToolError::Failed { status, message: first.chars().take(LONGEST_MESSAGE).collect() })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn shell(script: &str) -> Result<String, ToolError> {
        ask(Path::new("/bin/sh"), &["-c", script])
    }

    #[test]
    fn output_and_error_message_of_a_tool_are_read() {
        assert_eq!(ask(Path::new("/bin/echo"), &["a", "b"]).unwrap(), "a b\n");
        assert_eq!(shell("echo one; echo two >&2").unwrap(), "one\n");
        for (script, message) in [
            ("echo; echo ' no card '; exit 3", "exited with code 3: no card"),
            ("exit 3", "exited with code 3"),
            ("kill -KILL $$", "killed by SIGKILL"),
        ] {
            assert_eq!(shell(script).unwrap_err().to_string(), message);
        }
        let error = ask(Path::new("/nonexistent"), &[]).unwrap_err();
        assert!(error.to_string().starts_with("cannot be started: No such file"), "{error}");
    }

    #[test]
    fn a_tool_that_floods_is_killed() {
        let flood = shell("trap '' PIPE; while :; do echo 0123456789012345678901234567890123456789; done");
        assert!(matches!(flood, Err(ToolError::Flood)), "{flood:?}");
        let long = shell("head -c 262144 /dev/zero").unwrap();
        assert_eq!(long.len() as u64, LONGEST);
    }

    #[test]
    fn a_tool_is_an_executable_file_in_an_absolute_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("first/smi")).unwrap();
        for (place, mode) in [("second", 0o644), ("third", 0o755), ("fourth", 0o755)] {
            fs::create_dir(at(place)).unwrap();
            fs::write(at(place).join("smi"), "").unwrap();
            fs::set_permissions(at(place).join("smi"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let folders = ["first", "second", "third", "fourth"].map(at);
        let path = env::join_paths([PathBuf::from("."), PathBuf::new()].iter().chain(&folders)).unwrap();
        assert_eq!(find(&path, "smi"), Some(at("third/smi")));
        assert_eq!((find(&path, "other"), find(OsStr::new(""), "smi")), (None, None));
    }

    #[test]
    fn a_call_is_described_without_its_values() {
        let message = describe(Path::new("/bin/smi"), &["--query=a,b", "--format=csv", "-m"]);
        assert_eq!(message, "/bin/smi --query=... --format=... -m");
    }
}
