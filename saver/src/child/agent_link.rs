//! Lines between this process and the agent, on standard input and output.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use checkpoint::message::{FromSaver, Level, LineError, MAX_AGENT_LINE, ToSaver};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    sync::mpsc,
    task::JoinHandle,
};

use super::input::Input;

/// Lines that may wait for the agent. A stopped launcher must not make this process take memory without bound; it can
/// ask again for what is lost (`report`).
const LINES: usize = 16 << 10;

/// Lines of the log and of progress are dropped when more than this many lines wait.
const OPTIONAL: usize = 1 << 10;

/// Standard input as a pipe.
///
/// # Errors
/// When it is none.
pub(super) fn standard_input() -> io::Result<pipe::Receiver> {
    // SAFETY: nothing else in this process uses standard input.
    pipe::Receiver::from_owned_fd(unsafe { OwnedFd::from_raw_fd(libc::STDIN_FILENO) })
}

/// Reads the agent's lines until the end, which is the last input of it.
pub(super) async fn read(mut pipe: pipe::Receiver, inputs: mpsc::Sender<Input>) {
    let mut received = Vec::new();
    let mut searched = 0;
    loop {
        while let Some(end) =
            received.get(searched..).and_then(|new: &[u8]| new.iter().position(|b| *b == b'\n'))
        {
            let line: Vec<u8> = received.drain(..=searched + end).collect();
            searched = 0;
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            if inputs.send(Input::Agent(ToSaver::parse(line))).await.is_err() {
                return;
            }
        }
        searched = received.len();
        if received.len() > MAX_AGENT_LINE {
            // The rest of such a line cannot be told from a line of its own: nothing after it can be trusted.
            let error = LineError::TooLong { bytes: received.len() };
            let _loop_ended = inputs.send(Input::Agent(Err(error))).await;
            break;
        }
        received.reserve(64 << 10);
        match pipe.read_buf(&mut received).await {
            Ok(1..) => {}
            _ => break,
        }
    }
    let _loop_ended = inputs.send(Input::AgentGone).await;
}

/// The lines to the agent.
#[derive(Debug)]
pub(super) struct AgentLines {
    lines: mpsc::Sender<String>,
    writer: JoinHandle<()>,
    lost: u64,
}

impl AgentLines {
    /// Writes to standard output from now on.
    ///
    /// # Errors
    /// When it is no pipe.
    pub(super) fn start() -> io::Result<Self> {
        // SAFETY: nothing else in this process uses standard output.
        let mut pipe = pipe::Sender::from_owned_fd(unsafe { OwnedFd::from_raw_fd(libc::STDOUT_FILENO) })?;
        let (lines, mut waiting) = mpsc::channel::<String>(LINES);
        let writer = tokio::spawn(async move {
            while let Some(line) = waiting.recv().await {
                // Without a reader the launcher is dead, which standard input tells.
                if pipe.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { lines, writer, lost: 0 })
    }

    /// Puts a line into the queue.
    pub(super) fn tell(&mut self, message: &FromSaver) {
        let is_optional = matches!(message, FromSaver::Log { .. } | FromSaver::Progress(_));
        let waiting = LINES - self.lines.capacity();
        if is_optional && waiting > OPTIONAL {
            self.lost += 1;
            return;
        }
        if self.lost > 0 && waiting < OPTIONAL {
            let text = format!("the agent did not read in time; lines dropped: {}", self.lost);
            self.lost = 0;
            let _no_room = self.lines.try_send(FromSaver::Log { level: Level::Warn, text }.to_line());
        }
        if self.lines.try_send(message.to_line()).is_err() {
            self.lost += 1;
        }
    }

    /// Puts a line of the log into the queue.
    pub(super) fn log(&mut self, level: Level, text: impl Into<String>) {
        self.tell(&FromSaver::Log { level, text: text.into() });
    }

    /// Waits until all lines are written. The caller sets a limit.
    pub(super) async fn flush(self) {
        let Self { lines, writer, .. } = self;
        drop(lines);
        let _panicked = writer.await;
    }
}
