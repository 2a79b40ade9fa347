use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{net::TcpStream, sync::watch};
use tracing::{debug, warn};

use super::connection::{Closed, Connection, Input};
use crate::{
    limits::Limits,
    table::{ClientId, Replies, Table},
};

/// Received at a time. Most requests are far shorter, and then only the first page of it is ever touched.
const READ_BYTES: usize = 64 << 10;

/// How many full buffers one client may send before the others get their turn.
const READS_A_TURN: usize = 4;

/// Arrivals that are remembered.
const MAX_ARRIVALS: usize = 64 << 10;

/// Peers whose connections were validated in this generation, in order of arrival.
pub(super) type Arrivals = Arc<watch::Sender<Vec<SocketAddr>>>;

/// All that the server's thread owns: the table and the connections of one generation.
///
/// Each connection has a task, but the task only calls [`Hub::turn`]; there is one owner, so there are no locks
/// and a reply to another client is written to its socket at once, by whoever caused it.
#[derive(Debug)]
pub(super) struct Hub {
    limits: Limits,
    table: Table,
    connections: HashMap<ClientId, Connection>,
    next_client: u64,
    in_flight_bytes: usize,
    arrivals: Arrivals,
    buffer: Box<[u8]>,
    /// Empty between turns; kept for its memory.
    replies: Replies,
    to_others: Replies,
}

impl Hub {
    pub(super) fn new(limits: Limits, arrivals: Arrivals) -> Self {
        Hub {
            limits,
            table: Table::new(&limits),
            connections: HashMap::new(),
            next_client: 0,
            in_flight_bytes: 0,
            arrivals,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            replies: Vec::new(),
            to_others: Vec::new(),
        }
    }

    /// Takes a connection in. `None`: there are too many, and it is closed.
    pub(super) fn add(&mut self, stream: TcpStream, peer: SocketAddr) -> Option<ClientId> {
        if self.connections.len() >= self.limits.max_connections {
            warn!(%peer, max = self.limits.max_connections, "store connection refused: too many");
            return None;
        }
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%peer, %error, "store connection lost");
            return None;
        }
        // A socket for both families shows IPv4 peers as ::ffff:10.0.0.1.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        self.next_client += 1;
        let id = ClientId(self.next_client);
        self.connections.insert(id, Connection::new(stream, peer, self.limits));
        Some(id)
    }

    /// Forgets all keys and closes all connections. Ids are never reused, so the tasks of the old connections
    /// find nothing to drive, and nothing of theirs can reach the new table.
    pub(super) fn begin_generation(&mut self) {
        for (_, connection) in std::mem::take(&mut self.connections) {
            connection.waker().wake_by_ref();
        }
        self.table = Table::new(&self.limits);
        self.in_flight_bytes = 0;
        self.arrivals.send_modify(Vec::clear);
    }

    /// Does for one client all that can be done now. Ready: its connection is gone, and with it the task.
    pub(super) fn turn(&mut self, id: ClientId, context: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Poll::Ready(()) };
        connection.set_waker(context.waker());
        match self.advance(id) {
            Ok(()) => Poll::Pending,
            Err(why) => {
                self.close(id, &why);
                Poll::Ready(())
            }
        }
    }

    /// Ok: woken again when there is more to do.
    fn advance(&mut self, id: ClientId) -> Result<(), Closed> {
        for _ in 0..READS_A_TURN {
            let Some(connection) = self.connections.get_mut(&id) else {
                return Err(Closed::LargestOfTooMuch);
            };
            if connection.has_pending() {
                connection.send()?;
                connection.recount(&mut self.in_flight_bytes);
            }
            if connection.is_paused() {
                return Ok(());
            }
            if connection.input_ended() {
                return if connection.has_pending() { Ok(()) } else { Err(Closed::ByClient) };
            }
            let received = if connection.has_unserved() {
                0
            } else {
                match connection.receive(&mut self.buffer)? {
                    Input::Bytes(received) => received,
                    Input::None => return Ok(()),
                    Input::Ended => {
                        connection.end_input();
                        self.table.disconnect(id);
                        continue;
                    }
                }
            };
            self.serve(id, received)?;
        }
        // The others first; then on.
        if let Some(connection) = self.connections.get(&id) {
            connection.waker().wake_by_ref();
        }
        Ok(())
    }

    fn serve(&mut self, id: ClientId, received: usize) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let was_validated = connection.is_validated();
        let served = connection.serve(
            id,
            &self.buffer[..received],
            &mut self.table,
            &mut self.replies,
            &mut self.to_others,
        );
        // Known before the client can see an answer, so that whoever saw one finds it among the arrivals.
        if connection.is_validated() && !was_validated {
            on_arrival(&self.arrivals, connection.peer());
        }
        // The answer to the last good request goes out even when the next one ends the connection.
        let sent = connection.send();
        connection.recount(&mut self.in_flight_bytes);
        if !self.to_others.is_empty() {
            self.answer_others();
        }
        served?;
        sent?;
        while self.in_flight_bytes > self.limits.max_in_flight_bytes {
            self.close_largest();
        }
        Ok(())
    }

    fn answer_others(&mut self) {
        let mut to_others = std::mem::take(&mut self.to_others);
        for (id, reply) in to_others.drain(..) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let outcome = connection.enqueue(&reply).and_then(|()| Ok(connection.send()?));
            connection.recount(&mut self.in_flight_bytes);
            if let Err(why) = outcome {
                self.close(id, &why);
            }
        }
        self.to_others = to_others;
    }

    /// When memory runs out, whoever holds the most of it goes, not whoever happened to ask last.
    fn close_largest(&mut self) {
        let largest = self.connections.iter().max_by_key(|(_, connection)| connection.in_flight_bytes());
        match largest.map(|(id, _)| *id) {
            Some(id) => self.close(id, &Closed::LargestOfTooMuch),
            None => self.in_flight_bytes = 0,
        }
    }

    fn close(&mut self, id: ClientId, why: &Closed) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.table.disconnect(id);
        self.in_flight_bytes -= connection.counted_bytes();
        // Its task may be waiting for the socket that is closed here.
        connection.waker().wake_by_ref();
        let (peer, why) = (connection.peer(), why as &dyn std::error::Error);
        debug!(%peer, reason = why, "store connection closed");
    }
}

fn on_arrival(arrivals: &Arrivals, peer: SocketAddr) {
    arrivals.send_if_modified(|arrivals| {
        let has_room = arrivals.len() < MAX_ARRIVALS;
        if has_room {
            arrivals.push(peer);
        }
        has_room
    });
}
