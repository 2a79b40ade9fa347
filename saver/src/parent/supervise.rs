//! The task that serves a saver's pipes and sees its end. It always ends itself.

use std::{future::pending, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use checkpoint::message::{FromSaver, MAX_AGENT_LINE, ToSaver};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest, unix::AsyncFd},
    net::unix::pipe,
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    END_TIMEOUT, LAST_TIMEOUT, SEND_TIMEOUT, SaverEnd, SaverEvent, StartError,
    process::{Pipes, Process},
};

/// The end of standard error that is kept.
const TAIL: usize = 4 << 10;

/// When the saver is to be killed, and why.
type Due = Option<(Instant, String)>;

/// Serves the saver on the current runtime, until it has ended or is given up.
///
/// # Errors
/// When its pipes cannot be used; it is killed then.
pub(super) fn spawn(
    process: Arc<Process>,
    pipes: Pipes,
    first: Vec<ToSaver>,
    messages: mpsc::Receiver<ToSaver>,
    events: mpsc::Sender<SaverEvent>,
) -> Result<(), StartError> {
    let opened = open(&process, pipes).inspect_err(|_| process.signal(Signal::SIGKILL));
    let (stdin, lines, stderr, ended) = opened.map_err(StartError::Pipes)?;
    tokio::spawn(async move {
        let (due, kill_at) = watch::channel(None);
        let mut tail = Tail { pipe: stderr, kept: Vec::new(), is_closed: false };
        let mut lines = lines;
        let mut end = SaverEnd::default();
        {
            let told = tell(stdin, first, messages, due);
            let heard = hear(&mut lines, &events);
            tokio::select! {
                // The lines that it has written before its end are read below.
                biased;
                () = is_ended(&ended) => {}
                never = async { tokio::join!(told, heard, tail.follow()) } => match never {},
                why = kill(kill_at, &process) => end.killed = Some(why),
            }
        }
        if timeout(LAST_TIMEOUT, is_ended(&ended)).await.is_err() {
            end.stuck = Some(process.stuck());
        }
        while let Some(line) = lines.ready() {
            if events.send(said(&line)).await.is_err() {
                break;
            }
        }
        tail.rest();
        end.stderr = String::from_utf8_lossy(&tail.kept).trim().to_owned();
        end.status = process.reap();
        let _handle_dropped = events.send(SaverEvent::Ended(end)).await;
    });
    Ok(())
}

type Opened = (pipe::Sender, Lines, pipe::Receiver, AsyncFd<OwnedFd>);

fn open(process: &Process, pipes: Pipes) -> io::Result<Opened> {
    let stdin = pipe::Sender::from_owned_fd(pipes.stdin)?;
    let stdout = pipe::Receiver::from_owned_fd(pipes.stdout)?;
    let stderr = pipe::Receiver::from_owned_fd(pipes.stderr)?;
    // SAFETY: it owns its descriptor, which is neither replaced nor closed meanwhile.
    let ended = unsafe { AsyncFd::register_with_interest(process.pidfd()?, Interest::READABLE) }?;
    Ok((stdin, Lines { pipe: stdout, received: Vec::new(), searched: 0 }, stderr, ended))
}

/// Writes messages until the handle is dropped; then the saver's input ends.
async fn tell(
    mut stdin: pipe::Sender,
    first: Vec<ToSaver>,
    mut messages: mpsc::Receiver<ToSaver>,
    due: watch::Sender<Due>,
) -> ! {
    let mut first = first.into_iter();
    loop {
        let message = match first.next() {
            Some(message) => message,
            None => match messages.recv().await {
                Some(message) => message,
                None => break,
            },
        };
        match timeout(SEND_TIMEOUT, stdin.write_all(message.to_line().as_bytes())).await {
            Ok(Ok(())) => {}
            // It closes its input by its end only.
            Ok(Err(_)) => break,
            Err(_) => {
                let seconds = SEND_TIMEOUT.as_secs();
                due.send_replace(Some((Instant::now(), format!("it read no message for {seconds} s"))));
                break;
            }
        }
        if let ToSaver::Finish { grace_ms, .. } = message {
            let allowed = Duration::from_millis(grace_ms).saturating_add(END_TIMEOUT);
            let why = format!("it did not exit within {} s", allowed.as_secs());
            due.send_replace(Instant::now().checked_add(allowed).map(|due| (due, why)));
        }
    }
    drop(stdin);
    due.send_modify(|due| {
        let at = Instant::now() + END_TIMEOUT;
        if due.as_ref().is_none_or(|(due, _)| *due > at) {
            let seconds = END_TIMEOUT.as_secs();
            *due = Some((at, format!("it did not exit within {seconds} s after its input was closed")));
        }
    });
    // Its receiver waits for a change for as long as there is a sender.
    let _kept = due;
    pending().await
}

/// Waits until the saver is due, and kills it. Returns why.
async fn kill(mut due: watch::Receiver<Due>, process: &Process) -> String {
    loop {
        let current = due.borrow_and_update().clone();
        tokio::select! {
            changed = due.changed() => if changed.is_err() {
                return pending().await;
            },
            why = is_due(current) => {
                process.signal(Signal::SIGKILL);
                return why;
            }
        }
    }
}

async fn is_due(due: Due) -> String {
    match due {
        Some((due, why)) => {
            sleep_until(due).await;
            why
        }
        None => pending().await,
    }
}

/// Passes lines on. When the receiver does not take them, the saver waits.
async fn hear(lines: &mut Lines, events: &mpsc::Sender<SaverEvent>) -> ! {
    while let Some(line) = lines.next().await {
        if events.send(said(&line)).await.is_err() {
            break;
        }
    }
    pending().await
}

fn said(line: &[u8]) -> SaverEvent {
    match FromSaver::parse(line) {
        Ok(message) => SaverEvent::Said(Box::new(message)),
        Err(error) => SaverEvent::Garbled(error.to_string()),
    }
}

async fn is_ended(pidfd: &AsyncFd<OwnedFd>) {
    if pidfd.readable().await.is_err() {
        pending().await
    }
}

/// Lines of a pipe.
#[derive(Debug)]
struct Lines {
    pipe: pipe::Receiver,
    received: Vec<u8>,
    /// So many bytes have no line feed.
    searched: usize,
}

impl Lines {
    fn whole(&mut self) -> Option<Vec<u8>> {
        let new = self.received.get(self.searched..).unwrap_or_default();
        let Some(position) = new.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.received.len();
            return None;
        };
        let mut line: Vec<u8> = self.received.drain(..=self.searched + position).collect();
        line.pop();
        self.searched = 0;
        Some(line)
    }

    /// The next line; `None` at the end, and after a line that is too long. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(line) = self.whole() {
                return Some(line);
            }
            if self.received.len() > MAX_AGENT_LINE {
                return None;
            }
            self.received.reserve(16 << 10);
            match self.pipe.read_buf(&mut self.received).await {
                Ok(1..) => {}
                _ => return None,
            }
        }
    }

    /// The next line, if it can be read without waiting.
    fn ready(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(line) = self.whole() {
                return Some(line);
            }
            let mut chunk = [0; 16 << 10];
            match self.pipe.try_read(&mut chunk) {
                Ok(length @ 1..) if self.received.len() <= MAX_AGENT_LINE => {
                    self.received.extend_from_slice(chunk.get(..length).unwrap_or_default());
                }
                _ => return None,
            }
        }
    }
}

/// The end of standard error.
#[derive(Debug)]
struct Tail {
    pipe: pipe::Receiver,
    kept: Vec<u8>,
    is_closed: bool,
}

impl Tail {
    async fn follow(&mut self) -> ! {
        let mut chunk = [0; 1 << 10];
        while !self.is_closed {
            match self.pipe.read(&mut chunk).await {
                Ok(length @ 1..) => self.keep(chunk.get(..length).unwrap_or_default()),
                _ => self.is_closed = true,
            }
        }
        pending().await
    }

    fn rest(&mut self) {
        let mut chunk = [0; 1 << 10];
        while let Ok(length @ 1..) = self.pipe.try_read(&mut chunk) {
            self.keep(chunk.get(..length).unwrap_or_default());
        }
    }

    fn keep(&mut self, received: &[u8]) {
        self.kept.extend_from_slice(received);
        let too_many = self.kept.len().saturating_sub(TAIL);
        self.kept.drain(..too_many);
    }
}
