//! The template of Python workers, seen from the guard: an interpreter that has imported what workers import, and forks
//! one when it is asked. What it does is in the Python files of `warm/`.
//!
//! ```text
//! guard ---- supervisor ---- template ---- (a process that ends at once) ---- worker
//!      \---- worker, an orphan by then, which the guard inherits as the nearest subreaper
//! ```
//!
//! The supervisor is a child that `waitpid` does not see, so that ECHILD still proves that no worker is left while there is a
//! template. It waits for the template and ends with it.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{Signal, kill},
    },
    unistd::{Pid, getpid, getppid},
};
use processes::{
    memory_file::sealed_memory_file,
    tree::{self, Process},
};
use rules::{Round, warm::LeftOut};

use super::{
    fork::fork_unseen,
    frame::{TemplateSpec, WorkerSpec, send},
    process::close_all_but,
    spawn::{self, Program},
};

/// How long a request may take to be read, and the workers of a generation to be forked, in addition to the next.
const LIMIT: Duration = Duration::from_secs(5);

/// How long each worker may take to be forked. It is forked twice, with the page tables of all that is imported.
const FOR_EACH: Duration = Duration::from_millis(200);

/// The exit code of an interpreter that has found the prelude: `PROBED` of held.py.
const PROBED: i32 = 86;

/// The longest line of the template that is kept.
const MAX_LINE: usize = 1024;

/// A template.
#[derive(Debug)]
pub(super) struct Template {
    supervisor: Pid,
    control: UnixStream,
    lines: Vec<u8>,
    pub(super) is_ready: bool,
}

/// What a template has written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It is ready, with this share of memory and without these packages.
    Ready { kib: u64, left_out: Vec<LeftOut> },
    /// It cannot be used, or not for a worker that was asked for.
    Refused { reason: String },
}

/// A worker that was asked for.
#[derive(Debug)]
pub(super) struct Requested {
    /// Delivers its process id, and takes the order to run the script.
    answer: UnixStream,
}

impl Template {
    /// Starts the template, without waiting for it.
    ///
    /// # Errors
    /// When the system has no room for sockets or processes.
    pub(super) fn start(spec: &TemplateSpec, ignored: &[Signal]) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        // In a file, because an interpreter that has not started reads no socket, and the guard must not wait for it.
        let order = sealed_memory_file(c"dlrover-order", &order(spec, getpid()), true)?;
        let null = || File::options().write(true).open("/dev/null").map(OwnedFd::from);
        let (stdout, stderr) = (null()?, null()?);
        let guard = getpid();
        // SAFETY: the guard has one thread.
        if let Some(supervisor) = unsafe { fork_unseen() }? {
            drop(theirs);
            let template = Self { supervisor, control, lines: Vec::new(), is_ready: false };
            if let Err(error) = template.control.set_write_timeout(Some(LIMIT)) {
                template.end();
                return Err(error);
            }
            return Ok(template);
        }
        supervise(spec, ignored, guard, &theirs, &order, [stdout, stderr])
    }

    /// Asks for a worker. Its answer is awaited by [`Template::await_worker`].
    ///
    /// # Errors
    /// When the template is gone or reads nothing.
    pub(super) fn request(
        &mut self,
        round: Round,
        spec: &WorkerSpec,
        stdout: Option<&OwnedFd>,
        stderr: Option<&OwnedFd>,
    ) -> io::Result<Requested> {
        let (answer, theirs) = UnixStream::pair()?;
        let own = [io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?];
        let [own_stdout, own_stderr] = &own;
        let fds =
            [theirs.as_fd(), stdout.unwrap_or(own_stdout).as_fd(), stderr.unwrap_or(own_stderr).as_fd()];
        let fds = fds.map(|fd| fd.try_clone_to_owned());
        let fds: Vec<OwnedFd> = fds.into_iter().collect::<io::Result<_>>()?;
        let round = round.0.to_string().into_bytes();
        let mut parts = vec![round, number(spec.argv.len()), number(spec.cpus.len())];
        parts.extend(spec.argv.iter().cloned());
        parts.extend(spec.cpus.iter().map(|cpu| number(*cpu)));
        parts.extend(spec.env.iter().map(entry));
        self.write(&message(&parts), &fds)?;
        Ok(Requested { answer })
    }

    /// Waits for the worker, which then waits for [`Requested::go`].
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn await_worker(&mut self, worker: &Requested, until: Instant) -> Result<Pid, String> {
        let mut pid = Vec::new();
        loop {
            if let Some(Line::Refused { reason }) = self.next_line() {
                return Err(reason);
            }
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let mut fds =
                [worker.answer.as_fd(), self.control.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            if matches!(poll(&mut fds, timeout), Ok(0)) {
                return Err("the template forked no worker in time".to_owned());
            }
            let [has_answer, has_line] = fds.map(|fd| fd.any().unwrap_or_default());
            if has_answer {
                let mut bytes = [0; MAX_LINE];
                let count = (&worker.answer).read(&mut bytes).unwrap_or(0);
                pid.extend_from_slice(&bytes[..count]);
                // In one message, and with an end, so that half of a number is none.
                if let Some(text) = pid.strip_suffix(b"\n") {
                    let text = String::from_utf8_lossy(text);
                    let own = getpid().as_raw();
                    let is_ours =
                        |pid: &i32| tree::process(*pid).is_some_and(|process| process.parent == own);
                    let pid = text.parse().ok().filter(is_ours).map(Pid::from_raw);
                    return pid.ok_or_else(|| match text.strip_prefix("failed ") {
                        Some(reason) => format!("a forked worker failed before it ran its script: {reason}"),
                        None => format!("a forked worker is not a child of the guard: pid {text}"),
                    });
                }
                if count == 0 && !has_line {
                    return Err("a forked worker exited before it ran its script".to_owned());
                }
            }
            if has_line && self.fill().is_err() {
                return Err("the template has exited".to_owned());
            }
        }
    }

    /// The next whole line that was read.
    pub(super) fn next_line(&mut self) -> Option<Line> {
        let end = self.lines.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.lines.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        Some(match line.split_once(' ') {
            Some(("ready", words)) => {
                let mut words = words.split(' ');
                let kib = words.next().and_then(|kib| kib.parse().ok()).unwrap_or_default();
                let left_out = words.filter_map(|one| one.split_once('=')).map(|(package, variable)| {
                    LeftOut { package: package.to_owned(), variable: variable.to_owned() }
                });
                Line::Ready { kib, left_out: left_out.collect() }
            }
            Some(("refused", reason)) => Line::Refused { reason: reason.to_owned() },
            _ => Line::Refused { reason: format!("the template sent an invalid answer: `{line}`") },
        })
    }

    /// Reads what is there. Called when there is something.
    ///
    /// # Errors
    /// When the template has ended.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        let mut bytes = [0; MAX_LINE];
        let count = self.control.read(&mut bytes)?;
        if count == 0 || self.lines.len() > MAX_LINE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.lines.extend_from_slice(&bytes[..count]);
        Ok(())
    }

    /// The supervisor, and all below it: no worker is.
    pub(super) fn processes(&self) -> Vec<Process> {
        let supervisor = self.supervisor.as_raw();
        let mut all = tree::below(supervisor);
        all.extend(tree::process(supervisor));
        all
    }

    /// Kills it. Its process becomes a child of the guard until it has ended.
    pub(super) fn end(self) {
        let _gone = kill(self.supervisor, Signal::SIGKILL);
        // SAFETY: no status is asked for.
        while unsafe { libc::waitpid(self.supervisor.as_raw(), std::ptr::null_mut(), libc::__WALL) } == -1
            && Errno::last() == Errno::EINTR
        {}
    }

    fn write(&mut self, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let (mut rest, mut fds) = (bytes, fds);
        while !rest.is_empty() {
            match send(self.control.as_fd(), rest, fds) {
                Ok(sent) => (rest, fds) = (&rest[sent..], &[]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Template {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl Requested {
    /// Lets the worker run its script.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn go(mut self) -> io::Result<()> {
        self.answer.write_all(b"g")
    }
}

/// The deadline of a generation of so many workers, which are confirmed from now on.
pub(super) fn deadline(workers: usize) -> Instant {
    Instant::now() + LIMIT + FOR_EACH * u32::try_from(workers).unwrap_or(u32::MAX).min(1024)
}

/// The supervisor of the template: starts it, waits for its end, and exits.
fn supervise(
    spec: &TemplateSpec,
    ignored: &[Signal],
    guard: Pid,
    control: &UnixStream,
    order: &File,
    [stdout, stderr]: [OwnedFd; 2],
) -> ! {
    let is_watched = prctl::set_pdeathsig(Some(Signal::SIGKILL)).is_ok() && getppid() == guard;
    close_all_but(&[control.as_fd(), order.as_fd(), stdout.as_fd(), stderr.as_fd()]);
    let run = |argv: &[Vec<u8>], role: &[u8], passed: &[BorrowedFd<'_>]| {
        let mut env = spec.env.clone();
        env.push((b"DLROVER_WARM_TEMPLATE".to_vec(), role.to_vec()));
        let (stdout, stderr) = (stdout.try_clone().ok(), stderr.try_clone().ok());
        let program = Program { argv, env: &env, cpus: &spec.cpus, stdout, stderr, passed, reader: None };
        let forked = spawn::spawn(program, ignored, None)?;
        let pid = forked.pid;
        forked.confirm().map(|()| pid)
    };
    let interpreter = spec.argv.first().cloned().unwrap_or_default();
    let probe = [interpreter, b"-u".to_vec(), b"-c".to_vec(), Vec::new()];
    let refused = match run(&probe, b"probe", &[]) {
        Err(error) => Some(format!("cannot start the interpreter: {error}")),
        Ok(pid) if exit_code(pid) != Some(PROBED) => Some(
            "the interpreter does not import the launcher's sitecustomize (it is started with -E, -I or -S, or by a \
             wrapper)"
                .to_owned(),
        ),
        Ok(_) => None,
    };
    let numbers = format!("{},{}", control.as_raw_fd(), order.as_raw_fd()).into_bytes();
    if let Some(reason) = refused {
        let _guard_gone = nix::unistd::write(control, format!("refused {reason}\n").as_bytes());
    } else if is_watched && let Ok(template) = run(&spec.argv, &numbers, &[control.as_fd(), order.as_fd()]) {
        // The socket is the template's alone, so that its end is seen.
        close_all_but(&[]);
        let _ended = exit_code(template);
    }
    // SAFETY: `_exit` has no preconditions, and runs nothing of the guard's.
    unsafe { libc::_exit(0) }
}

/// Waits for the end of a child. `None`: it was killed.
fn exit_code(pid: Pid) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    while unsafe { libc::waitpid(pid.as_raw(), &raw mut status, 0) } == -1 {
        if Errno::last() != Errno::EINTR {
            return None;
        }
    }
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// What to import, and what the template is a template of: a line, empty at the first start, of packages that are left
/// out, and the parts, with a NUL between them.
fn order(spec: &TemplateSpec, guard: Pid) -> Vec<u8> {
    let how = if spec.is_learned { &b"learned"[..] } else { b"given" };
    let mut parts = vec![
        guard.as_raw().to_string().into_bytes(),
        number(spec.argv.len()),
        number(spec.env.len()),
        spec.limit_kib.to_string().into_bytes(),
        number(usize::from(spec.is_idle)),
        how.to_vec(),
        spec.worker_prelude.clone(),
        // No name of a variable has this character.
        spec.differing.join(&b'='),
    ];
    parts.extend(spec.argv.iter().cloned());
    parts.extend(spec.env.iter().map(entry));
    parts.extend(spec.modules.iter().cloned());
    [&b"\n"[..], &parts.join(&0)].concat()
}

fn number(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// As in an environment.
fn entry((name, value): &(Vec<u8>, Vec<u8>)) -> Vec<u8> {
    [name.as_slice(), b"=", value.as_slice()].concat()
}

/// A length of 4 bytes, and the parts, each with a NUL at its end.
fn message(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for part in parts {
        bytes.extend_from_slice(part);
        bytes.push(0);
    }
    let length = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}
