//! The messages between launcher and guard: a length (u32, little endian) and a postcard message. File descriptors
//! are sent with the bytes (SCM_RIGHTS), in the order of the frames that name them.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    time::Duration,
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, recvmsg, sendmsg};
use rules::{LocalRank, Round, warm::LeftOut, worker_group::WorkerExit};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Largest frame: the kernel limits the environment of an exec to a few MiB.
const MAX_BYTES: usize = 64 << 20;

/// File descriptors in one `sendmsg`: standard output and error of one worker.
const MAX_FDS: usize = 2;

/// Launcher to guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuard {
    /// Workers of this round follow.
    Begin { round: Round },
    /// Start this worker now.
    Worker(WorkerSpec),
    /// No more workers in this round.
    End,
    /// Start the template of Python workers. Once it has reported that it is ready, workers are forked from it.
    StartTemplate(TemplateSpec),
    /// End it.
    EndTemplate,
    /// Signal every process below the guard.
    SignalTree { signal: i32 },
    /// Signal the workers only.
    SignalWorkers { signal: i32 },
    /// SIGKILL to one worker.
    KillWorker { local_rank: LocalRank },
    /// SIGKILL to every process below the guard, until none is left.
    KillTree,
    /// As `KillTree` after this time without another `Fence`; `None`: never.
    Fence { within: Option<Duration> },
}

/// One worker to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpec {
    pub local_rank: LocalRank,
    pub argv: Vec<Vec<u8>>,
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// CPUs it may run on; empty: those of the launcher.
    pub cpus: Vec<usize>,
    /// A file descriptor for its standard output is sent along; else it inherits the launcher's.
    pub has_stdout: bool,
    /// The same for standard error.
    pub has_stderr: bool,
}

/// The template to start: an interpreter with the command and the environment of a worker, which it never runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSpec {
    pub argv: Vec<Vec<u8>>,
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// CPUs on which it imports: as many as a worker has, because libraries count them.
    pub cpus: Vec<usize>,
    /// The modules that it imports, in this order, or what a worker has left of its own.
    pub modules: Vec<Vec<u8>>,
    /// Those are the ones that a worker had, so that one that cannot be found is passed over.
    pub is_learned: bool,
    /// Its share of memory, at most, in KiB.
    pub limit_kib: u64,
    /// It imports at idle priority.
    pub is_idle: bool,
    /// The entry of `PYTHONPATH` by which workers find their prelude; empty: they have none.
    pub worker_prelude: Vec<u8>,
    /// The variables whose values differ between the workers.
    pub differing: Vec<Vec<u8>>,
}

/// Guard to launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuard {
    /// A worker runs.
    Started { round: Round, local_rank: LocalRank, pid: i32 },
    /// A worker could not be started; those that are not forked yet will not be started.
    CannotStart { round: Round, local_rank: LocalRank, errno: i32 },
    /// A worker ended: it was noticed at this time since 1970.
    Exited { round: Round, exit: WorkerExit, noticed: Duration },
    /// Nothing below the guard is left but the template.
    TreeGone { round: Round },
    /// The template is as far.
    Template(TemplateReport),
}

/// What becomes of the template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateReport {
    /// It has imported the modules, without these, and this is its share of memory.
    Ready { kib: u64, left_out: Vec<LeftOut> },
    /// It cannot be used, and has ended.
    Unfit { reason: String },
    /// It was ready, and this generation could not, or not as a whole, be forked from it. It has ended.
    Refused { reason: String },
}

/// Encodes one message.
///
/// # Errors
/// When it is larger than any real environment.
pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a worker's environment is over 64 MiB"));
    }
    let prefix = u32::try_from(length).map_err(io::Error::other)?.to_le_bytes();
    bytes[..4].copy_from_slice(&prefix);
    Ok(bytes)
}

/// Sends as much of `bytes` as the socket takes; `fds` go with the first byte.
///
/// # Errors
/// As `sendmsg(2)`; a full socket is `WouldBlock`.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let raw: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?)
}

/// Assembles frames from what a socket delivers.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Reads once. 0 is the end of the stream.
    ///
    /// # Errors
    /// As `recvmsg(2)`; an empty non-blocking socket is `WouldBlock`.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let start = self.bytes.len();
        self.bytes.resize(start + 16 * 1024, 0);
        let mut control = nix::cmsg_space!([i32; MAX_FDS]);
        let mut slices = [IoSliceMut::new(&mut self.bytes[start..])];
        let received: Result<RecvMsg<'_, '_, ()>, _> =
            recvmsg(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC);
        let (taken, fds) = match received {
            Ok(message) => {
                let mut fds = Vec::new();
                for control in message.cmsgs().map_err(io::Error::from)? {
                    if let ControlMessageOwned::ScmRights(raw) = control {
                        fds.extend(raw);
                    }
                }
                (message.bytes, fds)
            }
            Err(error) => {
                self.bytes.truncate(start);
                return Err(error.into());
            }
        };
        self.bytes.truncate(start + taken);
        for fd in fds {
            // SAFETY: a new descriptor from the kernel, which only this process knows.
            self.fds.push_back(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Ok(taken)
    }

    /// The next whole message.
    ///
    /// # Errors
    /// When the other side sends an invalid message.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(prefix) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is over 64 MiB"));
        }
        let Some(frame) = self.bytes.get(4..4 + length) else { return Ok(None) };
        let message = postcard::from_bytes(frame).map_err(io::Error::other)?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }

    /// The oldest file descriptor that was received.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        os::{fd::AsFd as _, unix::net::UnixStream},
    };

    use super::*;

    fn worker(fill: usize) -> ToGuard {
        ToGuard::Worker(WorkerSpec {
            local_rank: LocalRank(1),
            argv: vec![b"python3".to_vec(), vec![0xff, 0xfe]],
            env: vec![(b"A".to_vec(), vec![b'x'; fill])],
            cpus: vec![0, 3],
            has_stdout: true,
            has_stderr: false,
        })
    }

    #[test]
    fn frames_and_descriptors_arrive_whole_and_in_order() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let sender = std::thread::spawn(move || {
            let mut fds = vec![OwnedFd::from(writer)];
            for message in [ToGuard::Begin { round: Round(1) }, worker(300_000), ToGuard::End] {
                let bytes = encode(&message).unwrap();
                let mut rest = &bytes[..];
                let mut with =
                    if matches!(message, ToGuard::Worker(_)) { std::mem::take(&mut fds) } else { vec![] };
                while !rest.is_empty() {
                    let sent = send(near.as_fd(), rest, &with).unwrap();
                    with.clear();
                    rest = &rest[sent..];
                }
            }
        });
        let mut inbox = Inbox::default();
        let mut seen = Vec::new();
        while seen.len() < 3 {
            assert_ne!(inbox.fill(far.as_fd()).unwrap(), 0);
            while let Some(message) = inbox.next_message::<ToGuard>().unwrap() {
                seen.push(message);
            }
        }
        sender.join().unwrap();
        assert_eq!(seen, [ToGuard::Begin { round: Round(1) }, worker(300_000), ToGuard::End]);
        let mut passed = File::from(inbox.take_fd().unwrap());
        passed.write_all(b"hello").unwrap();
        drop(passed);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(inbox.take_fd().is_none());
    }

    #[test]
    fn invalid_bytes_are_an_error_and_allocate_nothing() {
        let mut inbox = Inbox { bytes: vec![0xff; 8], ..Inbox::default() };
        assert_eq!(inbox.next_message::<ToGuard>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
