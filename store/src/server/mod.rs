//! The shell: one thread that moves bytes between sockets, the decoder and the table.
//!
//! One thread is enough, and faster than more: a request costs less than the hop to another thread. It makes no name
//! lookups (torch's own server looks up the name of each peer on its only thread) and does nothing while no client
//! sends.

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

/// How long [`StoreServer::begin_generation`] waits at most: the thread only has to free memory.
const GENERATION_DEADLINE: Duration = Duration::from_secs(10);

/// Enough for the event loop; nothing in it recurses.
const STACK_BYTES: usize = 256 << 10;

/// A running store. Dropping it stops its thread and closes its listeners and connections.
#[derive(Debug)]
pub struct StoreServer {
    /// `None` only while dropping.
    commands: Option<mpsc::UnboundedSender<Command>>,
    arrivals: Arrivals,
    /// The result of the start, until it is read.
    outcome: Mutex<Option<std_mpsc::Receiver<io::Result<()>>>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Starts the server thread on listening sockets. There may be none: then connections come by
    /// [`StoreServer::adopt`] only.
    ///
    /// # Errors
    /// No thread, no event queue, or an invalid listener.
    pub fn start(listeners: Vec<TcpListener>, limits: Limits) -> io::Result<Self> {
        Self::start_for(None, listeners, limits)
    }

    /// As [`StoreServer::start`], for these addresses only; `None`: for all.
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

    /// As [`StoreServer::start`], without waiting for the thread: connections queue up until it serves.
    /// [`StoreServer::ready`] returns the result.
    ///
    /// # Errors
    /// No thread.
    pub fn launch(listeners: Vec<TcpListener>, limits: Limits) -> io::Result<Self> {
        Self::launch_for(None, listeners, limits)
    }

    /// As [`StoreServer::launch`], for these addresses only; `None`: for all.
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

    /// Waits until the thread serves. Later calls return at once.
    ///
    /// # Errors
    /// No event queue, or an invalid listener.
    pub fn ready(&self) -> io::Result<()> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        match outcome.map(|outcome| outcome.recv()) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(std_mpsc::RecvError)) => {
                Err(io::Error::other("the store's thread exited during startup"))
            }
        }
    }

    /// Serves a connection that was accepted elsewhere, for a port that gRPC and the store share: the first byte of a
    /// store's client is 0x00, and must only have been peeked at.
    pub fn adopt(&self, stream: TcpStream) {
        self.order(Command::Adopt(stream));
    }

    /// Begins a fresh key space: the connections of the old one are closed, its keys dropped. Returns when that is
    /// done. Connections that are not accepted yet are closed too: they belong to the old generation.
    pub fn begin_generation(&self) {
        let (done, wait) = std_mpsc::sync_channel(1);
        self.order(Command::BeginGeneration(Box::new(move || {
            let _ = done.try_send(());
        })));
        // A thread that does not answer in this time has died, and the old key space with it.
        let _ = wait.recv_timeout(GENERATION_DEADLINE);
    }

    /// As [`StoreServer::begin_generation`] without blocking: it happens even if the returned future, which is ready
    /// when it is done, is dropped.
    pub fn begin_generation_async(&self) -> impl Future<Output = ()> + Send + 'static {
        let (done, wait) = oneshot::channel();
        self.order(Command::BeginGeneration(Box::new(move || {
            let _ = done.send(());
        })));
        async move {
            let _ = wait.await;
        }
    }

    /// Peers that were validated in this generation, in order of arrival, including those that have disconnected. The
    /// first 65536.
    #[must_use]
    pub fn arrivals(&self) -> Vec<SocketAddr> {
        self.arrivals.borrow().clone()
    }

    /// The same as a watch channel. A new generation empties the list.
    #[must_use]
    pub fn watch_arrivals(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.arrivals.subscribe()
    }

    fn order(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Only a dead thread does not receive; its clients see closed connections.
            let _ = commands.send(command);
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The thread ends when its channel is closed.
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
