//! The saver's own side: a process with one loop, a task for each connection, and threads for what may block.

mod agent_link;
mod check;
mod clients;
mod connection;
mod effects;
mod fetching;
mod folder;
mod input;
mod listener;
mod memory;
mod output;
mod pause;
mod peer;
mod persist;
mod sending;
mod session;
mod slot_file;
mod staged;
mod stop;
mod temporary;
mod threads;
mod transfer;

use std::{
    env, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::ExitCode,
    thread,
    time::Duration,
};

use checkpoint::slots::Settings;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigHandler, Signal, signal},
    },
    unistd::getppid,
};
use processes::launcher_id::{LauncherId, VARIABLE};
use tokio::{runtime, sync::mpsc};
use uuid::Uuid;

use self::{
    agent_link::AgentLines,
    input::Input,
    peer::{Launcher, pidfd_open},
    session::Session,
};
use crate::start::Start;

/// Inputs that may wait for the loop. A task or thread with one more waits.
const INPUTS: usize = 1024;

/// How long this process lives on when the launcher is gone, at most.
const ORPHAN_TIMEOUT: Duration = Duration::from_millis(4900);

/// Sent by terminals, batch systems and users to all processes of a job. The launcher handles them, and tells this
/// process what to do.
const IGNORED_SIGNALS: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGPIPE,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Runs a saver to its end.
pub(super) fn run() -> ExitCode {
    let _cosmetic = prctl::set_name(c"dlrover-saver");
    for ignored in IGNORED_SIGNALS {
        // SAFETY: ignoring a signal runs no handler.
        let _cannot_fail = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    match start() {
        // The end of the process frees everything; threads that hang on a disk are not waited for.
        // SAFETY: `_exit` has no preconditions.
        Ok(()) => unsafe { libc::_exit(0) },
        Err(error) => {
            print_error(&format!("cannot keep checkpoints in memory: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn start() -> io::Result<()> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
    let text =
        env::args().nth(1).ok_or_else(|| invalid("the saver is started by dlrover-run, not by hand"))?;
    let start: Start = serde_json::from_str(&text)?;
    let launcher = pidfd_open(start.launcher)?;
    // The launcher may have died before, and its id may be another process's since.
    if getppid().as_raw() != start.launcher {
        return Err(invalid("the launcher has exited"));
    }
    watch_launcher(launcher.try_clone()?)?;
    raise_limit_of_descriptors();
    let settings = Settings { epoch: random(), run_id: start.run_id, allowance: start.allowance };
    let id = env::var(VARIABLE).ok().and_then(|id| LauncherId::parse(&id));
    let launcher_is = Launcher { pid: start.launcher, id };
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = listener::inherited(start.listener)?;
        let stdin = agent_link::standard_input()?;
        let agent = AgentLines::start()?;
        let launcher = clients::readable(launcher)?;
        let (sender, inputs) = mpsc::channel(INPUTS);
        tokio::spawn(listener::accept(listener, launcher_is, sender.clone()));
        tokio::spawn(agent_link::read(stdin, sender.clone()));
        let died = sender.clone();
        tokio::spawn(async move {
            // A process that was forked from the launcher may hold the other end of standard input.
            let _watched_by_thread_too = launcher.readable().await.is_ok();
            let _loop_ended = died.send(Input::AgentGone).await;
        });
        // What a saver of another node must show.
        let ticket = Uuid::new_v4().simple().to_string();
        Session::new(settings, ticket, agent, (sender, inputs)).run().await;
        Ok(())
    })
}

/// Ends this process if the launcher is gone and the loop does not end it in time. A thread, because the loop may be what
/// hangs.
fn watch_launcher(launcher: OwnedFd) -> io::Result<()> {
    let watch = move || {
        // SAFETY: standard input is closed only at the end of the process.
        let stdin = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
        loop {
            // Of a pipe whose other end is closed, the end is always told.
            let mut fds =
                [PollFd::new(stdin, PollFlags::empty()), PollFd::new(launcher.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) | Ok(0) => {}
                _ => break,
            }
        }
        thread::sleep(ORPHAN_TIMEOUT);
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(1) }
    };
    thread::Builder::new().name("orphan-watch".into()).stack_size(64 << 10).spawn(watch).map(drop)
}

/// Slots, connections and processes have a descriptor each, and the usual limit is 1024.
fn raise_limit_of_descriptors() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _as_before = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// A number that no saver before had. Every reader of JSON keeps it.
fn random() -> u64 {
    Uuid::new_v4().as_u64_pair().1 >> 11
}

#[expect(clippy::print_stderr, reason = "the agent reads it, and there is no log here")]
fn print_error(message: &str) {
    eprintln!("{message}");
}
