//! The server's thread: accepts connections, and runs a task for each.

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::poll_fn,
    io,
    net::{self, SocketAddr},
    rc::Rc,
    sync::mpsc::SyncSender,
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, LocalOptions},
    sync::mpsc::UnboundedReceiver,
    task::{spawn_local, yield_now},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    allowed::Allowed,
    hub::{Arrivals, Hub, ServeResult},
    listen::BACKLOG,
};
use crate::{limits::Limits, table::ClientId};

/// The pause when no connection can be accepted, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a refused client may take to read pending replies and to close its side.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// A command of the handle to the thread.
pub(super) enum Command {
    Adopt(net::TcpStream),
    /// With a callback for when it is done.
    BeginGeneration(Box<dyn FnOnce() + Send>),
}

/// Runs the thread until the handle is dropped.
pub(super) fn run(
    listeners: Vec<net::TcpListener>,
    limits: Limits,
    allowed: Option<Allowed>,
    arrivals: Arrivals,
    orders: UnboundedReceiver<Command>,
    started: &SyncSender<io::Result<()>>,
) {
    let runtime =
        match Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default()) {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
    runtime.block_on(async {
        let listeners = listeners.into_iter().map(register).collect::<io::Result<Vec<_>>>();
        let listeners: Vec<Rc<TcpListener>> = match listeners {
            Ok(listeners) => listeners.into_iter().map(Rc::new).collect(),
            Err(error) => return drop(started.send(Err(error))),
        };
        let hub = Rc::new(RefCell::new(Hub::new(limits, arrivals)));
        for listener in &listeners {
            spawn_local(accept(listener.clone(), hub.clone(), allowed.clone()));
        }
        if started.send(Ok(())).is_ok() {
            obey(orders, &hub, &listeners, allowed.as_ref()).await;
        }
    });
}

async fn obey(
    mut orders: UnboundedReceiver<Command>,
    hub: &Rc<RefCell<Hub>>,
    listeners: &[Rc<TcpListener>],
    allowed: Option<&Allowed>,
) {
    let waiting = Rc::new(Cell::new(0));
    while let Some(order) = orders.recv().await {
        match order {
            Command::Adopt(stream) => match adopt(stream) {
                Ok((stream, peer)) => match allowed {
                    Some(allowed) => {
                        serve_when_allowed(hub, stream, peer, allowed.clone(), Rc::clone(&waiting))
                    }
                    None => serve(hub, stream, peer),
                },
                Err(error) => debug!(%error, "store connection lost before it was adopted"),
            },
            Command::BeginGeneration(done) => {
                hub.borrow_mut().begin_generation();
                listeners.iter().for_each(|listener| close_backlog(listener));
                done();
            }
        }
    }
}

/// A connection that was accepted elsewhere waits here until the allowed addresses are known.
fn serve_when_allowed(
    hub: &Rc<RefCell<Hub>>,
    stream: TcpStream,
    peer: SocketAddr,
    allowed: Allowed,
    waiting: Rc<Cell<i32>>,
) {
    if waiting.get() >= BACKLOG {
        return;
    }
    waiting.set(waiting.get() + 1);
    let hub = Rc::clone(hub);
    spawn_local(async move {
        allowed.is_known().await;
        waiting.set(waiting.get() - 1);
        if is_allowed(Some(&allowed), peer) {
            serve(&hub, stream, peer);
        }
    });
}

/// Whether a peer may connect, where only members may.
fn is_allowed(allowed: Option<&Allowed>, peer: SocketAddr) -> bool {
    let is_allowed = allowed.is_none_or(|allowed| allowed.has(peer.ip()));
    if !is_allowed {
        warn!(
            %peer,
            "store connection rejected: the peer is not a member of the round (DLROVER_STORE_ALLOW=members)"
        );
    }
    is_allowed
}

async fn accept(listener: Rc<TcpListener>, hub: Rc<RefCell<Hub>>, allowed: Option<Allowed>) {
    loop {
        if let Some(allowed) = &allowed {
            // New connections wait in the listen queue.
            allowed.is_known().await;
        }
        match listener.accept().await {
            Ok((stream, peer)) if is_allowed(allowed.as_ref(), peer) => serve(&hub, stream, peer),
            Ok(_) => {}
            // The client gave up while it was in the queue.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn!(%error, "cannot accept a connection to the workers' store; retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn serve(hub: &Rc<RefCell<Hub>>, stream: TcpStream, peer: SocketAddr) {
    let added = hub.borrow_mut().add(stream, peer);
    if let Some(id) = added {
        let hub = hub.clone();
        spawn_local(drive(hub, id));
    }
}

/// Drives one connection; the hub drops it before the task ends.
async fn drive(hub: Rc<RefCell<Hub>>, id: ClientId) {
    loop {
        match poll_fn(|context| hub.borrow_mut().serve_client(id, context)).await {
            ServeResult::Gone => return,
            ServeResult::More => {
                // All that is ready runs first, including sockets that have become so.
                yield_now().await;
                hub.borrow_mut().next_in_queue(id);
            }
            ServeResult::Ends => break,
        }
    }
    // Ended or timed out, it is dropped.
    let _ = timeout(END_DEADLINE, poll_fn(|context| hub.borrow_mut().end(id, context))).await;
    hub.borrow_mut().forget(id);
}

fn register(listener: net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn adopt(stream: net::TcpStream) -> io::Result<(TcpStream, SocketAddr)> {
    stream.set_nonblocking(true)?;
    let peer = stream.peer_addr()?;
    Ok((TcpStream::from_std(stream)?, peer))
}

/// Accepts and closes all connections up to now, at most a full backlog: later ones are new.
fn close_backlog(listener: &TcpListener) {
    let socket = SockRef::from(listener);
    for _ in 0..BACKLOG {
        match socket.accept() {
            Ok((connection, _)) => drop(connection),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // That client gave up; there may be more.
            Err(_) => {}
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Command::Adopt(_) => "Adopt",
            Command::BeginGeneration(_) => "BeginGeneration",
        })
    }
}
