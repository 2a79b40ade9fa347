//! The parent's side of a running probe: reads its output, ends it, and always ends itself.

use std::{future, io, os::fd::OwnedFd, process::ExitStatus, time::Duration};

use diagnosis::{gpus::Inventory, network_check::Probed};
use nix::sys::signal::Signal;
use processes::reap::exit_cause;
use rules::failure::ExitCause;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, Interest, unix::AsyncFd},
    net::unix::pipe,
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use super::process::{Pipes, Process, StartError};
use crate::{
    LAST_TIMEOUT,
    wire::{End, ProbeMessage, command::CannotRun, gpus::GpuMessage, group::Measured, stacks::StacksMessage},
};

/// The end of a probe's standard error that is kept for the reason.
const TAIL: usize = 4 << 10;

/// No message of our own probes is longer.
const LONGEST_LINE: usize = 1 << 20;

/// A running probe of a group. Dropping it cancels the probe.
#[derive(Debug)]
pub struct ProbeHandle {
    cancelled: watch::Sender<bool>,
    end: oneshot::Receiver<Result<Measured, CannotRun>>,
}

impl ProbeHandle {
    /// Asks the probe to end at once and to report its progress. It is killed if it does not.
    pub fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Returns a handle that cancels it while its end is awaited.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(self.cancelled.clone())
    }

    /// Waits for the result. There is no time limit: the caller cancels it.
    ///
    /// # Errors
    /// There is no check command to run. A ring has no such error.
    pub async fn end(self) -> Result<Probed, CannotRun> {
        Ok(self.measured().await?.probed)
    }

    /// Waits for the result as [`end`](Self::end) does, and returns the measurements of an all-reduce too.
    ///
    /// # Errors
    /// As [`end`](Self::end).
    pub async fn measured(self) -> Result<Measured, CannotRun> {
        let Self { cancelled: _stays, end } = self;
        end.await.unwrap_or_else(|_| Ok(failed("the runtime of the probe has ended".into())))
    }

    /// Supervises a probe that was started, or failed to, on the current runtime.
    pub(super) fn supervise(
        started: Result<(Process, Pipes), StartError>,
        grace: Duration,
        total: u64,
        subscribers: Subscribers,
    ) -> Self {
        let (cancelled, cancel) = watch::channel(false);
        let (done, end) = oneshot::channel();
        tokio::spawn(async move {
            let began = Instant::now();
            let measured = match started {
                Ok(running) => {
                    let run = supervise(
                        running,
                        Limits { cancel: Some(cancel), deadline: None, grace },
                        subscribers,
                    )
                    .await;
                    run.measured(total, began.elapsed())
                }
                Err(error) => Ok(failed(rules::chain(&error))),
            };
            // The caller may have stopped waiting.
            let _gone = done.send(measured);
        });
        Self { cancelled, end }
    }
}

/// Cancels a probe whose end is awaited elsewhere.
#[derive(Debug, Clone)]
pub struct Canceller(watch::Sender<bool>);

impl Canceller {
    /// As [`ProbeHandle::cancel`].
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

fn failed(reason: String) -> Measured {
    Probed::Failed { reason }.into()
}

/// Receivers of a probe's messages. Messages without room are dropped.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    pub(super) progress: Option<mpsc::Sender<Probed>>,
    pub(super) said: Option<mpsc::Sender<String>>,
    pub(super) gpus: Option<mpsc::Sender<GpuMessage>>,
}

/// When a probe has to end.
#[derive(Debug)]
pub(super) struct Limits {
    /// At once, when true or closed.
    pub(super) cancel: Option<watch::Receiver<bool>>,
    /// At the latest after this time.
    pub(super) deadline: Option<Duration>,
    /// From SIGTERM to SIGKILL.
    pub(super) grace: Duration,
}

/// Everything received from a probe.
#[derive(Debug, Default)]
pub(super) struct ProbeRun {
    /// Its result.
    pub(super) end: Option<End>,
    /// The last step that it announced.
    pub(super) at: Option<String>,
    /// The inventory so far.
    pub(super) partial: Option<Box<Inventory>>,
    /// The parts of stacks, in their order.
    pub(super) stacks: Vec<StacksMessage>,
    /// It was asked to end before it had ended by itself.
    pub(super) was_cut_short: bool,
    /// It survived SIGKILL; a description.
    pub(super) stuck: Option<String>,
    progress: Option<Probed>,
    stderr: Vec<u8>,
    status: Option<ExitStatus>,
    unreadable: Option<io::Error>,
}

impl ProbeRun {
    /// Why a probe ended without a result.
    pub(super) fn failure(&self) -> String {
        if let Some(stuck) = &self.stuck {
            return stuck.clone();
        }
        if let Some(error) = &self.unreadable {
            return format!("cannot read the output of the probe: {error}");
        }
        let how = match self.status.map(exit_cause) {
            None => "died".to_owned(),
            Some(cause @ ExitCause::Code(_)) => cause.to_string(),
            Some(cause @ ExitCause::Signal(_)) => format!("was {cause}"),
        };
        let stderr = String::from_utf8_lossy(&self.stderr);
        match stderr.trim() {
            "" => format!("the probe {how} without a result"),
            message => format!("the probe {how}: {message}"),
        }
    }

    /// Why there is no result within this time.
    pub(super) fn no_answer(&self, within: Duration) -> String {
        let mut why = if self.was_cut_short {
            format!("no answer within {} s", within.as_secs_f64())
        } else {
            self.failure()
        };
        if let Some(at) = &self.at {
            why = format!("{why}; last step: {at}");
        }
        match &self.stuck {
            Some(stuck) if self.was_cut_short => format!("{why}; {stuck}"),
            _ => why,
        }
    }

    fn measured(self, total: u64, elapsed: Duration) -> Result<Measured, CannotRun> {
        if let Some(End::Group(measured)) = self.end {
            return measured;
        }
        if self.was_cut_short && self.stuck.is_none() {
            let nothing = Probed::Unfinished { bytes: 0, total, elapsed, idle: elapsed };
            return Ok(self.progress.unwrap_or(nothing).into());
        }
        Ok(failed(self.failure()))
    }

    fn take(&mut self, line: &[u8], subscribers: &Subscribers) {
        let Ok(message) = serde_json::from_slice(line) else { return };
        match message {
            ProbeMessage::Progress(probed) => {
                if let Some(progress) = &subscribers.progress {
                    let _no_room = progress.try_send(probed.clone());
                }
                self.progress = Some(probed);
            }
            ProbeMessage::Log(line) => {
                if let Some(said) = &subscribers.said {
                    let _no_room = said.try_send(line);
                }
            }
            ProbeMessage::Gpu(message) => {
                if let Some(gpus) = &subscribers.gpus {
                    let _no_room = gpus.try_send(message);
                }
            }
            ProbeMessage::Stacks(message) => self.stacks.push(message),
            ProbeMessage::At(what) => self.at = Some(what),
            ProbeMessage::Partial(inventory) => self.partial = Some(inventory),
            ProbeMessage::End(end) => self.end = Some(end),
        }
    }

    fn keep(&mut self, received: &[u8]) {
        self.stderr.extend_from_slice(received);
        let too_many = self.stderr.len().saturating_sub(TAIL);
        self.stderr.drain(..too_many);
    }
}

/// The stages of ending a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Terminating,
    Killed,
}

/// Reads a probe's output to its result, or to the end of the process or of its standard output.
pub(super) async fn supervise(
    (process, pipes): (Process, Pipes),
    limits: Limits,
    subscribers: Subscribers,
) -> ProbeRun {
    let mut run = ProbeRun::default();
    let (mut readers, ended) = match open(&process, pipes) {
        Ok(opened) => opened,
        Err(error) => {
            process.signal(Signal::SIGKILL);
            run.unreadable = Some(error);
            return run;
        }
    };
    let Limits { mut cancel, deadline, grace } = limits;
    let mut stage = Stage::Running;
    let mut due = deadline.map(|deadline| Instant::now() + deadline);
    loop {
        tokio::select! {
            received = readers.stdout.line() => match received {
                Some(line) => {
                    run.take(&line, &subscribers);
                    // Its last message. A thread that cannot be killed keeps the pipe open, however long that takes.
                    if run.end.is_some() {
                        break;
                    }
                }
                None => break,
            },
            received = readers.stderr.some() => run.keep(&received),
            () = is_ended(ended.as_ref()) => {
                // The last messages may still be in the pipe; another process may hold it open.
                while let Some(line) = readers.stdout.ready_line() {
                    run.take(&line, &subscribers);
                }
                break;
            }
            () = is_over(&mut cancel, due), if stage == Stage::Running => {
                run.was_cut_short = true;
                process.signal(Signal::SIGTERM);
                // A stopped process cannot react.
                process.signal(Signal::SIGCONT);
                (stage, due) = (Stage::Terminating, Some(Instant::now() + grace));
            }
            () = is_due(due), if stage == Stage::Terminating => {
                process.signal(Signal::SIGKILL);
                (stage, due) = (Stage::Killed, Some(Instant::now() + LAST_TIMEOUT));
            }
            () = is_due(due), if stage == Stage::Killed => {
                run.stuck = Some(process.stuck());
                return run;
            }
        }
    }
    while let Some(received) = readers.stderr.ready() {
        run.keep(&received);
    }
    // Its pipe may be closed shortly before it can be reaped. In the agent the event loop reaps; elsewhere this does.
    let timeout = tokio::time::sleep(LAST_TIMEOUT);
    tokio::select! {
        () = is_ended(ended.as_ref()) => {}
        () = timeout => process.signal(Signal::SIGKILL),
    }
    run.status = process.reap();
    run
}

async fn is_ended(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        Some(pidfd) if pidfd.readable().await.is_ok() => {}
        _ => future::pending().await,
    }
}

/// Cancelled, or the deadline has passed.
async fn is_over(cancel: &mut Option<watch::Receiver<bool>>, deadline: Option<Instant>) {
    let cancelled = async {
        match cancel {
            Some(cancel) => {
                // Without its sender, the result is not awaited any more.
                let _either_way = cancel.wait_for(|cancelled| *cancelled).await.is_ok();
            }
            None => future::pending().await,
        }
    };
    tokio::select! {
        () = cancelled => {}
        () = is_due(deadline) => {}
    }
}

async fn is_due(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => future::pending().await,
    }
}

struct Readers {
    stdout: PipeReader,
    stderr: PipeReader,
}

fn open(process: &Process, pipes: Pipes) -> io::Result<(Readers, Option<AsyncFd<OwnedFd>>)> {
    let stdout = PipeReader::new(pipe::Receiver::from_owned_fd(pipes.stdout)?);
    let stderr = PipeReader::new(pipe::Receiver::from_owned_fd(pipes.stderr)?);
    let ended = match process.pidfd().transpose()? {
        // SAFETY: it owns its descriptor, which is neither replaced nor closed meanwhile.
        Some(pidfd) => Some(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?),
        None => None,
    };
    Ok((Readers { stdout, stderr }, ended))
}

/// One pipe.
struct PipeReader {
    pipe: pipe::Receiver,
    is_closed: bool,
    received: Vec<u8>,
    buffer: Box<[u8]>,
}

impl PipeReader {
    fn new(pipe: pipe::Receiver) -> Self {
        Self { pipe, is_closed: false, received: Vec::new(), buffer: vec![0; 16 << 10].into_boxed_slice() }
    }

    /// The next whole line in the buffer.
    fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = memchr::memchr(b'\n', &self.received)?;
        Some(self.received.drain(..=end).collect())
    }

    /// The next line; `None` at the end. Cancel-safe.
    async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(line) = self.next_line() {
                return Some(line);
            }
            match read(&mut self.pipe, &mut self.buffer).await {
                Some(length) if self.received.len() < LONGEST_LINE => {
                    self.received.extend_from_slice(&self.buffer[..length]);
                }
                _ => return None,
            }
        }
    }

    /// The next line, if it can be read without waiting.
    fn ready_line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(line) = self.next_line() {
                return Some(line);
            }
            match self.pipe.try_read(&mut self.buffer) {
                Ok(length) if length > 0 => self.received.extend_from_slice(&self.buffer[..length]),
                _ => return None,
            }
        }
    }

    /// The next bytes; pending for ever after the end.
    async fn some(&mut self) -> Vec<u8> {
        if !self.is_closed {
            if let Some(length) = read(&mut self.pipe, &mut self.buffer).await {
                return self.buffer[..length].to_vec();
            }
            self.is_closed = true;
        }
        future::pending().await
    }

    /// The next bytes, if they can be read without waiting.
    fn ready(&mut self) -> Option<Vec<u8>> {
        match self.pipe.try_read(&mut self.buffer) {
            Ok(length) if length > 0 => Some(self.buffer[..length].to_vec()),
            _ => None,
        }
    }
}

async fn read(pipe: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> Option<usize> {
    pipe.read(buffer).await.ok().filter(|length| *length > 0)
}
