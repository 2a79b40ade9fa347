//! A vendor's tool: it may be missing, hang, flood its output or be killed, and nothing of that may hold a launch.

use std::{
    fmt, fs,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// How long it may take, from its start to its end.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// More than any of them has to say, in bytes.
pub(crate) const LONGEST: usize = 256 << 10;

/// How long a killed process may take to be gone. One that hangs in the driver is left to the kernel.
const LAST_BREATH: Duration = Duration::from_millis(200);

/// Why a tool said nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// It cannot be started.
    #[error("cannot be started: {0}")]
    Start(#[source] io::Error),
    /// Its pipe.
    #[error("cannot be read from: {0}")]
    Read(#[source] io::Error),
    /// It hangs.
    #[error("has not ended after {} s, and was killed", .0.as_secs_f64())]
    Late(Duration),
    /// It floods.
    #[error("prints more than {LONGEST} bytes, and was killed")]
    Flood,
    /// It failed.
    #[error("failed: {status}{}", in_brackets(.said))]
    Failed {
        /// How it ended.
        status: String,
        /// Its first line.
        said: String,
    },
}

fn in_brackets(line: &str) -> impl fmt::Display + use<> {
    if line.is_empty() { String::new() } else { format!(" ({line})") }
}

/// What a tool prints on standard output. No thread is started: the guard is forked later.
///
/// # Errors
///
/// When it cannot be started, does not end in time, prints too much, or fails.
pub(crate) fn output_of(program: &Path, args: &[&str], deadline: Duration) -> Result<String, ToolError> {
    let end = Instant::now() + deadline;
    let mut command = Command::new(program);
    // A group of its own: what it starts is killed with it.
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(ToolError::Start)?;
    let read = match child.stdout.take() {
        Some(pipe) => read_until(pipe.into(), end, deadline),
        None => Ok(Vec::new()),
    };
    let ended =
        read.and_then(|printed| Ok((printed, ended(&mut child, end)?.ok_or(ToolError::Late(deadline))?)));
    // Also what it left behind, and it itself when it has not ended.
    if let Ok(group) = i32::try_from(child.id()) {
        let _nobody_left = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let (printed, status) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            let _stuck = ended_after_kill(&mut child);
            return Err(error);
        }
    };
    let printed = String::from_utf8_lossy(&printed).into_owned();
    match status {
        Ended::Well => Ok(printed),
        Ended::Badly(status) => {
            let line = printed.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            Err(ToolError::Failed { status, said: line.chars().take(120).collect() })
        }
    }
}

enum Ended {
    Well,
    Badly(String),
}

fn read_until(pipe: OwnedFd, end: Instant, deadline: Duration) -> Result<Vec<u8>, ToolError> {
    let mut printed = Vec::new();
    let mut pipe = fs::File::from(pipe);
    let mut buffer = [0; 8192];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let ready = poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout);
        match ready {
            Err(nix::errno::Errno::EINTR) if !left.is_zero() => continue,
            Err(error) => return Err(ToolError::Read(error.into())),
            Ok(0) => return Err(ToolError::Late(deadline)),
            Ok(_) if left.is_zero() => return Err(ToolError::Late(deadline)),
            Ok(_) => {}
        }
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(printed),
            Ok(read) => printed.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ToolError::Read(error)),
        }
        if printed.len() > LONGEST {
            return Err(ToolError::Flood);
        }
    }
}

/// How it ended; `None` when it has not by then.
fn ended(child: &mut Child, end: Instant) -> Result<Option<Ended>, ToolError> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(Some(Ended::Well)),
            Ok(Some(status)) => return Ok(Some(Ended::Badly(status.to_string()))),
            Ok(None) if Instant::now() >= end => return Ok(None),
            // Its output is closed: it ends any moment, and there is nothing to wait on but the clock.
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            // Our parent ignores SIGCHLD, and the kernel keeps no statuses: what it printed has to speak for it.
            Err(error) if error.raw_os_error() == Some(nix::libc::ECHILD) => return Ok(Some(Ended::Well)),
            Err(error) => return Err(ToolError::Read(error)),
        }
    }
}

fn ended_after_kill(child: &mut Child) -> Result<Option<Ended>, ToolError> {
    ended(child, Instant::now() + LAST_BREATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, deadline: Duration) -> Result<String, ToolError> {
        output_of(Path::new("/bin/sh"), &["-c", script], deadline)
    }

    #[test]
    fn what_it_prints_is_read() {
        assert_eq!(
            shell("echo one; echo two >&2", DEADLINE * 10).unwrap(),
            "one\ntwo\n".replace("two\n", "")
        );
    }

    #[test]
    fn one_that_fails_is_told_with_its_words() {
        let error = shell("echo; echo no devices found; exit 9", DEADLINE * 10).unwrap_err().to_string();
        assert_eq!(error, "failed: exit status: 9 (no devices found)");
        assert!(matches!(shell("kill -SEGV $$", DEADLINE * 10), Err(ToolError::Failed { .. })));
        let missing = output_of(Path::new("/nowhere/nvidia-smi"), &[], DEADLINE);
        assert!(matches!(missing, Err(ToolError::Start(_))));
    }

    #[test]
    fn one_that_hangs_is_killed_with_what_it_started() {
        let short = Duration::from_millis(100);
        let start = Instant::now();
        for script in ["sleep 1000", "sleep 1000 & wait", "exec >&-; sleep 1000", "sleep 1000 & echo done"] {
            assert!(matches!(shell(script, short), Err(ToolError::Late(_))), "{script}");
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn one_that_floods_is_killed() {
        assert!(matches!(shell("yes", DEADLINE * 10), Err(ToolError::Flood)));
    }
}
