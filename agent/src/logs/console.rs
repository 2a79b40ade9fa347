//! The launcher's standard output and standard error, shared by its workers and itself.
//!
//! Only one thread writes to each stream, so lines of different sources are never mixed, and a console that accepts
//! no bytes (Ctrl-S, a pipe without a reader, a full disk) blocks that thread and, through the bounded queues, the
//! workers that print, but never the launcher. When both streams are the same file (`2>&1`, a terminal), one thread
//! serves both.
//!
//! Bytes that a stream does not accept (the reader is gone, the disk is full) are lost, which is reported once on the
//! other stream.

use std::{
    fs::File,
    io::{self, IsTerminal as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rules::notice::Notice;
use serde_json::{Map, Value};
use tracing::Level;

use super::{
    cut_off::CutOff,
    log_style::{LogFormat, LogStyle},
    notices,
    plain::plain,
    queues::{LAST_BYTES_BOUND, Queues, SOURCE_BOUND, SourceId, Text},
    stream::Stream,
};

/// The program in the launcher's messages.
const LAUNCHER: &str = "dlrover-run";

/// The program in the messages of a job master that the launcher serves.
const MASTER: &str = "dlrover-master";

/// The stack of a thread that only moves bytes.
pub(crate) const STACK_BYTES: usize = 128 << 10;

/// The launcher's two streams. Cheap to clone; the threads end when the last clone and the last source are
/// dropped and everything is written.
#[derive(Debug, Clone)]
pub struct Console {
    out: Arc<Writer>,
    err: Arc<Writer>,
}

impl Console {
    /// The streams of this process, descriptors 1 and 2.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn of_process() -> io::Result<Self> {
        let out = io::stdout().as_fd().try_clone_to_owned()?;
        let err = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self::new(out, err))
    }

    /// Any two descriptors; they may be non-blocking, and they may be the same file. The process must ignore SIGPIPE
    /// (a Rust program does).
    #[must_use]
    pub fn new(out: OwnedFd, err: OwnedFd) -> Self {
        let same = identity(&out).is_some_and(|id| identity(&err) == Some(id));
        let out = Arc::new(Writer::new(out, "console-out"));
        let err = if same { Arc::clone(&out) } else { Arc::new(Writer::new(err, "console-err")) };
        if !same {
            for (one, other, name) in [(&out, &err, "standard output"), (&err, &out, "standard error")] {
                let _only_here = one.shared.other.set((name, Arc::downgrade(other)));
            }
        }
        Self { out, err }
    }

    /// Whether both streams are the same file.
    #[must_use]
    pub fn is_one(&self) -> bool {
        Arc::ptr_eq(&self.out, &self.err)
    }

    /// Whether the stream is a terminal.
    #[must_use]
    pub fn is_terminal(&self, stream: Stream) -> bool {
        self.fd(stream).is_terminal()
    }

    pub(crate) fn fd(&self, stream: Stream) -> BorrowedFd<'_> {
        self.writer(stream).shared.fd.as_fd()
    }

    /// A new source of bytes for a stream, with a queue of its own.
    pub(crate) fn source(&self, stream: Stream, text: Text) -> Source {
        let writer = Arc::clone(self.writer(stream));
        let room = Arc::new(Condvar::new());
        let id = writer.shared.lock().add(text, &room);
        Source { id, writer, room }
    }

    /// Sets the form of messages. The first call counts.
    pub fn set_log_style(&self, style: LogStyle) {
        for writer in [&self.out, &self.err] {
            let _first_counts = writer.shared.style.set(style);
        }
    }

    /// The form of messages.
    #[must_use]
    pub fn log_style(&self) -> LogStyle {
        self.err.shared.style()
    }

    /// Prints a message of the launcher in the form of the log.
    pub fn log(&self, level: Level, text: impl ToString) {
        if let Some(line) = self.log_style().message(level, LAUNCHER, &text.to_string()) {
            self.print(line);
        }
    }

    /// A message of the supervision of the workers.
    pub fn notify(&self, notice: &Notice) {
        let fields = || notices::fields(notice);
        let text = notice.to_string();
        if let Some(line) = self.log_style().message_with(notices::level(notice), LAUNCHER, &text, fields) {
            self.print(line);
        }
    }

    /// The same for a message of the job master that this launcher serves.
    pub fn log_of_master(&self, level: Level, text: impl ToString) {
        let (style, text) = (self.log_style(), text.to_string());
        let line = match style.format {
            LogFormat::Text => style.message(level, LAUNCHER, &format!("master: {text}")),
            LogFormat::Json => style.message(level, MASTER, &text),
        };
        if let Some(line) = line {
            self.print(line);
        }
    }

    /// Prints the report at the end of a run, or the error that ends it; `fields` are for JSON.
    pub fn report(&self, text: impl AsRef<str>, fields: Map<String, Value>) {
        self.print(self.log_style().report(Level::ERROR, LAUNCHER, text.as_ref(), fields));
    }

    /// Prints text of one or more lines as it is on standard error, with control characters made
    /// [`plain`]. Never blocks: when the console is stuck the oldest messages are dropped, and their number is
    /// reported later.
    pub fn print(&self, message: impl AsRef<[u8]>) {
        self.err.print(plain(&String::from_utf8_lossy(message.as_ref())).as_bytes());
    }

    /// The losses of the two streams, in retrospect, a sentence each.
    #[must_use]
    pub fn losses(&self) -> Vec<String> {
        let streams = [&self.out, &self.err].into_iter().filter_map(|writer| {
            let (name, _) = writer.shared.other.get()?;
            let errno = writer.shared.lock().loss?;
            let why = loss_reason(errno);
            Some(format!("could not write to {name} ({why}); files in --log-dir are not affected"))
        });
        streams.collect()
    }

    /// Waits until everything that was queued before is written, at most `timeout`. Blocks; for the end of the
    /// launcher.
    ///
    /// Returns whether it is written; also true when the console is gone for good.
    #[must_use]
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.out.flush(deadline) && self.err.flush(deadline)
    }

    fn writer(&self, stream: Stream) -> &Arc<Writer> {
        match stream {
            Stream::Out => &self.out,
            Stream::Err => &self.err,
        }
    }
}

/// A worker stream's queue for the console.
#[derive(Debug)]
pub(crate) struct Source {
    id: SourceId,
    writer: Arc<Writer>,
    /// Notified when this source's queue may have room.
    room: Arc<Condvar>,
}

impl Source {
    /// Queues the bytes, whole lines at best; waits while the queue is full. Returns false if it was cut off first:
    /// then nothing was queued.
    pub(crate) fn push(&self, bytes: &[u8], cut_off: &CutOff) -> bool {
        let mut state = self.writer.shared.lock();
        while !state.queues.offer(self.id, bytes, SOURCE_BOUND) {
            if cut_off.is_given() {
                return false;
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.writer.start(&mut state);
        true
    }

    /// Queues the last bytes of a stream that was cut off, somewhat beyond the bound; false: they are lost.
    pub(crate) fn push_last(&self, bytes: &[u8]) -> bool {
        let mut state = self.writer.shared.lock();
        let queued_total = state.queues.offer(self.id, bytes, LAST_BYTES_BOUND);
        self.writer.start(&mut state);
        queued_total
    }

    /// Lets a waiting [`Self::push`] check for its cut-off again.
    pub(crate) fn wake(&self) {
        // Under the lock, so that it cannot fall between the check and the wait.
        let _state = self.writer.shared.lock();
        self.room.notify_all();
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut state = self.writer.shared.lock();
        state.queues.close(self.id);
        state.rooms.retain(|(id, _)| *id != self.id);
    }
}

/// The owning end of one stream's thread.
#[derive(Debug)]
struct Writer {
    shared: Arc<Shared>,
    name: &'static str,
}

/// State shared by the thread and its users.
#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    state: Mutex<State>,
    /// There is something to write, or no source is left.
    work: Condvar,
    /// Something was written.
    progress: Condvar,
    /// The names of this stream and of the other one; not set if both are one file.
    other: OnceLock<(&'static str, Weak<Writer>)>,
    /// The form of messages; not set: text.
    style: OnceLock<LogStyle>,
}

#[derive(Debug, Default)]
struct State {
    queues: Queues,
    rooms: Vec<(SourceId, Arc<Condvar>)>,
    started: bool,
    /// No source is left.
    closed: bool,
    /// Why bytes were lost first.
    loss: Option<Errno>,
}

impl State {
    fn add(&mut self, text: Text, room: &Arc<Condvar>) -> SourceId {
        let id = self.queues.add(text);
        self.rooms.push((id, Arc::clone(room)));
        id
    }

    fn give_up(&mut self) {
        self.queues.give_up();
        self.rooms.iter().for_each(|(_, room)| room.notify_all());
    }
}

impl Writer {
    fn new(fd: OwnedFd, name: &'static str) -> Self {
        let state = Mutex::new(State::default());
        let (work, progress) = (Condvar::new(), Condvar::new());
        let shared = Shared { fd, state, work, progress, other: OnceLock::new(), style: OnceLock::new() };
        Self { shared: Arc::new(shared), name }
    }

    /// See [`Console::print`].
    fn print(&self, message: &[u8]) {
        let mut message = message.to_vec();
        if message.last() != Some(&b'\n') {
            message.push(b'\n');
        }
        let mut state = self.shared.lock();
        state.queues.push_message(&message);
        self.start(&mut state);
    }

    /// Starts the thread with the first bytes, else wakes it.
    fn start(&self, state: &mut State) {
        if state.started {
            self.shared.work.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(self.name.into()).stack_size(STACK_BYTES);
        state.started = thread.spawn(move || shared.write_all_turns()).is_ok();
        if !state.started {
            // The host has no room for a thread now; the next bytes try again. Not logged: the log is printed here
            // too, and the lock is held.
            self.shared.write_what_fits(state);
        }
    }

    fn flush(&self, deadline: Instant) -> bool {
        let mut state = self.shared.lock();
        let positions = state.queues.positions();
        while !state.queues.reached(&positions) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.shared.progress.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    fn style(&self) -> LogStyle {
        self.style.get().copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports on the other stream that this one loses bytes, the first time.
    fn report_loss(&self, errno: Errno) {
        // Neither lock is held while the other is taken.
        let is_first = self.lock().loss.replace(errno).is_none();
        let Some((name, other)) = self.other.get().filter(|_| is_first) else { return };
        if let Some(other) = other.upgrade() {
            let text = format!("warning: {}", loss(name, errno));
            if let Some(line) = self.style().message(Level::ERROR, LAUNCHER, &text) {
                other.print(line.as_bytes());
            }
        }
    }

    /// Without a thread: writes what the console accepts at once. The rest is lost, since there is no thread to wait.
    fn write_what_fits(&self, state: &mut State) {
        while let Some(write) = state.queues.next_write() {
            let line_end: &[u8] = if write.new_line { b"\n" } else { b"" };
            let text = [line_end, &write.bytes].concat();
            // A pipe that is ready has room for this much (pipe(7)).
            for chunk in text.chunks(libc::PIPE_BUF) {
                let is_ready =
                    poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO);
                if is_ready != Ok(1) || nix::unistd::write(&self.fd, chunk) != Ok(chunk.len()) {
                    break;
                }
            }
            state.queues.written(&write);
        }
        state.rooms.iter().for_each(|(_, room)| room.notify_all());
        self.progress.notify_all();
    }

    /// Writes what is queued, source by source, until no source is left.
    fn write_all_turns(&self) {
        let mut state = self.lock();
        loop {
            let Some(write) = state.queues.next_write() else {
                if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let line_end: &[u8] = if write.new_line { b"\n" } else { b"" };
            let result = write_all(&self.fd, line_end).and_then(|()| write_all(&self.fd, &write.bytes));
            if let Err(errno) = result {
                // Before the bytes count as written, so that a flush of both streams includes this message.
                self.report_loss(errno);
            }
            state = self.lock();
            state.queues.written(&write);
            match result {
                // The reader is gone, or the terminal was hung up: from now on everything is discarded.
                Err(Errno::EPIPE | Errno::EIO | Errno::EBADF | Errno::ENXIO) => state.give_up(),
                // A full disk may get room again; these bytes are lost, as they would be for the worker.
                Ok(()) | Err(_) => {
                    if let Some((_, room)) = state.rooms.iter().find(|(id, _)| *id == write.id) {
                        room.notify_all();
                    }
                }
            }
            self.progress.notify_all();
        }
    }
}

/// Why the output of a stream is lost, without a full stop.
fn loss(stream: &str, errno: Errno) -> String {
    let why = loss_reason(errno);
    let how_long = match errno {
        Errno::EPIPE | Errno::EIO | Errno::EBADF | Errno::ENXIO => "from now on",
        _ => "until this is resolved",
    };
    format!(
        "cannot write to {stream} ({why}): output to it is lost {how_long}; files in --log-dir are not affected"
    )
}

fn loss_reason(errno: Errno) -> &'static str {
    if errno == Errno::EPIPE { "its reader has closed the pipe" } else { errno.desc() }
}

/// Writes everything, also to a non-blocking descriptor.
fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> nix::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Which file a descriptor is; equal for two ends of `2>&1`.
fn identity(fd: &OwnedFd) -> Option<(u64, u64)> {
    let metadata = File::from(fd.try_clone().ok()?).metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn messages_contain_no_control_characters() {
        let (mut reader, writer) = io::pipe().unwrap();
        let console = Console::new(writer.try_clone().unwrap().into(), writer.into());
        console.print(b"node \x1b]0;title\x07 said: \xff\rnothing\n".as_slice());
        assert!(console.flush(Duration::from_secs(20)));
        drop(console);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "node \u{fffd}]0;title\u{fffd} said: \u{fffd}\u{fffd}nothing\n");
    }

    #[test]
    fn without_a_thread_messages_are_written_and_a_full_pipe_does_not_block() {
        let (mut reader, writer) = io::pipe().unwrap();
        let console = Writer::new(writer.into(), "console-err");
        let mut state = console.shared.lock();
        state.queues.push_message(b"first\n");
        console.shared.write_what_fits(&mut state);
        let id = state.queues.add(Text::Lines);
        assert!(state.queues.offer(id, &vec![b'x'; 1 << 20], SOURCE_BOUND));
        console.shared.write_what_fits(&mut state);
        assert!(state.queues.next_write().is_none(), "what did not fit is lost");
        drop(state);
        drop(console);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("first\nxxx"), "{}", &text[..20]);
    }
}
