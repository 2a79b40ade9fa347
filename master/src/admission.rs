//! Who connects: not more than there are descriptors for, and not for long without a word. Half of the room is for nodes
//! that have a part in the job, whatever others do.

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
    crowd::{Crowd, Face, Full, Place, SILENT_FOR},
    lines::{Log, say},
};

/// How long a connection may stand without a call that makes sense.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// Streams of pushes over one connection: a launcher has one, and another one when it has not seen yet that the first
/// ended.
const SESSIONS: usize = 2;

/// How long the other side may take to end a connection that this side has ended.
const LINGER: Duration = Duration::from_secs(5);

/// Descriptors that are left for everything else: files, the runtime, listeners.
const HEADROOM: u64 = 64;

/// Until the next try when there is no descriptor for a connection: they come back when one ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What one master is made for: two connections of each attendee.
const MOST: usize = 2 * crate::streams::MOST_SUBSCRIBERS;

/// How many connections this process has room for.
#[must_use]
pub fn most() -> usize {
    // Where it cannot be asked it is what systems give at least.
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(open_files.saturating_sub(HEADROOM)).unwrap_or(MOST).clamp(16, MOST)
}

/// Lets in what `connections` accepts, at most `most` at a time, of which half may be from whoever has no part in the
/// job. Further ones are closed: they come again.
pub(crate) fn guarded(
    connections: impl Stream<Item = io::Result<TcpStream>> + Send + 'static,
    most: usize,
    log: Log,
) -> impl Stream<Item = io::Result<Guarded>> + Send + 'static {
    let permits = Arc::new(Semaphore::new(most));
    let entrance =
        Entrance { permits, crowd: Crowd::new(most / 2), most, is_full: false, is_crowded: false, log };
    unfold((Box::pin(connections), entrance), async |(mut connections, mut entrance)| {
        loop {
            let guarded = match connections.next().await? {
                Ok(stream) => entrance.let_in(stream).await,
                Err(_) => {
                    sleep(ACCEPT_PAUSE).await;
                    None
                }
            };
            if let Some(guarded) = guarded {
                return Some((Ok(guarded), (connections, entrance)));
            }
        }
    })
}

/// Where connections become guarded ones, one after the other.
struct Entrance {
    permits: Arc<Semaphore>,
    crowd: Crowd,
    most: usize,
    /// That has been said.
    is_full: bool,
    is_crowded: bool,
    log: Log,
}

impl Entrance {
    /// `None`: it was closed.
    async fn let_in(&mut self, stream: TcpStream) -> Option<Guarded> {
        let ip = stream.peer_addr().ok()?.ip().to_canonical();
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            if !std::mem::replace(&mut self.is_full, true) {
                say(
                    &self.log,
                    format_args!(
                        "warning: {} connections are open, as many as the limit of open files (ulimit -n) leaves room for; \
                     further ones are closed",
                        self.most
                    ),
                );
            }
            sleep(ACCEPT_PAUSE).await;
            return None;
        };
        let Some(place) = self.place(ip).await else {
            if !std::mem::replace(&mut self.is_crowded, true) {
                say(
                    &self.log,
                    format_args!(
                        "warning: {ip}: closed its connection: {} connections are open that have no part in the job, and the \
                     rest of the room is kept for nodes that have (said once)",
                        self.most / 2
                    ),
                );
            }
            return None;
        };
        Some(Guarded::new(stream, ip, permit, place))
    }

    /// A place in the crowd. Where thousands of nodes come at once one is free in a moment, for they are known as soon
    /// as they have joined; the others wait in the kernel's queue.
    async fn place(&mut self, ip: IpAddr) -> Option<Place> {
        let until = tokio::time::Instant::now() + SILENT_FOR;
        loop {
            let fewer = self.crowd.fewer();
            match self.crowd.admit(ip, Instant::now()) {
                Ok(place) => return Some(place),
                Err(Full::Wait) if timeout_at(until, fewer).await.is_ok() => {}
                Err(Full::Wait) => return self.crowd.admit(ip, Instant::now()).ok(),
                Err(Full::Enough) => return None,
            }
        }
    }
}

/// How the other side has ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its kernel has closed it, as it does when the process at its end is gone.
    Closed,
    /// It was reset. A firewall or an address translator on the way does that too, and so does a host whose kernel has given
    /// up the connection while the process lives.
    Reset,
}

impl Ended {
    /// What a read or a write came to.
    fn of(result: &io::Result<usize>) -> Option<Self> {
        match result {
            Ok(0) => Some(Self::Closed),
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset) => Some(Self::Reset),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Its address; an IPv4 one is never written as IPv6.
    pub(crate) ip: IpAddr,
    made_sense: Arc<AtomicBool>,
    ended: watch::Receiver<Option<Ended>>,
    face: Face,
    sessions: Arc<AtomicUsize>,
}

/// A stream of pushes over a connection.
#[derive(Debug)]
pub(crate) struct Session {
    of: Arc<AtomicUsize>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.of.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peer {
    /// The sender of a call.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        let plain = extensions.get::<Self>();
        plain.or_else(|| extensions.get::<TlsConnectInfo<Self>>().map(TlsConnectInfo::get_ref))
    }

    /// Its connection may stay.
    pub(crate) fn made_sense(&self) {
        self.made_sense.store(true, Ordering::Relaxed);
        self.face.speaks();
    }

    /// How the other side has ended the connection, if it has.
    pub(crate) fn has_ended(&self) -> Option<Ended> {
        *self.ended.borrow()
    }

    /// Waits for the end of the connection. `None`: this side ended it.
    pub(crate) async fn ended(mut self) -> Option<Ended> {
        self.ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended)
    }

    /// The node at its other end has a part in the job: the reserve is for it.
    pub(crate) fn has_part(&self) {
        self.face.is_known();
    }

    /// Counts a stream of pushes; `None`: there are as many as a launcher ever has.
    pub(crate) fn subscribes(&self) -> Option<Session> {
        let session = Session { of: Arc::clone(&self.sessions) };
        (self.sessions.fetch_add(1, Ordering::Relaxed) < SESSIONS).then_some(session)
    }
}

/// A connection that has a permit, and is closed when it says nothing that makes sense.
#[derive(Debug)]
pub(crate) struct Guarded {
    stream: TcpStream,
    peer: Peer,
    /// Told of the other side's end.
    ends: watch::Sender<Option<Ended>>,
    /// `None` once it made sense.
    until: Option<Pin<Box<Sleep>>>,
    place: Place,
    permit: Option<OwnedSemaphorePermit>,
}

impl Guarded {
    fn new(stream: TcpStream, ip: IpAddr, permit: OwnedSemaphorePermit, place: Place) -> Self {
        // Small messages that somebody waits for. A connection that cannot have it works as well, only slower.
        let _as_it_is = stream.set_nodelay(true);
        let (ends, ended) = watch::channel(None);
        let peer =
            Peer { ip, made_sense: Arc::default(), ended, face: place.face(), sessions: Arc::default() };
        Self { stream, peer, ends, until: Some(Box::pin(sleep(SILENCE))), place, permit: Some(permit) }
    }
}

/// A client that ends says so (GOAWAY) and then closes its side, and between the two this side ends the connection: what
/// the other one did is yet to be seen. So it is after a write that failed.
impl Drop for Guarded {
    fn drop(&mut self) {
        let is_open = self.ends.borrow().is_none();
        if !is_open || !self.peer.made_sense.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(runtime), Ok(socket)) = (Handle::try_current(), self.stream.as_fd().try_clone_to_owned())
        else {
            return;
        };
        let (ends, permit) = (self.ends.clone(), self.permit.take());
        runtime.spawn(async move {
            let _permit = permit;
            if let Ok(Some(ended)) = timeout(LINGER, end_of(socket.into())).await {
                note(&ends, ended);
            }
        });
    }
}

fn note(ends: &watch::Sender<Option<Ended>>, ended: Ended) {
    ends.send_if_modified(|known| known.is_none() && known.replace(ended).is_none());
}

/// How the other side ends a connection that this side has ended.
async fn end_of(socket: std::net::TcpStream) -> Option<Ended> {
    // Where it is not connected any more, the first read tells.
    let _ended = socket.shutdown(Shutdown::Write);
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

impl Connected for Guarded {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peer.made_sense.load(Ordering::Relaxed) {
            self.until = None;
        }
        if let Some(until) = &mut self.until
            && until.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if Pin::new(&mut self.place.evicted).poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let (before, room) = (buf.filled().len(), buf.remaining());
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(read) = &read
            && room > 0
        {
            let came = buf.filled().len() - before;
            let result = read.as_ref().map(|()| came).map_err(|error| io::Error::from(error.kind()));
            if let Some(ended) = Ended::of(&result) {
                note(&self.ends, ended);
            }
        }
        read
    }
}

impl AsyncWrite for Guarded {
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
        most: usize,
    ) -> (std::net::SocketAddr, Pin<Box<dyn Stream<Item = io::Result<Guarded>> + Send>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (address, Box::pin(guarded(TcpListenerStream::new(listener), most, Arc::new(drop))))
    }

    #[tokio::test]
    async fn no_more_come_in_than_there_is_room_for() {
        let (address, mut admission) = admission(2).await;
        let _first = TcpStream::connect(address).await.unwrap();
        let held = admission.next().await.unwrap().unwrap();
        held.peer.made_sense();
        // The other half is for those that have a part in the job.
        let mut second = TcpStream::connect(address).await.unwrap();
        let third = async {
            // The second is seen to be closed before the third comes.
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
            drop(held);
            TcpStream::connect(address).await.unwrap()
        };
        let (third, let_in) = tokio::join!(third, admission.next());
        assert_eq!(let_in.unwrap().unwrap().stream.peer_addr().unwrap(), third.local_addr().unwrap());
    }

    #[tokio::test]
    async fn who_has_no_part_in_the_job_leaves_room_for_those_that_have() {
        let (address, mut admission) = admission(4).await;
        let _members =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let mut held =
            vec![admission.next().await.unwrap().unwrap(), admission.next().await.unwrap().unwrap()];
        held.iter().for_each(|member| member.peer.has_part());
        let _others =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        held.extend([admission.next().await.unwrap().unwrap(), admission.next().await.unwrap().unwrap()]);
        let streams: Vec<_> = (0..3).map(|_| held[0].peer.subscribes()).collect();
        assert_eq!(streams.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        drop(streams);
        assert!(held[0].peer.subscribes().is_some());
    }

    #[tokio::test]
    async fn how_the_other_side_ends_is_seen_also_after_this_side_has() {
        let (address, mut admission) = admission(4).await;
        for reset in [false, true] {
            let client = TcpStream::connect(address).await.unwrap();
            let guarded = admission.next().await.unwrap().unwrap();
            let peer = guarded.peer.clone();
            peer.made_sense();
            drop(guarded);
            assert_eq!(peer.has_ended(), None);
            if reset {
                client.set_zero_linger().unwrap();
            }
            drop(client);
            let ended = if reset { Ended::Reset } else { Ended::Closed };
            assert_eq!(peer.ended().await, Some(ended));
        }
        // One that is evicted, or a stranger, is not waited for.
        let _client = TcpStream::connect(address).await.unwrap();
        let guarded = admission.next().await.unwrap().unwrap();
        let peer = guarded.peer.clone();
        drop(guarded);
        assert_eq!(peer.ended().await, None);
    }

    #[tokio::test]
    async fn who_says_nothing_that_makes_sense_is_closed() {
        let (address, mut admission) = admission(4).await;
        let _both = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let mut silent = admission.next().await.unwrap().unwrap();
        let mut sensible = admission.next().await.unwrap().unwrap();
        sensible.peer.made_sense();
        pause();
        advance(SILENCE + Duration::from_secs(1)).await;
        assert_eq!(silent.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(tokio::time::timeout(SILENCE, sensible.read(&mut [0])).await.is_err(), "it may stay");
    }
}
