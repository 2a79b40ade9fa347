//! One connection of a client: lines in, one at a time; replies out, with descriptors.
//!
//! The next line is read from the buffer only when the one before is answered, so at most one reply waits for a client,
//! and a client that does not read holds nothing but its own connection. What it sends meanwhile stays in the buffer,
//! which has room for one line, and in the kernel. Descriptors that a client sends are not received: the kernel closes
//! them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

use checkpoint::{
    message::{MAX_LINE, Refusal, Request, RequestError},
    slots::Connection as Id,
};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use tokio::{
    io::Interest,
    net::UnixStream,
    sync::{mpsc, watch},
    time::timeout,
};

use super::{input::Input, slot_file::SlotFile};

/// A client that takes nothing of a reply for so long is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;

/// Lines that count of a connection that has ended. No client sends more before it waits for replies.
const REST: u32 = 64;

/// Replies that wait for the connection: one, and a last word before it is closed.
pub(super) const REPLIES: usize = 4;

/// A descriptor that goes with a reply.
#[derive(Debug)]
pub(super) enum SentFd {
    Writable(Arc<SlotFile>),
    ReadOnly(OwnedFd),
}

impl AsFd for SentFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Writable(slot) => slot.as_fd(),
            Self::ReadOnly(fd) => fd.as_fd(),
        }
    }
}

/// A line for a client.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) line: String,
    /// Go with the first byte of the line.
    pub(super) fds: Vec<SentFd>,
}

/// The task of one connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: Id,
    pub(super) socket: UnixStream,
    /// Becomes true when the process that connected is dead.
    pub(super) is_dead: watch::Receiver<bool>,
    /// Closed when the connection is to end.
    pub(super) replies: mpsc::Receiver<Outgoing>,
    pub(super) inputs: mpsc::Sender<Input>,
}

/// What ends the conversation.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The saver closes it, or the client takes no reply.
    Closed,
    /// The client closed it, or its process is dead. What it has sent before may not be read yet.
    Gone,
}

impl Connection {
    /// Serves the connection to its end, which is the last input of it.
    pub(super) async fn serve(mut self) {
        let mut lines = Lines::default();
        if self.converse(&mut lines).await == End::Gone {
            self.read_rest(&mut lines).await;
        }
        let Self { id, inputs, .. } = self;
        let _loop_ended = inputs.send(Input::Disconnected(id)).await;
    }

    async fn converse(&mut self, lines: &mut Lines) -> End {
        loop {
            // Nothing is taken from a client that was sent its last reply.
            let is_closing = self.replies.is_closed() && self.replies.is_empty();
            let next = if is_closing { return End::Closed } else { lines.next() };
            let answered = match next {
                Next::Line(line) => {
                    self.pass_on(Request::parse(&line)).await;
                    self.answer(lines).await
                }
                Next::TooLong => {
                    self.pass_on(Err(RequestError::TooLong)).await;
                    self.answer(lines).await.and(Err(End::Closed))
                }
                Next::More => self.wait_for_more(lines).await,
            };
            if let Err(end) = answered {
                return end;
            }
        }
    }

    async fn pass_on(&self, parsed: Result<Request, RequestError>) {
        let request = parsed.map_err(|error| Refusal::new(error.code(), error.to_string()));
        // Without a loop the process is ending.
        let _loop_ended = self.inputs.send(Input::Received(self.id, Box::new(request))).await;
    }

    /// Reads something, while no request waits for its reply.
    async fn wait_for_more(&mut self, lines: &mut Lines) -> Result<(), End> {
        tokio::select! {
            read = lines.read(&self.socket) => match read {
                Ok(1..) => Ok(()),
                _ => Err(End::Gone),
            },
            () = is_dead(&mut self.is_dead) => Err(End::Gone),
            reply = self.replies.recv() => self.send(reply.ok_or(End::Closed)?).await,
        }
    }

    /// Waits for the reply to the last line, and sends it. What comes in meanwhile is read, so that the end of the
    /// connection is seen, up to a line's length.
    async fn answer(&mut self, lines: &mut Lines) -> Result<(), End> {
        loop {
            tokio::select! {
                reply = self.replies.recv() => return self.send(reply.ok_or(End::Closed)?).await,
                () = is_dead(&mut self.is_dead) => return Err(End::Gone),
                read = lines.read(&self.socket), if lines.has_room() => if !matches!(read, Ok(1..)) {
                    return Err(End::Gone);
                },
            }
        }
    }

    async fn send(&mut self, reply: Outgoing) -> Result<(), End> {
        tokio::select! {
            sent = send(&self.socket, &reply, SEND_TIMEOUT) => sent.map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => End::Closed,
                _ => End::Gone,
            }),
            () = is_dead(&mut self.is_dead) => Err(End::Gone),
        }
    }

    /// Passes on what was sent before the end: a `commit` counts. There is nothing to reply to.
    async fn read_rest(&mut self, lines: &mut Lines) {
        let mut left = REST;
        while left > 0 {
            match lines.next() {
                Next::Line(line) => {
                    self.pass_on(Request::parse(&line)).await;
                    left -= 1;
                }
                Next::More if matches!(lines.read_now(&self.socket), Ok(1..)) => {}
                Next::More | Next::TooLong => return,
            }
        }
    }
}

/// Waits until the process is dead.
async fn is_dead(dead: &mut watch::Receiver<bool>) {
    // Its sender is dropped only when the loop ends.
    let _either_way = dead.wait_for(|dead| *dead).await.is_ok();
}

/// Bytes that were received, and not used yet.
#[derive(Debug, Default)]
struct Lines {
    received: Vec<u8>,
    /// So many bytes have no line feed.
    searched: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Line(Vec<u8>),
    /// There is no whole line yet.
    More,
    /// There is no line feed within the longest line.
    TooLong,
}

impl Lines {
    fn next(&mut self) -> Next {
        let unsearched = self.received.get(self.searched..).unwrap_or_default();
        match unsearched.iter().position(|byte| *byte == b'\n') {
            Some(position) => {
                let end = self.searched + position;
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.pop();
                self.searched = 0;
                if self.received.is_empty() {
                    // The room of a long line is not kept for an idle connection.
                    self.received = Vec::new();
                }
                Next::Line(line)
            }
            None if self.received.len() > MAX_LINE => Next::TooLong,
            None => {
                self.searched = self.received.len();
                Next::More
            }
        }
    }

    fn has_room(&self) -> bool {
        self.received.len() <= MAX_LINE
    }

    /// Reads what there is; 0 at the end. Cancel-safe.
    async fn read(&mut self, socket: &UnixStream) -> io::Result<usize> {
        loop {
            socket.readable().await?;
            match self.try_read(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    fn try_read(&mut self, socket: &UnixStream) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        let length = socket.try_read(&mut chunk)?;
        self.received.extend_from_slice(chunk.get(..length).unwrap_or_default());
        Ok(length)
    }

    /// Reads what there is, also when the runtime has not seen yet that there is something.
    fn read_now(&mut self, socket: &UnixStream) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        let length = recv(socket.as_raw_fd(), &mut chunk, MsgFlags::MSG_DONTWAIT)?;
        self.received.extend_from_slice(chunk.get(..length).unwrap_or_default());
        Ok(length)
    }
}

/// Sends a line with its descriptors.
async fn send(socket: &UnixStream, reply: &Outgoing, at_most: Duration) -> io::Result<()> {
    let bytes = reply.line.as_bytes();
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = bytes.get(sent..).unwrap_or_default();
        // They must not go twice.
        let fds: &[SentFd] = if sent == 0 { &reply.fds } else { &[] };
        let some = socket.async_io(Interest::WRITABLE, || send_some(socket, rest, fds));
        sent += timeout(at_most, some).await??;
    }
    Ok(())
}

fn send_some(socket: &UnixStream, bytes: &[u8], fds: &[SentFd]) -> io::Result<usize> {
    let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[io::IoSlice::new(bytes)], rights, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_however_they_come() {
        let mut lines = Lines::default();
        assert_eq!(lines.next(), Next::More);
        lines.received.extend_from_slice(b"one\ntwo");
        assert_eq!(lines.next(), Next::Line(b"one".to_vec()));
        assert_eq!(lines.next(), Next::More);
        lines.received.extend_from_slice(b"\n\n");
        assert_eq!(lines.next(), Next::Line(b"two".to_vec()));
        assert_eq!(lines.next(), Next::Line(Vec::new()));
        assert_eq!(lines.next(), Next::More);
    }

    #[test]
    fn a_line_without_an_end_is_given_up() {
        let mut lines = Lines { received: vec![b'x'; MAX_LINE], searched: 0 };
        assert!(lines.has_room());
        assert_eq!(lines.next(), Next::More);
        lines.received.push(b'x');
        assert!(!lines.has_room());
        assert_eq!(lines.next(), Next::TooLong);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (socket, _client) = UnixStream::pair().unwrap();
        let reply = Outgoing { line: "x".repeat(16 << 20), fds: Vec::new() };
        let sent = send(&socket, &reply, Duration::from_millis(20)).await;
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
