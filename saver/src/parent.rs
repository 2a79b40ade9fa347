//! The parent's side of a saver: start it, talk to it, learn of its end, end it.

mod process;
mod supervise;

use std::{io, os::fd::BorrowedFd, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};

use checkpoint::message::{FromSaver, ToSaver};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use self::process::Process;
use crate::start::Start;

/// Messages in each direction that may wait.
const QUEUE: usize = 1024;

/// A saver that takes no message for so long hangs, and is killed.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a saver may take to end after the end of its input, or after the grace of `finish`; then it is killed.
pub const END_TIMEOUT: Duration = Duration::from_secs(6);

/// From SIGKILL to giving up on a process that hangs inside the kernel.
pub const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// How a saver's process is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaverProgram {
    /// A program whose `main` calls [`run_if_saver`](crate::run_if_saver) first.
    pub path: PathBuf,
    /// The launcher's id (`DLROVER_LAUNCHER_ID`): processes with it may connect, and a later launcher finds leftovers by it.
    pub launcher_id: Option<String>,
}

impl Default for SaverProgram {
    /// This program, without an id.
    fn default() -> Self {
        Self { path: PathBuf::from("/proc/self/exe"), launcher_id: None }
    }
}

/// What a saver holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaverOptions {
    /// The run that clients must name.
    pub run_id: String,
    /// Bytes that all slots may have together.
    pub allowance: u64,
}

/// Why a saver cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot start the saver {}", path.display())]
    Spawn {
        /// This program, as the kernel names it.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// There is no pidfd, by which the exit of a process is noticed: Linux has it since 5.3.
    #[error("cannot watch the process of the saver{}", remedy(.0))]
    Watch(#[source] io::Error),
    #[error("cannot use the pipes of the saver")]
    Pipes(#[source] io::Error),
}

/// What to do where the kernel is too old.
fn remedy(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::Unsupported { "; Linux 5.3 or newer is needed" } else { "" }
}

/// A message cannot be sent to the saver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("the saver has exited")]
    Ended,
    #[error("the saver has not read the last {QUEUE} messages")]
    Full,
}

/// What comes from a saver.
#[derive(Debug)]
pub enum SaverEvent {
    Said(Box<FromSaver>),
    /// A line that cannot be used: why.
    Garbled(String),
    /// The last one.
    Ended(SaverEnd),
}

/// How a saver ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SaverEnd {
    /// `None`: it was reaped elsewhere, or is stuck.
    pub status: Option<ExitStatus>,
    /// The end of what it wrote to standard error.
    pub stderr: String,
    /// Why it was killed from here, if it was.
    pub killed: Option<String>,
    /// It survived SIGKILL; a description.
    pub stuck: Option<String>,
}

/// A running saver. Dropping it ends the process: its input ends, and after [`END_TIMEOUT`] it is killed.
#[derive(Debug)]
pub struct SaverProcess {
    process: Arc<Process>,
    messages: mpsc::Sender<ToSaver>,
    events: mpsc::Receiver<SaverEvent>,
}

impl SaverProcess {
    /// Starts a saver on the current runtime. `listener` is a listening unix socket, which stays open here too and becomes
    /// non-blocking: this process must not accept from it while the saver runs. `first` are told before anything else;
    /// there must be a [`ToSaver::Round`] among them before a worker is answered.
    ///
    /// # Errors
    /// When there is no room for a process, or no such program.
    pub fn start(
        program: &SaverProgram,
        options: &SaverOptions,
        listener: BorrowedFd<'_>,
        first: Vec<ToSaver>,
    ) -> Result<Self, StartError> {
        let SaverOptions { run_id, allowance } = options;
        let start = Start { run_id: run_id.clone(), allowance: *allowance, launcher: 0, listener: 0 };
        let (process, pipes) = process::start(program, start, listener)?;
        let process = Arc::new(process);
        let (messages, waiting) = mpsc::channel(QUEUE);
        let (sender, events) = mpsc::channel(QUEUE);
        supervise::spawn(Arc::clone(&process), pipes, first, waiting, sender)?;
        Ok(Self { process, messages, events })
    }

    /// Its process id, for people. It may be another process's after [`SaverEvent::Ended`].
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Tells it something. After [`ToSaver::Finish`] it is killed if it does not end by the grace and [`END_TIMEOUT`].
    ///
    /// # Errors
    /// When it has ended, or does not read.
    pub fn send(&self, message: ToSaver) -> Result<(), SendError> {
        self.messages.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Full,
            mpsc::error::TrySendError::Closed(_) => SendError::Ended,
        })
    }

    /// The next event; `None` after [`SaverEvent::Ended`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<SaverEvent> {
        self.events.recv().await
    }

    /// Kills it. What is in memory is lost; [`SaverEvent::Ended`] follows.
    pub fn kill(&self) {
        self.process.signal(Signal::SIGKILL);
    }
}
