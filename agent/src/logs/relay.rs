//! Forwards one worker stream from its pipe. One thread each, on a small stack.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rules::LocalRank;

use super::{
    console::Source,
    cut_off::CutOff,
    lines::{Lines, Output},
    stream::Stream,
    tail::Tail,
};

/// The size of one read.
const READ_BYTES: usize = 64 << 10;

/// Lines are assembled from this much at a time, so that prefixes cannot inflate the output without bound.
const SLICE_BYTES: usize = 8 << 10;

/// Assembled lines go to the console in chunks of about this size.
const CHUNK_BYTES: usize = 64 << 10;

/// How long unprefixed bytes wait for the end of their line. `python -u` writes a line and its end separately, and
/// bytes of other ranks would come in between. Not noticeable with a prompt or a progress bar.
const LINGER: Duration = Duration::from_millis(10);

/// After a cut-off, at most this much of what is in the pipe is still read.
const SWEEP_BYTES: usize = 4 << 20;

/// The relay of one worker stream.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Of which worker, for a message.
    pub(crate) local_rank: LocalRank,
    pub(crate) stream: Stream,
    /// The reading end, non-blocking.
    pub(crate) input: Arc<OwnedFd>,
    pub(crate) cut_off: Arc<CutOff>,
    pub(crate) sink: Sink,
}

/// How a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    /// It was cut off before the end of the stream.
    pub(crate) cut_off: bool,
    /// Bytes that the console did not accept in time.
    pub(crate) lost: u64,
}

impl Relay {
    /// Runs until the end of the stream or the cut-off.
    pub(crate) fn run(mut self) -> Ended {
        // The buffer is allocated with the first bytes: most workers are silent most of the time.
        self.wait();
        let mut buffer = vec![0; READ_BYTES];
        let mut swept = 0;
        let cut_off = loop {
            let given = self.cut_off.is_given();
            match nix::unistd::read(&self.input, &mut buffer) {
                // EIO: the other end of a pty is closed.
                Ok(0) | Err(Errno::EIO) => break false,
                Ok(count) => {
                    self.sink.push(Instant::now(), &buffer[..count]);
                    swept += if given { count } else { 0 };
                    if swept >= SWEEP_BYTES {
                        break true;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if given => break true,
                Err(Errno::EAGAIN) => {
                    self.sink.tick(Instant::now());
                    self.wait();
                }
                Err(errno) => {
                    tracing::warn!(
                        %errno,
                        "the rest of the {} of local rank {} could not be read, and is missing",
                        self.stream, self.local_rank
                    );
                    break true;
                }
            }
        };
        Ended { cut_off, lost: self.sink.finish() }
    }

    /// Waits for input, the cut-off, or the sink's deadline.
    fn wait(&self) {
        let left = self.sink.deadline().map(|due| due.saturating_duration_since(Instant::now()));
        // Rounded up, to avoid a second short wait.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [
            PollFd::new(self.input.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.cut_off.fd(), PollFlags::POLLIN),
        ];
        // After an error (EINTR at most) the caller tries again.
        let _ = poll(&mut fds, timeout);
    }
}

/// Where a relay's bytes go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To the log file, and as prefixed lines to the console.
    Tee(Box<Tee>),
    /// As they are.
    Raw(Raw),
}

impl Sink {
    fn push(&mut self, now: Instant, bytes: &[u8]) {
        match self {
            Self::Tee(tee) => tee.push(now, bytes),
            Self::Raw(raw) => raw.push(now, bytes),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Tee(tee) => tee.lines.deadline(),
            Self::Raw(raw) => raw.held_since.map(|since| since + LINGER),
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.deadline().is_some_and(|due| due <= now) {
            match self {
                Self::Tee(tee) => tee.tick(now),
                Self::Raw(raw) => raw.release(),
            }
        }
    }

    /// Returns the number of bytes that the console did not accept.
    fn finish(&mut self) -> u64 {
        match self {
            Self::Tee(tee) => tee.finish(),
            Self::Raw(raw) => raw.finish(),
        }
    }
}

/// A relay's connection to the console.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) source: Arc<Source>,
    pub(crate) cut_off: Arc<CutOff>,
    pub(crate) lost: u64,
}

impl Outlet {
    pub(crate) fn new(source: Arc<Source>, cut_off: Arc<CutOff>) -> Self {
        Self { source, cut_off, lost: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        if !self.source.push(bytes, &self.cut_off) && !self.source.push_last(bytes) {
            self.lost += bytes.len() as u64;
        }
    }
}

/// A log file, or the filtered one that several relays share: opened in append mode, and every write holds whole
/// lines, so they are not mixed.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub(crate) file: Arc<File>,
    pub(crate) path: PathBuf,
    pub(crate) failed: bool,
}

impl LogFile {
    fn write(&mut self, bytes: &[u8]) {
        let result: io::Result<()> = (&*self.file).write_all(bytes);
        // Reported once; the disk may get room again, so the next bytes are tried nevertheless.
        if let Err(error) = result
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::error!(
                %error,
                path = %self.path.display(),
                "a log file could not be written; output is missing from it"
            );
        }
    }
}

/// File first, then the console.
#[derive(Debug)]
pub(crate) struct Tee {
    pub(crate) file: LogFile,
    pub(crate) filtered: Option<LogFile>,
    pub(crate) lines: Lines,
    pub(crate) outlet: Outlet,
    pub(crate) output: Output,
}

impl Tee {
    fn push(&mut self, now: Instant, bytes: &[u8]) {
        self.file.write(bytes);
        for slice in bytes.chunks(SLICE_BYTES) {
            self.lines.push(now, slice, &mut self.output);
            if self.output.console.len() >= CHUNK_BYTES {
                self.write_pending();
            }
        }
        self.tick(now);
    }

    fn tick(&mut self, now: Instant) {
        self.lines.tick(now, &mut self.output);
        self.write_pending();
    }

    fn finish(&mut self) -> u64 {
        self.lines.finish(&mut self.output);
        self.write_pending();
        self.outlet.lost
    }

    fn write_pending(&mut self) {
        if let Some(filtered) = &mut self.filtered
            && !self.output.filtered.is_empty()
        {
            filtered.write(&self.output.filtered);
        }
        if !self.output.console.is_empty() {
            self.outlet.push(&self.output.console);
        }
        self.output.clear();
    }
}

/// Byte for byte, with the end kept.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) tail: Arc<Mutex<Tail>>,
    pub(crate) outlet: Option<Outlet>,
    /// The beginning of a line whose end may come soon.
    pub(crate) held: Vec<u8>,
    pub(crate) held_since: Option<Instant>,
}

impl Raw {
    pub(crate) fn new(tail: Arc<Mutex<Tail>>, outlet: Option<Outlet>) -> Self {
        Self { tail, outlet, held: Vec::new(), held_since: None }
    }

    fn push(&mut self, now: Instant, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        if self.outlet.is_none() {
            return;
        }
        let whole = memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1);
        if whole > 0 {
            self.held.extend_from_slice(&bytes[..whole]);
            self.release();
        }
        self.held.extend_from_slice(&bytes[whole..]);
        if self.held.len() >= READ_BYTES {
            self.release();
        } else if !self.held.is_empty() && self.held_since.is_none() {
            self.held_since = Some(now);
        }
    }

    fn release(&mut self) {
        if let Some(outlet) = &mut self.outlet
            && !self.held.is_empty()
        {
            outlet.push(&self.held);
        }
        self.held.clear();
        self.held_since = None;
    }

    fn finish(&mut self) -> u64 {
        self.release();
        self.outlet.as_ref().map_or(0, |outlet| outlet.lost)
    }
}
