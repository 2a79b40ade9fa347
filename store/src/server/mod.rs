//! The shell: one thread that moves bytes between sockets, the decoder and the table.
//!
//! One thread is enough, and faster than more: a request costs less than the hop to another thread. It does no
//! name look-ups (torch's own server asks for the name of each peer on its only thread, and stands still for as
//! long as the name server does), and nothing at all while no client speaks.

mod allowed;
mod connection;
mod hub;
mod listen;
mod outbox;
mod thread;

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Mutex, PoisonError, mpsc as std_mpsc},
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};

pub use self::{
    allowed::Allowed,
    listen::{bind_any, bind_at, bind_loopback},
};
use self::{hub::Arrivals, thread::Command};
use crate::limits::Limits;

/// Longest that a caller of [`StoreServer::begin_generation`] is kept: the thread has only memory to give back.
const GENERATION_DEADLINE: Duration = Duration::from_secs(10);

/// Enough for the event loop; nothing in it recurses.
const STACK_BYTES: usize = 256 << 10;

/// A running store. Dropping it stops its thread and closes its listeners and connections.
#[derive(Debug)]
pub struct StoreServer {
    /// `None` only while dropping.
    commands: Option<mpsc::UnboundedSender<Command>>,
    arrivals: Arrivals,
    /// How the start went, until somebody asks.
    outcome: Mutex<Option<std_mpsc::Receiver<io::Result<()>>>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Starts the server thread on listeners that are bound and listening. There may be none: connections then
    /// come by [`StoreServer::adopt`] alone.
    ///
    /// # Errors
    /// No thread, no event queue, or a listener that is none.
    pub fn start(listeners: Vec<TcpListener>, limits: Limits) -> io::Result<Self> {
        Self::start_for(None, listeners, limits)
    }

    /// The same for these addresses only; `None`: for all.
    ///
    /// # Errors
    /// As [`StoreServer::start`].
    pub fn start_for(
        allowed: Option<Allowed>,
        listeners: Vec<TcpListener>,
        limits: Limits,
    ) -> io::Result<Self> {
        let server = Self::launch_for(allowed, listeners, limits)?;
        server.ready()?;
        Ok(server)
    }

    /// The same without waiting for the thread: connections queue up until it listens. [`StoreServer::ready`]
    /// tells how it went.
    ///
    /// # Errors
    /// No thread.
    pub fn launch(listeners: Vec<TcpListener>, limits: Limits) -> io::Result<Self> {
        Self::launch_for(None, listeners, limits)
    }

    /// The same for these addresses only; `None`: for all.
    ///
    /// # Errors
    /// No thread.
    pub fn launch_for(
        allowed: Option<Allowed>,
        listeners: Vec<TcpListener>,
        limits: Limits,
    ) -> io::Result<Self> {
        let arrivals = Arrivals::default();
        let (commands, orders) = mpsc::unbounded_channel();
        let (started, outcome) = std_mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("store".into()).stack_size(STACK_BYTES).spawn({
            let arrivals = arrivals.clone();
            move || thread::run(listeners, limits, allowed, arrivals, orders, &started)
        })?;
        let outcome = Mutex::new(Some(outcome));
        Ok(StoreServer { commands: Some(commands), arrivals, outcome, thread: Some(thread) })
    }

    /// Waits until the thread serves. Told once; later calls have nothing to wait for.
    ///
    /// # Errors
    /// No event queue, or a listener that is none.
    pub fn ready(&self) -> io::Result<()> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        match outcome.map(|outcome| outcome.recv()) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(std_mpsc::RecvError)) => {
                Err(io::Error::other("the store's thread ended while it started"))
            }
        }
    }

    /// Serves a connection that someone else accepted, for a port that gRPC and the store share: the first
    /// byte of a store's client is 0x00, and must only have been peeked at.
    pub fn adopt(&self, stream: TcpStream) {
        self.order(Command::Adopt(stream));
    }

    /// A fresh key space: the connections of the old one are closed, its keys forgotten. Returns when that is
    /// done. What had connected but was not yet accepted is closed too: it was of the old generation.
    pub fn begin_generation(&self) {
        let (done, wait) = std_mpsc::sync_channel(1);
        self.order(Command::BeginGeneration(Box::new(move || {
            let _ = done.try_send(());
        })));
        // A thread that does not answer in this time has died; then there is no old key space either.
        let _ = wait.recv_timeout(GENERATION_DEADLINE);
    }

    /// The same without blocking: it happens whether or not the returned future is awaited, which is ready when
    /// it has.
    pub fn begin_generation_async(&self) -> impl Future<Output = ()> + Send + 'static {
        let (done, wait) = oneshot::channel();
        self.order(Command::BeginGeneration(Box::new(move || {
            let _ = done.send(());
        })));
        async move {
            let _ = wait.await;
        }
    }

    /// Peers whose connections were accepted and showed the magic number in this generation, in that order;
    /// those that have left since are among them. The first 65536.
    #[must_use]
    pub fn arrivals(&self) -> Vec<SocketAddr> {
        self.arrivals.borrow().clone()
    }

    /// The same, told as they come. A new generation empties the list.
    #[must_use]
    pub fn watch_arrivals(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.arrivals.subscribe()
    }

    fn order(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Only a thread that died does not listen; its clients see closed connections.
            let _ = commands.send(command);
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The thread ends when nobody can give it orders any more.
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
