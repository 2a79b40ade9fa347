//! A vendor's tool: it may be missing, fail, flood its output or hang. It dies with the probe that asks, which has the
//! deadline, and so does whatever the tool has started.

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
use processes::tree;

/// More than any list is long, in bytes.
const LONGEST: u64 = 256 << 10;

/// Characters of a complaint that are told.
const LONGEST_MESSAGE: usize = 120;

/// Why a tool said nothing of use.
#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    /// It cannot be started.
    #[error("cannot be started: {0}")]
    Start(#[source] io::Error),
    /// Its pipe, or its end.
    #[error("its output cannot be read: {0}")]
    Read(#[source] io::Error),
    /// It floods.
    #[error("killed: printed more than {LONGEST} bytes")]
    Flood,
    /// It failed.
    #[error("failed ({status}){}{message}", if .message.is_empty() { "" } else { ": " })]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// Its first line.
        message: String,
    },
}

/// The first program of this name in the folders of a list like `PATH`. A folder that is not absolute does not count: it
/// would be another one wherever this process runs.
pub(super) fn find(path: &OsStr, name: &str) -> Option<PathBuf> {
    let is_program = |tool: &PathBuf| tool.is_file() && access(tool, AccessFlags::X_OK).is_ok();
    env::split_paths(path).map(|folder| folder.join(name)).filter(|tool| tool.is_absolute()).find(is_program)
}

/// A question to a tool, for people: `/usr/bin/nvidia-smi topo -m`. Of long lists of fields only what they are for.
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

/// From now on SIGTERM ends this process and all that it has started, whatever it waits for. Who asks a tool that is killed
/// so has no word in it: it was at this question when the time was over. To be called before there is another thread.
///
/// # Errors
/// What the system says; then tools may leave somebody behind.
pub(super) fn kill_tools_on_sigterm(reporter: Reporter) -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    let subscribers = SigSet::from(Signal::SIGTERM);
    // All threads have it so, and the one below asks for it.
    subscribers.thread_block()?;
    let wait = move || {
        let _signal = subscribers.wait();
        reporter.close(kill_leftovers)
    };
    thread::Builder::new().name("end".into()).spawn(wait).map(drop)
}

/// SIGKILL for whatever a tool has left behind.
pub(super) fn kill_leftovers() {
    tree::kill_pass(descendants);
}

/// What the tool prints.
///
/// # Errors
/// When it cannot be started, prints too much, or does not end well; with what it complains of.
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
        // One that has ended already is fine as well.
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
    fn a_tool_is_heard_and_its_complaint_too() {
        assert_eq!(ask(Path::new("/bin/echo"), &["a", "b"]).unwrap(), "a b\n");
        assert_eq!(shell("echo one; echo two >&2").unwrap(), "one\n");
        for (script, message) in [
            ("echo; echo ' no card '; exit 3", "failed (exit status: 3): no card"),
            ("exit 3", "failed (exit status: 3)"),
            ("kill -KILL $$", "failed (signal: 9 (SIGKILL))"),
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
    fn a_question_is_told_without_its_fields() {
        let message = describe(Path::new("/bin/smi"), &["--query=a,b", "--format=csv", "-m"]);
        assert_eq!(message, "/bin/smi --query=... --format=... -m");
    }
}
