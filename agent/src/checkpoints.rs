//! Checkpoints in memory: the socket by which workers reach the saver of this node, and that process. What it is told,
//! and when it is started, is decided in [`rules::worker_group`].

use std::{
    io,
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
};

use checkpoint::message::{FromSaver, Level, ToSaver};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use processes::{launcher_id::LauncherId, memory_limit, reap::exit_cause};
use rules::{failure::ExitCause, worker_group::Event};
use saver::parent::{
    END_TIMEOUT, LAST_TIMEOUT, SaverEnd, SaverEvent, SaverOptions, SaverProcess, SaverProgram, StartError,
};
use tokio::{io::unix::AsyncFd, time::timeout};
use tracing::{debug, warn};

/// The start of the socket's name; the process id of the launcher and a random number follow.
const PREFIX: &str = "dlrover-ckpt";

/// The memory of the node that checkpoints may have by default, in hundredths: three copies of a state take it, and what
/// trains has the rest.
const DEFAULT_PERCENT: u64 = 40;

/// The socket and the saver of a node.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    socket: Option<Socket>,
    saver: Option<SaverProcess>,
    /// How the saver ended, when this process has reaped it before its handle could.
    reaped: Option<ExitCause>,
    run_id: String,
    /// The memory that they may have, in bytes.
    memory: Option<u64>,
}

/// An abstract socket: no file is left behind.
#[derive(Debug)]
struct Socket {
    listener: AsyncFd<UnixListener>,
    name: String,
}

impl Checkpoints {
    /// Opens the socket. Must be called inside the runtime. Without one, workers write their checkpoints by themselves.
    pub(crate) fn open(run_id: String, memory: Option<u64>) -> Self {
        let socket = Socket::open().inspect_err(|error| {
            warn!(%error, "cannot open the socket for checkpoints in memory: a save to disk blocks training, and a save to memory fails");
        });
        Self { socket: socket.ok(), saver: None, reaped: None, run_id, memory }
    }

    /// Where workers find it: `@` and the name of the abstract socket.
    pub(crate) fn address(&self) -> Option<String> {
        self.socket.as_ref().map(|socket| format!("@{}", socket.name))
    }

    /// Waits for what the saver says, or for a worker that needs a saver. Without either, connections are
    /// closed at once: a client then writes its checkpoints by itself.
    pub(crate) async fn next(&mut self, wants_saver: bool) -> Event {
        if let Some(saver) = &mut self.saver {
            let end = match saver.next().await {
                Some(SaverEvent::Said(said)) => return Event::SaverSaid { said },
                Some(SaverEvent::Garbled(why)) => {
                    let text = format!("ignoring an invalid message from the saver: {why}");
                    return Event::SaverSaid { said: Box::new(FromSaver::Log { level: Level::Warn, text }) };
                }
                Some(SaverEvent::Ended(end)) => end,
                None => SaverEnd::default(),
            };
            self.saver = None;
            return Event::SaverEnded { reason: how_it_ended(&end, self.reaped.take()) };
        }
        match &self.socket {
            Some(socket) if wants_saver => socket.connected().await,
            Some(socket) => socket.close_all().await,
            None => std::future::pending().await,
        }
        Event::SaverWanted
    }

    /// Starts a saver, which accepts the connections from now on.
    ///
    /// # Errors
    /// When there is no room for a process.
    pub(crate) fn start(&mut self, launcher_id: &LauncherId) -> Result<(), StartError> {
        // A saver is started when a worker has connected, so there is a socket.
        let Some(socket) = &self.socket else { return Ok(()) };
        let program = SaverProgram { launcher_id: Some(launcher_id.to_string()), ..SaverProgram::default() };
        let allowance = self.memory.unwrap_or_else(default_memory);
        let options = SaverOptions { run_id: self.run_id.clone(), allowance };
        let listener = socket.listener.get_ref().as_fd();
        self.saver = Some(SaverProcess::start(&program, &options, listener, Vec::new())?);
        Ok(())
    }

    /// Sends a line. A saver that has ended says so by [`Self::next`].
    pub(crate) fn tell(&mut self, message: ToSaver) {
        let Some(saver) = &self.saver else { return debug!(?message, "there is no saver") };
        if let Err(error) = saver.send(message) {
            warn!(%error, "cannot send to the saver");
        }
    }

    /// A child was reaped, which may be the saver.
    pub(crate) fn reaped(&mut self, pid: i32, cause: ExitCause) {
        if self.saver.as_ref().is_some_and(|saver| saver.pid() == pid) {
            self.reaped = Some(cause);
        }
    }

    /// Ends the saver, and waits until it is gone. What it has not written by now is lost.
    pub(crate) async fn close(&mut self) {
        let Some(mut saver) = self.saver.take() else { return };
        // One that has finished is about to exit by itself.
        let _ended = saver.send(ToSaver::Finish { grace_ms: 0, also_memory: false });
        let gone = async { while !matches!(saver.next().await, None | Some(SaverEvent::Ended(_))) {} };
        if timeout(END_TIMEOUT + LAST_TIMEOUT, gone).await.is_err() {
            warn!(pid = saver.pid(), "the saver could not be killed");
        }
    }
}

impl Socket {
    fn open() -> io::Result<Self> {
        let random = uuid::Uuid::new_v4().as_u64_pair().0;
        let name = format!("{PREFIX}.{}.{random:016x}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        // SAFETY: the listener owns its descriptor, which is neither replaced nor closed meanwhile.
        Ok(Self { listener: unsafe { AsyncFd::register(listener) }?, name })
    }

    /// Waits until a connection can be accepted, and leaves it.
    async fn connected(&self) {
        loop {
            match self.listener.readable().await {
                Ok(mut ready) => {
                    if is_readable(self.listener.get_ref()) {
                        return;
                    }
                    // It was of a connection that is gone, or that a saver has accepted.
                    ready.clear_ready();
                }
                Err(error) => {
                    warn!(%error, "cannot watch the socket for checkpoints in memory");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Closes what connects, for as long as there is no saver.
    async fn close_all(&self) {
        loop {
            match self.listener.readable().await {
                Ok(mut ready) => {
                    // An error such as too many open files: the next connection tries again.
                    while self.listener.get_ref().accept().is_ok() {}
                    ready.clear_ready();
                }
                Err(error) => {
                    warn!(%error, "cannot watch the socket for checkpoints in memory");
                    return std::future::pending().await;
                }
            }
        }
    }
}

fn is_readable(listener: &UnixListener) -> bool {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn how_it_ended(end: &SaverEnd, reaped: Option<ExitCause>) -> String {
    let SaverEnd { status, stderr, killed, stuck } = end;
    let how = match (stuck, killed, status.map(exit_cause).or(reaped)) {
        (Some(stuck), ..) => stuck.clone(),
        (None, Some(why), _) => format!("killed by the agent: {why}"),
        (None, None, Some(cause)) => cause.to_string(),
        (None, None, None) => "exit code unknown".to_owned(),
    };
    match stderr.lines().rfind(|line| !line.trim().is_empty()) {
        Some(last) => format!("{how}; last line of its standard error: {last}"),
        None => how,
    }
}

fn default_memory() -> u64 {
    memory_limit().unwrap_or_default() / 100 * DEFAULT_PERCENT
}
