//! Connects the ring: dials the next member and accepts the previous one.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    connection::RingConnection,
    error::{Peer, RingError},
    hello::{Hello, Kind, LENGTH},
};
use crate::wire::ring::RingPlan;

/// Between two checks whether dialling has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How long one address may take before the next is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection without a hello is closed after this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections whose hello is awaited at once; further ones are closed.
const MAX_PENDING_HELLOS: usize = 128;

/// For the acceptor's threads: they hold one hello.
const STACK: usize = 128 << 10;

/// A listener that accepts connections with the right token and rejects others: probes of a cancelled round, whose
/// connections waited in the listener's queue, retry with the token of the next round.
#[derive(Debug)]
pub(super) struct Acceptor {
    accepted: mpsc::Receiver<(Hello, TcpStream)>,
}

impl Acceptor {
    /// Starts to accept, until the process ends.
    pub(super) fn open(listener: TcpListener, token: u64) -> io::Result<Self> {
        let (sender, accepted) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        thread::Builder::new().name("acceptor".into()).stack_size(STACK).spawn(move || {
            loop {
                let Ok((stream, _)) = listener.accept() else {
                    // Out of descriptors, or the connection is gone again.
                    thread::sleep(RETRY_INTERVAL);
                    continue;
                };
                if pending.fetch_add(1, Relaxed) >= MAX_PENDING_HELLOS {
                    pending.fetch_sub(1, Relaxed);
                    continue;
                }
                let (sender, done) = (sender.clone(), Arc::clone(&pending));
                let handshake = move || {
                    if let Some(accepted) = read_hello(stream, token) {
                        // The receiver may be gone.
                        let _late = sender.send(accepted);
                    }
                    done.fetch_sub(1, Relaxed);
                };
                if thread::Builder::new().name("hello".into()).stack_size(STACK).spawn(handshake).is_err() {
                    pending.fetch_sub(1, Relaxed);
                }
            }
        })?;
        Ok(Self { accepted })
    }

    /// Returns the next connection with the right token, waiting up to `within` if given.
    pub(super) fn next(
        &self,
        within: Option<Duration>,
    ) -> Result<(Hello, TcpStream), mpsc::RecvTimeoutError> {
        match within {
            Some(within) => self.accepted.recv_timeout(within),
            None => self.accepted.recv().map_err(mpsc::RecvTimeoutError::from),
        }
    }
}

pub(crate) fn read_hello(mut stream: TcpStream, token: u64) -> Option<(Hello, TcpStream)> {
    stream.set_read_timeout(Some(HELLO_TIMEOUT)).ok()?;
    let mut bytes = [0; LENGTH];
    stream.read_exact(&mut bytes).ok()?;
    let hello = Hello::decode(&bytes)?;
    if hello.token != token || !matches!(hello.kind, Kind::Lead | Kind::Follow) {
        let _gone = stream.write_all(&hello.answer(Kind::Rejected).encode());
        return None;
    }
    stream.set_read_timeout(None).ok()?;
    stream.set_nodelay(true).ok()?;
    Some((hello, stream))
}

/// Accepts a connection whose hello was read.
pub(super) fn accept(hello: &Hello, stream: &TcpStream) -> io::Result<()> {
    let mut stream = stream;
    stream.write_all(&hello.answer(Kind::Accepted).encode())
}

/// Opens both links of one member: to the next one and from the previous one.
pub(super) fn connect_peers(plan: &RingPlan, acceptor: &Acceptor) -> Result<[RingConnection; 2], RingError> {
    let (next, previous) = (plan.next(), plan.previous());
    let peer = Peer { index: next, address: plan.address(next) };
    let hello = Hello {
        kind: Kind::Lead,
        token: plan.token,
        members: plan.members.len() as u64,
        from: plan.me as u64,
        to: next as u64,
    };
    let (done, dialled) = mpsc::channel();
    // Once the other end listens, its answer is awaited without limit: its probe may not have started yet.
    let (target, limits) = (peer.clone(), DialLimits { connect: plan.connect_timeout, answer: None });
    let dialling = move || done.send(dial(&target, &hello, limits));
    thread::Builder::new().name("dial".into()).spawn(dialling).map_err(RingError::Thread)?;
    let (mut ahead, mut behind) = (None, None);
    loop {
        if ahead.is_none() {
            match dialled.try_recv() {
                Ok(stream) => ahead = Some(stream?),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return Err(RingError::ThreadEnded),
            }
        }
        if ahead.is_some() && behind.is_some() {
            break;
        }
        match acceptor.accepted.recv_timeout(CHECK_INTERVAL) {
            Ok((hello, stream)) if hello.from == previous as u64 && hello.to == plan.me as u64 => {
                // A member that connects twice has lost its first connection.
                if accept(&hello, &stream).is_ok() {
                    behind = Some(stream);
                }
            }
            Ok((hello, mut stream)) => {
                let _gone = stream.write_all(&hello.answer(Kind::Rejected).encode());
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(RingError::ThreadEnded),
        }
    }
    let (Some(ahead), Some(behind)) = (ahead, behind) else { return Err(RingError::ThreadEnded) };
    let before = Peer { index: previous, address: plan.address(previous) };
    Ok([
        RingConnection::new(ahead, peer, true, plan.me as u64),
        RingConnection::new(behind, before, false, previous as u64),
    ])
}

/// How long dialling may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct DialLimits {
    /// How long an unreachable end is retried.
    pub(super) connect: Duration,
    /// How long a connected end may take to answer; `None`: no limit.
    pub(super) answer: Option<Duration>,
}

/// Why an attempt failed.
pub(crate) enum AttemptError {
    /// A retry may succeed.
    Retry(String),
    /// Another program answers.
    NotAProbe(String),
}

/// Connects and sends a hello, with retries until the peer accepts it or the timeout is over.
pub(super) fn dial(peer: &Peer, hello: &Hello, limits: DialLimits) -> Result<TcpStream, RingError> {
    let deadline = Instant::now() + limits.connect;
    loop {
        let reason = match attempt(&peer.address, hello, deadline, limits.answer) {
            Ok(stream) => return Ok(stream),
            // Final; but within a job it may be a probe of another version that is about to be replaced.
            Err(AttemptError::NotAProbe(reason)) if limits.answer.is_some() => {
                return Err(RingError::NotAProbe { peer: peer.clone(), reason });
            }
            Err(AttemptError::NotAProbe(_)) => "no probe of this version answers there".to_owned(),
            Err(AttemptError::Retry(reason)) => reason,
        };
        if Instant::now() + RETRY_INTERVAL >= deadline {
            return Err(RingError::CannotConnect { peer: peer.clone(), reason });
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

fn attempt(
    address: &str,
    hello: &Hello,
    deadline: Instant,
    answer: Option<Duration>,
) -> Result<TcpStream, AttemptError> {
    let addresses = address.to_socket_addrs();
    let addresses =
        addresses.map_err(|error| AttemptError::Retry(format!("cannot resolve the address: {error}")))?;
    let mut last = AttemptError::Retry("the host name does not resolve to any address".to_owned());
    for address in addresses {
        let connected = connect(address, deadline).map_err(AttemptError::Retry);
        match connected.and_then(|stream| send_hello(stream, hello, answer)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect(address: SocketAddr, deadline: Instant) -> Result<TcpStream, String> {
    let timeout = deadline.saturating_duration_since(Instant::now()).clamp(RETRY_INTERVAL, ATTEMPT_TIMEOUT);
    TcpStream::connect_timeout(&address, timeout).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        // Linux's error for a blackhole route.
        io::ErrorKind::InvalidInput => "no route to host: there is a blackhole route".to_owned(),
        _ => error.to_string(),
    })
}

pub(crate) fn send_hello(
    mut stream: TcpStream,
    hello: &Hello,
    answer: Option<Duration>,
) -> Result<TcpStream, AttemptError> {
    let closed = |error: io::Error| AttemptError::Retry(format!("it closed the connection ({error})"));
    stream.set_nodelay(true).map_err(closed)?;
    stream.write_all(&hello.encode()).map_err(closed)?;
    let limit = answer.map(|answer| (Instant::now() + answer, answer));
    let mut bytes = [0; LENGTH];
    let mut received = 0;
    while received < LENGTH {
        if let Some((deadline, answer)) = limit {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let reason = format!(
                    "the program there did not answer within {} s; it may be busy with another check",
                    answer.as_secs()
                );
                return Err(AttemptError::NotAProbe(reason));
            }
            stream.set_read_timeout(Some(left)).map_err(closed)?;
        }
        match stream.read(&mut bytes[received..]) {
            Ok(0) => return Err(closed(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => received += length,
            // The timeout, which is checked above.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(closed(error)),
        }
        if !Hello::may_begin_with(&bytes[..received]) {
            return Err(AttemptError::NotAProbe("the program there speaks another protocol".to_owned()));
        }
    }
    if limit.is_some() {
        stream.set_read_timeout(None).map_err(closed)?;
    }
    match Hello::decode(&bytes) {
        Some(answer) if answer == hello.answer(Kind::Accepted) => Ok(stream),
        Some(answer) if answer.kind == Kind::Rejected => {
            Err(AttemptError::Retry("it runs another test".to_owned()))
        }
        _ => Err(AttemptError::NotAProbe(
            "another version does; install the same release on both hosts".to_owned(),
        )),
    }
}
