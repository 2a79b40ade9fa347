//! One measuring program: its start, its output, which may be endless, and its end.

use std::{
    ffi::OsString,
    io::{self, Read, Seek as _, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use diagnosis::switchbox::{Trouble, Wrong};
use nix::unistd::getpid;
use rules::failure::ExitCause;

use super::mxom::shown;
use crate::child::session::in_a_session_of_its_own;
use processes::{memory_file::memory_file, tree};

/// More output than any result has. Longer output is cut off.
const LONGEST: u64 = 1 << 20;

/// The end of its standard error that is searched.
const TAIL: usize = 4 << 10;

/// What a loader, a shell or the system prints for a program that it cannot run.
const NEVER_RAN: [&str; 9] = [
    "error while loading shared libraries",
    "error loading shared library",
    "symbol lookup error",
    "symbol not found",
    "(required by",
    "exec format error",
    "cannot execute binary file",
    "required file not found",
    "bad interpreter",
];

/// Its output ends with it, unless a descendant holds the pipe.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) program: PathBuf,
    /// `argv[0]`, if it differs from the program.
    pub(super) name: Option<&'static str>,
    pub(super) arguments: Vec<OsString>,
    /// Variables to set or to remove.
    pub(super) environment: Vec<(&'static str, Option<&'static str>)>,
    /// All of its standard input.
    pub(super) input: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Call {
    pid: i32,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: mpsc::Receiver<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct CallEnd {
    pub(crate) cause: ExitCause,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Call {
    /// Starts it in a session of its own. It dies with this thread.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn start(spec: &Spec) -> io::Result<Self> {
        // A file in memory: nothing has to write while the program reads.
        let mut input = memory_file(c"switchbox-request")?;
        input.write_all(&spec.input)?;
        input.rewind()?;
        let mut command = Command::new(&spec.program);
        if let Some(name) = spec.name {
            command.arg0(name);
        }
        for (name, value) in &spec.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(&spec.arguments).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        in_a_session_of_its_own(&mut command);
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        let pipes = child.stdout.take().zip(child.stderr.take());
        let (stdout, stderr) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        Ok(Self { pid, stdout: listen(stdout), stderr: listen(stderr) })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills its whole session. Its end is reaped by the supervisor.
    pub(super) fn kill(&self) {
        let (me, session) = (getpid().as_raw(), self.pid);
        tree::kill_pass(|| tree::below(me).into_iter().filter(|process| process.session == session));
    }

    /// Returns its output, after it has exited.
    pub(super) fn end(self, cause: ExitCause) -> CallEnd {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let first = [self.stdout.recv_timeout(left()), self.stderr.recv_timeout(left())];
        let [stdout, stderr] = first.map(|received| received.ok());
        if stdout.is_none() || stderr.is_none() {
            // A descendant still holds the pipes.
            self.kill();
        }
        let last = |pipe: &mpsc::Receiver<Vec<u8>>| pipe.recv_timeout(DRAIN_TIMEOUT).unwrap_or_default();
        let stdout = stdout.unwrap_or_else(|| last(&self.stdout));
        let stderr = stderr.unwrap_or_else(|| last(&self.stderr));
        CallEnd { cause, stdout, stderr }
    }
}

/// Reads the pipe to its end, or to the limit, on a thread of its own.
fn listen(pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (done, run) = mpsc::channel();
    let read = move || {
        let mut received = Vec::new();
        // One byte more, to detect longer output. Bytes before an error count.
        let _broken = pipe.take(LONGEST + 1).read_to_end(&mut received);
        let _gone = done.send(received);
    };
    // Without a thread there is no output, which is reported as no answer.
    let _no_thread = thread::Builder::new().name("output".into()).spawn(read);
    run
}

impl CallEnd {
    /// Why the output of a program that has ended is not a result.
    pub(super) fn wrong(&self) -> Option<Wrong> {
        if self.stdout.len() as u64 > LONGEST || self.stderr.len() as u64 > LONGEST {
            let message = format!("the output has more than {} MiB", LONGEST >> 20);
            return Some(Wrong::new(Trouble::NoAnswer, message));
        }
        let how = match self.cause {
            ExitCause::Code(0) => return None,
            cause => cause.to_string(),
        };
        let said = self.last_output();
        // Tools have no better way to report it.
        let trouble = match said.to_ascii_lowercase() {
            message if message.contains("permission denied") || message.contains("not permitted") => {
                Trouble::NoPermission
            }
            message if message.contains("no such device") => Trouble::NoSuchDevice,
            _ => Trouble::NoAnswer,
        };
        let last = said.trim().lines().next_back().unwrap_or_default();
        Some(Wrong::new(trouble, format!("{how}, output: {}", shown(last))))
    }

    /// Why the program never ran, by exit codes and messages of a shell or loader. `None`: it ran, as far as can be
    /// seen.
    pub(super) fn never_ran(&self) -> Option<Trouble> {
        let ExitCause::Code(code @ 1..) = self.cause else { return None };
        let said = self.last_output().to_ascii_lowercase();
        match code {
            _ if NEVER_RAN.iter().any(|message| said.contains(message)) => Some(Trouble::CannotStart),
            // A shell takes a program of another machine for a script.
            2 if said.contains("syntax error") => Some(Trouble::CannotStart),
            126 => Some(Trouble::NoPermission),
            127 => Some(Trouble::ToolMissing),
            _ => None,
        }
    }

    /// The end of its standard error, or of its output if that is empty.
    fn last_output(&self) -> String {
        let tail = &self.stderr[self.stderr.len().saturating_sub(TAIL)..];
        String::from_utf8_lossy(if tail.is_empty() { &self.stdout } else { tail }).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(cause: ExitCause, stdout: &[u8], stderr: &[u8]) -> CallEnd {
        CallEnd { cause, stdout: stdout.to_vec(), stderr: stderr.to_vec() }
    }

    #[test]
    fn a_program_that_never_ran_is_distinguished_from_a_failed_one() {
        let of = |code, stderr: &str| end(ExitCause::Code(code), b"", stderr.as_bytes()).never_ran();
        let library = "x: error while loading shared libraries: libmx.so.1: cannot open shared object file: No such file";
        for code in [1, 127] {
            assert_eq!(of(code, library), Some(Trouble::CannotStart));
        }
        for message in [
            "sh: 1: /opt/mxom-client: Exec format error",
            "/opt/x: cannot execute binary file: Exec format error",
            "/opt/x: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /opt/x)",
            "/opt/x: symbol lookup error: /opt/x: undefined symbol: mxcdOpen",
        ] {
            assert_eq!(of(127, message), Some(Trouble::CannotStart), "{message}");
        }
        assert_eq!(of(2, "/opt/x: 1: Syntax error: \"(\" unexpected"), Some(Trouble::CannotStart));
        assert_eq!(of(127, "sh: mxom-client: not found"), Some(Trouble::ToolMissing));
        assert_eq!(of(126, "sh: /opt/x: Permission denied"), Some(Trouble::NoPermission));
        assert_eq!(of(1, "link 3 is down"), None);
        assert_eq!(of(2, "link 3 is down"), None);
        assert_eq!(of(0, library), None);
        assert_eq!(end(ExitCause::Signal(11), b"", library.as_bytes()).never_ran(), None);
    }

    #[test]
    fn every_end_is_described() {
        let message = |end: &CallEnd| end.wrong().map(|wrong| wrong.to_string());
        assert_eq!(message(&end(ExitCause::Code(0), b"x", b"warning")), None);
        let said = end(ExitCause::Code(3), b"", b"first\nlink down\n");
        assert_eq!(message(&said).unwrap(), "no answer, exited with code 3, output: link down");
        let denied = end(ExitCause::Code(1), b"open /dev/mxcd: Permission denied", b"");
        assert_eq!(denied.wrong().unwrap().trouble, Trouble::NoPermission);
        let gone = end(ExitCause::Code(1), b"", b"GPU 9: No such device\n");
        assert_eq!(gone.wrong().unwrap().trouble, Trouble::NoSuchDevice);
        let killed = end(ExitCause::Signal(11), b"", b"");
        assert_eq!(message(&killed).unwrap(), "no answer, killed by SIGSEGV, output: (empty)");
        let flood = vec![b'x'; 1 + usize::try_from(LONGEST).unwrap()];
        let flood = end(ExitCause::Signal(13), &flood, b"");
        assert_eq!(message(&flood).unwrap(), "no answer, the output has more than 1 MiB");
    }
}
