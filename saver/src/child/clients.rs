//! Connections and the processes that made them.

use std::{collections::BTreeMap, io, os::fd::OwnedFd};

use checkpoint::slots::{Connection as Id, Event, Process};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
};

use super::{
    connection::{Connection, Outgoing, REPLIES},
    input::Input,
    peer::{Peer, ProcessKey},
};

/// Connections of all processes at the same time.
const CONNECTIONS: usize = 1024;

/// Connections of one process at the same time. A client needs one for each checkpoint directory.
const PER_PROCESS: usize = 16;

/// Why a connection is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error(
        "process {pid} has {PER_PROCESS} connections to the saver, the maximum; close one, or use one checkpointer for \
         each directory"
    )]
    TooManyOfProcess { pid: i32 },
    #[error("the saver has {CONNECTIONS} connections, the maximum")]
    TooMany,
    #[error("cannot watch process {pid}: {source}")]
    Watch { pid: i32, source: io::Error },
}

#[derive(Debug)]
struct Client {
    process: Process,
    /// `None`: it is being closed, and no event of it counts any more.
    replies: Option<mpsc::Sender<Outgoing>>,
}

#[derive(Debug)]
struct Known {
    key: ProcessKey,
    is_dead: watch::Sender<bool>,
    open: usize,
}

/// All connections, and all processes that ever had one and live.
#[derive(Debug)]
pub(super) struct Clients {
    inputs: mpsc::Sender<Input>,
    clients: BTreeMap<Id, Client>,
    processes: BTreeMap<Process, Known>,
    numbers: BTreeMap<ProcessKey, Process>,
    next_connection: u64,
    next_process: u64,
}

impl Clients {
    pub(super) fn new(inputs: mpsc::Sender<Input>) -> Self {
        Self {
            inputs,
            clients: BTreeMap::new(),
            processes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_connection: 0,
            next_process: 0,
        }
    }

    /// Takes a connection, and watches its process. Must be called on the runtime.
    ///
    /// # Errors
    /// When there are too many, or the process cannot be watched. The connection can be told then.
    pub(super) fn add(&mut self, socket: UnixStream, peer: Peer) -> Result<Event, (UnixStream, ClientError)> {
        let pid = peer.key.pid;
        if self.clients.len() >= CONNECTIONS {
            return Err((socket, ClientError::TooMany));
        }
        let process = match self.numbers.get(&peer.key) {
            Some(process) => *process,
            None => match self.watch(peer) {
                Ok(process) => process,
                Err(source) => return Err((socket, ClientError::Watch { pid, source })),
            },
        };
        let Some(known) = self.processes.get_mut(&process).filter(|known| known.open < PER_PROCESS) else {
            return Err((socket, ClientError::TooManyOfProcess { pid }));
        };
        known.open += 1;
        self.next_connection += 1;
        let id = Id(self.next_connection);
        let (replies, outgoing) = mpsc::channel(REPLIES);
        self.clients.insert(id, Client { process, replies: Some(replies) });
        let connection = Connection {
            id,
            socket,
            is_dead: known.is_dead.subscribe(),
            replies: outgoing,
            inputs: self.inputs.clone(),
        };
        tokio::spawn(connection.serve());
        Ok(Event::Connected { connection: id, process })
    }

    fn watch(&mut self, peer: Peer) -> io::Result<Process> {
        let Peer { key, pidfd } = peer;
        let pidfd = readable(pidfd)?;
        self.next_process += 1;
        let process = Process(self.next_process);
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            // An error of the runtime would look like a death, and a living writer must never look dead.
            if pidfd.readable().await.is_ok() {
                let _loop_ended = inputs.send(Input::Died(process)).await;
            }
        });
        self.numbers.insert(key, process);
        let (is_dead, _) = watch::channel(false);
        self.processes.insert(process, Known { key, is_dead, open: 0 });
        Ok(process)
    }

    /// Whether events of the connection count: it was not closed from here.
    pub(super) fn is_open(&self, connection: Id) -> bool {
        self.clients.get(&connection).is_some_and(|client| client.replies.is_some())
    }

    /// Sends a line. A client without room for it is closed: it has sent a request, and not read the reply to one
    /// before. One that is gone gets nothing, and what it has sent before counts: its connection has passed all of it
    /// on.
    pub(super) fn send(&mut self, connection: Id, outgoing: Outgoing) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let sent = client.replies.as_ref().map(|replies| replies.try_send(outgoing));
        if let Some(Err(TrySendError::Full(_))) = sent {
            client.replies = None;
        }
    }

    /// Ends a connection after what was sent to it.
    pub(super) fn close(&mut self, connection: Id) {
        if let Some(client) = self.clients.get_mut(&connection) {
            client.replies = None;
        }
    }

    /// Ends all connections after what was sent to them.
    pub(super) fn close_all(&mut self) {
        self.clients.values_mut().for_each(|client| client.replies = None);
    }

    /// Whether no connection is left.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The task of a connection has ended.
    pub(super) fn ended(&mut self, connection: Id) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(client) = self.clients.remove(&connection) else { return events };
        if client.replies.is_some() {
            events.push(Event::Disconnected { connection });
        }
        if let Some(known) = self.processes.get_mut(&client.process) {
            known.open = known.open.saturating_sub(1);
            events.extend(self.buried(client.process));
        }
        events
    }

    /// The process is dead. What it has sent before is read to its end first.
    pub(super) fn died(&mut self, process: Process) -> Option<Event> {
        self.processes.get(&process)?.is_dead.send_replace(true);
        self.buried(process)
    }

    /// A dead process of which nothing is left to read.
    fn buried(&mut self, process: Process) -> Option<Event> {
        let known = self.processes.get(&process)?;
        if known.open > 0 || !*known.is_dead.borrow() {
            return None;
        }
        self.numbers.remove(&known.key);
        self.processes.remove(&process);
        Some(Event::ProcessDied { process })
    }
}

/// A pidfd that the runtime can wait for.
///
/// # Errors
/// When it cannot be registered.
pub(super) fn readable(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it owns its descriptor, which is neither replaced nor closed meanwhile.
    Ok(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_has_sent_counts_after_a_reply_that_it_did_not_take() {
        let (inputs, _loop) = mpsc::channel(1);
        let mut clients = Clients::new(inputs);
        let (replies, outgoing) = mpsc::channel(REPLIES);
        clients.clients.insert(Id(1), Client { process: Process(1), replies: Some(replies) });
        let reply = || Outgoing { line: String::new(), fds: Vec::new() };
        (0..REPLIES).for_each(|_| clients.send(Id(1), reply()));
        assert!(clients.is_open(Id(1)));
        drop(outgoing);
        clients.send(Id(1), reply());
        assert!(clients.is_open(Id(1)));
        assert_eq!(clients.ended(Id(1)), [Event::Disconnected { connection: Id(1) }]);
        // One that takes none of its replies is closed.
        let (replies, _outgoing) = mpsc::channel(REPLIES);
        clients.clients.insert(Id(2), Client { process: Process(1), replies: Some(replies) });
        (0..=REPLIES).for_each(|_| clients.send(Id(2), reply()));
        assert!(!clients.is_open(Id(2)));
    }
}
