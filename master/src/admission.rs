//! Admits connections: no more than there are descriptors for, and none for long without a valid call. Half of the
//! capacity is reserved for nodes of the job.

use std::{
    io,
    net::{IpAddr, Shutdown},
    os::fd::AsFd as _,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::stream::unfold;
use nix::sys::resource::{Resource, getrlimit};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::TcpStream,
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Sleep, sleep, timeout, timeout_at},
};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{
    Extensions,
    transport::server::{Connected, TlsConnectInfo},
};

use crate::{
    log::{Log, log_line},
    peer_limit::{Full, PeerHandle, PeerLimit, SILENT_TIMEOUT, Slot},
};

/// Time limit for the first valid call of a connection.
pub(crate) const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Sessions over one connection: a launcher has one, and a second one while it has not noticed the end of the first.
const MAX_SESSIONS: usize = 2;

/// How long the peer may take to close a connection that this side has closed.
const LINGER: Duration = Duration::from_secs(5);

/// Descriptors that are reserved for everything else: files, the runtime, listeners.
const RESERVED_FILES: u64 = 64;

/// Pause before the next try when there is no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Two connections of each subscriber.
const MAX_CONNECTIONS: usize = 2 * crate::streams::MAX_SUBSCRIBERS;

/// Returns how many connections this process has descriptors for.
#[must_use]
pub fn max_connections() -> usize {
    // The fallback is the usual minimum.
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(open_files.saturating_sub(RESERVED_FILES))
        .unwrap_or(MAX_CONNECTIONS)
        .clamp(16, MAX_CONNECTIONS)
}

/// Admits what `connections` accepts, at most `max` at a time, half of them from peers that are not nodes of the job.
/// Further ones are closed, and their peers retry.
pub(crate) fn admitted(
    connections: impl Stream<Item = io::Result<TcpStream>> + Send + 'static,
    max: usize,
    log: Log,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let permits = Arc::new(Semaphore::new(max));
    let admission = Admission {
        permits,
        limit: PeerLimit::new(max / 2),
        max,
        has_logged_full: false,
        has_logged_refusal: false,
        log,
    };
    unfold((Box::pin(connections), admission), async |(mut connections, mut admission)| {
        loop {
            let admitted = match connections.next().await? {
                Ok(stream) => admission.admit(stream).await,
                Err(_) => {
                    sleep(ACCEPT_PAUSE).await;
                    None
                }
            };
            if let Some(admitted) = admitted {
                return Some((Ok(admitted), (connections, admission)));
            }
        }
    })
}

/// Admits one connection after the other.
struct Admission {
    permits: Arc<Semaphore>,
    limit: PeerLimit,
    max: usize,
    has_logged_full: bool,
    has_logged_refusal: bool,
    log: Log,
}

impl Admission {
    /// Admits a connection, or closes it, as when too many are open. Returns `None` then.
    async fn admit(&mut self, stream: TcpStream) -> Option<Connection> {
        let ip = stream.peer_addr().ok()?.ip().to_canonical();
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            if !std::mem::replace(&mut self.has_logged_full, true) {
                log_line(
                    &self.log,
                    format_args!(
                        "warning: {} connections are open, the maximum{}; further ones are closed",
                        self.max,
                        if self.max < MAX_CONNECTIONS {
                            " that the limit of open files (ulimit -n) allows; raise it"
                        } else {
                            ""
                        }
                    ),
                );
            }
            sleep(ACCEPT_PAUSE).await;
            return None;
        };
        let Some(slot) = self.slot(ip).await else {
            if !std::mem::replace(&mut self.has_logged_refusal, true) {
                log_line(
                    &self.log,
                    format_args!(
                        "warning: {ip}: the master closed this peer's connection: {} connections of peers that are not nodes of \
                         the job are open, the maximum; the rest are reserved for nodes (logged once)",
                        self.max / 2
                    ),
                );
            }
            return None;
        };
        Some(Connection::new(stream, ip, permit, slot))
    }

    /// Waits for a slot. When thousands of nodes connect at once, one is freed as soon as a node has joined; meanwhile
    /// the others wait in the kernel's queue.
    async fn slot(&mut self, ip: IpAddr) -> Option<Slot> {
        let deadline = tokio::time::Instant::now() + SILENT_TIMEOUT;
        loop {
            let slot_freed = self.limit.slot_freed();
            match self.limit.admit(ip, Instant::now()) {
                Ok(slot) => return Some(slot),
                Err(Full::Wait) if timeout_at(deadline, slot_freed).await.is_ok() => {}
                Err(Full::Wait) => return self.limit.admit(ip, Instant::now()).ok(),
                Err(Full::TooMany) => return None,
            }
        }
    }
}

/// How the peer closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The peer's kernel closed it, as when its process has exited.
    Closed,
    /// It was reset. A firewall or NAT may do that too, or a kernel that gives up the connection of a live process.
    Reset,
}

impl Ended {
    /// Derived from the result of a read.
    fn of(result: &io::Result<usize>) -> Option<Self> {
        match result {
            Ok(0) => Some(Self::Closed),
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset) => Some(Self::Reset),
            Ok(_) | Err(_) => None,
        }
    }
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Its address; an IPv4 address is not mapped to IPv6.
    pub(crate) ip: IpAddr,
    mark_valid: Arc<AtomicBool>,
    ended: watch::Receiver<Option<Ended>>,
    handle: PeerHandle,
    sessions: Arc<AtomicUsize>,
}

/// A stream of pushes over a connection, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    count: Arc<AtomicUsize>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peer {
    /// Returns the sender of a call.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        let plain = extensions.get::<Self>();
        plain.or_else(|| extensions.get::<TlsConnectInfo<Self>>().map(TlsConnectInfo::get_ref))
    }

    /// The peer has made a valid call, so its connection may stay open.
    pub(crate) fn mark_valid(&self) {
        self.mark_valid.store(true, Ordering::Relaxed);
        self.handle.mark_active();
    }

    /// Returns how the peer closed the connection, if it has.
    pub(crate) fn end(&self) -> Option<Ended> {
        *self.ended.borrow()
    }

    /// Waits for the end of the connection. `None`: this side closed it.
    pub(crate) async fn ended(mut self) -> Option<Ended> {
        self.ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended)
    }

    /// The peer is a node of the job.
    pub(crate) fn mark_member(&self) {
        self.handle.mark_member();
    }

    /// Opens a session; `None` when the connection has [`MAX_SESSIONS`].
    pub(crate) fn open_session(&self) -> Option<Session> {
        let session = Session { count: Arc::clone(&self.sessions) };
        (self.sessions.fetch_add(1, Ordering::Relaxed) < MAX_SESSIONS).then_some(session)
    }
}

/// An admitted connection, which is closed when it makes no valid call in time.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    peer: Peer,
    ends: watch::Sender<Option<Ended>>,
    /// Of the first valid call; `None` after it.
    deadline: Option<Pin<Box<Sleep>>>,
    slot: Slot,
    permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn new(stream: TcpStream, ip: IpAddr, permit: OwnedSemaphorePermit, slot: Slot) -> Self {
        // Small messages that are waited for; without it the connection is only slower.
        let _ignored = stream.set_nodelay(true);
        let (ends, ended) = watch::channel(None);
        let peer =
            Peer { ip, mark_valid: Arc::default(), ended, handle: slot.handle(), sessions: Arc::default() };
        Self {
            stream,
            peer,
            ends,
            deadline: Some(Box::pin(sleep(FIRST_CALL_TIMEOUT))),
            slot,
            permit: Some(permit),
        }
    }
}

/// A client that exits sends GOAWAY and then closes its side; this side closes in between, and has yet to see how the
/// peer does. The same holds after a failed write.
impl Drop for Connection {
    fn drop(&mut self) {
        let is_open = self.ends.borrow().is_none();
        if !is_open || !self.peer.mark_valid.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(runtime), Ok(socket)) = (Handle::try_current(), self.stream.as_fd().try_clone_to_owned())
        else {
            return;
        };
        let (ends, permit) = (self.ends.clone(), self.permit.take());
        runtime.spawn(async move {
            let _permit = permit;
            if let Ok(Some(ended)) = timeout(LINGER, await_end(socket.into())).await {
                record_end(&ends, ended);
            }
        });
    }
}

fn record_end(ends: &watch::Sender<Option<Ended>>, ended: Ended) {
    ends.send_if_modified(|end| end.is_none() && end.replace(ended).is_none());
}

/// Waits until the peer closes a connection that this side has closed.
async fn await_end(socket: std::net::TcpStream) -> Option<Ended> {
    // If it is no longer connected, the first read fails.
    let _ignored = socket.shutdown(Shutdown::Write);
    let mut stream = TcpStream::from_std(socket).ok()?;
    let mut rest = [0; 4096];
    loop {
        let read = stream.read(&mut rest).await;
        match Ended::of(&read) {
            None if read.is_ok() => {}
            ended => return ended,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peer.mark_valid.load(Ordering::Relaxed) {
            self.deadline = None;
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if Pin::new(&mut self.slot.evicted).poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let (before, room) = (buf.filled().len(), buf.remaining());
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(read) = &read
            && room > 0
        {
            let length = buf.filled().len() - before;
            let result = read.as_ref().map(|()| length).map_err(|error| io::Error::from(error.kind()));
            if let Some(ended) = Ended::of(&result) {
                record_end(&self.ends, ended);
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::AsyncReadExt as _,
        net::TcpListener,
        time::{advance, pause},
    };
    use tokio_stream::wrappers::TcpListenerStream;

    use super::*;

    async fn admission(
        max_connections: usize,
    ) -> (std::net::SocketAddr, Pin<Box<dyn Stream<Item = io::Result<Connection>> + Send>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (address, Box::pin(admitted(TcpListenerStream::new(listener), max_connections, Arc::new(drop))))
    }

    #[tokio::test]
    async fn no_more_connections_are_admitted_than_the_limit() {
        let (address, mut admission) = admission(2).await;
        let _first = TcpStream::connect(address).await.unwrap();
        let held = admission.next().await.unwrap().unwrap();
        held.peer.mark_valid();
        // The other half is reserved for nodes of the job.
        let mut second = TcpStream::connect(address).await.unwrap();
        let third = async {
            // The second is closed before the third connects.
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
            drop(held);
            TcpStream::connect(address).await.unwrap()
        };
        let (third, admit) = tokio::join!(third, admission.next());
        assert_eq!(admit.unwrap().unwrap().stream.peer_addr().unwrap(), third.local_addr().unwrap());
    }

    #[tokio::test]
    async fn half_of_the_capacity_is_reserved_for_nodes_of_the_job() {
        let (address, mut admission) = admission(4).await;
        let _members =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let mut held =
            vec![admission.next().await.unwrap().unwrap(), admission.next().await.unwrap().unwrap()];
        held.iter().for_each(|member| member.peer.mark_member());
        let _others =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        held.extend([admission.next().await.unwrap().unwrap(), admission.next().await.unwrap().unwrap()]);
        let streams: Vec<_> = (0..3).map(|_| held[0].peer.open_session()).collect();
        assert_eq!(streams.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        drop(streams);
        assert!(held[0].peer.open_session().is_some());
    }

    #[tokio::test]
    async fn how_the_peer_closes_is_seen_after_this_side_has_closed() {
        let (address, mut admission) = admission(4).await;
        for reset in [false, true] {
            let client = TcpStream::connect(address).await.unwrap();
            let admitted = admission.next().await.unwrap().unwrap();
            let peer = admitted.peer.clone();
            peer.mark_valid();
            drop(admitted);
            assert_eq!(peer.end(), None);
            if reset {
                client.set_zero_linger().unwrap();
            }
            drop(client);
            let ended = if reset { Ended::Reset } else { Ended::Closed };
            assert_eq!(peer.ended().await, Some(ended));
        }
        // After no valid call there is no wait for the peer.
        let _client = TcpStream::connect(address).await.unwrap();
        let admitted = admission.next().await.unwrap().unwrap();
        let peer = admitted.peer.clone();
        drop(admitted);
        assert_eq!(peer.ended().await, None);
    }

    #[tokio::test]
    async fn a_connection_without_a_valid_call_is_closed() {
        let (address, mut admission) = admission(4).await;
        let _both = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let mut silent = admission.next().await.unwrap().unwrap();
        let mut valid = admission.next().await.unwrap().unwrap();
        valid.peer.mark_valid();
        pause();
        advance(FIRST_CALL_TIMEOUT + Duration::from_secs(1)).await;
        assert_eq!(silent.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(
            tokio::time::timeout(FIRST_CALL_TIMEOUT, valid.read(&mut [0])).await.is_err(),
            "it stays open"
        );
    }
}
