//! The state of the server's thread: the table, and the connections of one generation.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{net::TcpStream, sync::watch};
use tracing::{debug, warn};

use super::connection::{Closed, Connection, Ended, Input};
use crate::{
    limits::Limits,
    table::{ClientId, KEYS_PER_STEP, Refused, Replies, Table},
};

/// The size of one read. Most requests are far shorter, and then only the first page is ever touched.
const READ_BYTES: usize = 64 << 10;

/// Full buffers of one client before the others are served.
const READS_PER_TURN: usize = 4;

/// Keys handled for one client before the others are served; one step more is possible.
const WORK_PER_TURN: usize = KEYS_PER_STEP;

/// How often a generation warns that its table is full.
const FULL_WARNINGS: usize = 16;

/// Arrivals that are remembered.
const MAX_ARRIVALS: usize = 64 << 10;

/// Peers that were validated in this generation, in order of arrival.
pub(super) type Arrivals = Arc<watch::Sender<Vec<SocketAddr>>>;

/// The state of the server's thread: the table and the connections of one generation.
///
/// Each connection has a task, but the task only calls [`Hub::serve_client`]; there is one owner, so there are no
/// locks, and a reply to another client is written to its socket at once.
#[derive(Debug)]
pub(super) struct Hub {
    limits: Limits,
    table: Table,
    connections: HashMap<ClientId, Connection>,
    next_client: u64,
    in_flight_bytes: usize,
    /// Connections with more work than one call of `serve_client` takes. Only the first continues, and between two of
    /// its calls all others that are ready are served: however many there are, a short request waits for one such call.
    queue: VecDeque<ClientId>,
    full_warnings: usize,
    arrivals: Arrivals,
    buffer: Box<[u8]>,
    /// Empty between calls; kept for its memory.
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
            queue: VecDeque::new(),
            full_warnings: 0,
            arrivals,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            replies: Vec::new(),
            to_others: Vec::new(),
        }
    }

    /// Adds a connection, or closes it when too many are open: `None`.
    pub(super) fn add(&mut self, stream: TcpStream, peer: SocketAddr) -> Option<ClientId> {
        if self.connections.len() >= self.limits.max_connections {
            let max = self.limits.max_connections;
            warn!(%peer, "store connection rejected: {max} connections are open, the maximum");
            return None;
        }
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%peer, %error, "store connection lost");
            return None;
        }
        // A dual-stack socket shows IPv4 peers as ::ffff:10.0.0.1.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        self.next_client += 1;
        let id = ClientId(self.next_client);
        self.connections.insert(id, Connection::new(stream, peer, self.limits));
        Some(id)
    }

    /// Drops all keys and closes all connections. Ids are never reused, so tasks of old connections find nothing to
    /// drive and cannot reach the new table.
    pub(super) fn begin_generation(&mut self) {
        for (_, connection) in std::mem::take(&mut self.connections) {
            connection.waker().wake_by_ref();
        }
        self.table = Table::new(&self.limits);
        self.in_flight_bytes = 0;
        self.queue.clear();
        self.full_warnings = 0;
        self.arrivals.send_modify(Vec::clear);
    }

    /// Does everything for one client that can be done now. Pending: it will be woken.
    pub(super) fn serve_client(&mut self, id: ClientId, context: &mut Context<'_>) -> Poll<ServeResult> {
        let Some(connection) = self.connections.get_mut(&id) else { return Poll::Ready(ServeResult::Gone) };
        connection.set_waker(context.waker());
        match self.advance(id) {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(ServeResult::More),
            Err(why) if why.is_in_order() => {
                self.begin_end(id, &why);
                Poll::Ready(ServeResult::Ends)
            }
            Err(why) => {
                self.close(id, &why);
                Poll::Ready(ServeResult::Gone)
            }
        }
    }

    /// After [`ServeResult::More`], when the others have been served: the next one in the queue may continue.
    pub(super) fn next_in_queue(&mut self, id: ClientId) {
        if self.queue.front() != Some(&id) {
            return;
        }
        self.queue.rotate_left(1);
        self.wake_first();
    }

    /// Continues the end of a refused client. Ready: done.
    pub(super) fn end(&mut self, id: ClientId, context: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Poll::Ready(()) };
        connection.set_waker(context.waker());
        for _ in 0..READS_PER_TURN {
            let ended = connection.end(&mut self.buffer, self.limits.max_request_bytes);
            connection.recount(&mut self.in_flight_bytes);
            match ended {
                Ok(Ended::NotYet) => return Poll::Pending,
                Ok(Ended::StillSending) => {}
                Ok(Ended::Done) | Err(_) => return Poll::Ready(()),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// The client's end is done, or took too long.
    pub(super) fn forget(&mut self, id: ClientId) {
        self.close(id, &Closed::ByClient);
    }

    /// Whether it may continue; else it will be woken when it may.
    fn is_first(&mut self, id: ClientId) -> bool {
        if let Some(connection) = self.connections.get_mut(&id)
            && !connection.is_queued
        {
            connection.is_queued = true;
            self.queue.push_back(id);
        }
        self.queue.front() == Some(&id)
    }

    fn leave_queue(&mut self, id: ClientId) {
        match self.connections.get_mut(&id) {
            Some(connection) if connection.is_queued => connection.is_queued = false,
            _ => return,
        }
        let was_first = self.queue.front() == Some(&id);
        self.queue.retain(|queued| *queued != id);
        if was_first {
            self.wake_first();
        }
    }

    fn wake_first(&self) {
        if let Some(next) = self.queue.front().and_then(|id| self.connections.get(id)) {
            next.waker().wake_by_ref();
        }
    }

    /// Returns whether there is more to do at once; else it will be woken.
    fn advance(&mut self, id: ClientId) -> Result<bool, Closed> {
        let mut budget = WORK_PER_TURN;
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(&id) else {
                return Err(Closed::LargestOfTooMuch);
            };
            if connection.has_pending() {
                connection.send()?;
                connection.recount(&mut self.in_flight_bytes);
            }
            if connection.is_paused() {
                self.leave_queue(id);
                return Ok(false);
            }
            if connection.input_ended() {
                return if connection.has_pending() { Ok(false) } else { Err(Closed::ByClient) };
            }
            let received = if connection.has_work() {
                if !self.is_first(id) {
                    return Ok(false);
                }
                0
            } else {
                match connection.receive(&mut self.buffer)? {
                    Input::Bytes(received) => received,
                    Input::None => return Ok(false),
                    Input::Ended => {
                        connection.end_input();
                        self.table.disconnect(id);
                        continue;
                    }
                }
            };
            self.serve(id, received, &mut budget)?;
            let Some(connection) = self.connections.get(&id) else {
                return Err(Closed::LargestOfTooMuch);
            };
            if !connection.has_work() {
                self.leave_queue(id);
            }
            if budget == 0 {
                break;
            }
        }
        // The others are served first.
        Ok(true)
    }

    fn serve(&mut self, id: ClientId, received: usize, budget: &mut usize) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let was_validated = connection.is_validated();
        let served = connection.serve(
            id,
            &self.buffer[..received],
            budget,
            &mut self.table,
            &mut self.replies,
            &mut self.to_others,
        );
        // Before the client can see a reply, so that it is among the arrivals by then.
        if connection.is_validated() && !was_validated {
            on_arrival(&self.arrivals, connection.peer());
        }
        // The reply to the last good request is sent even if the next one ends the connection.
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

    /// When memory runs out, the largest connection is closed, not the one that happened to ask last.
    fn close_largest(&mut self) {
        let largest = self.connections.iter().max_by_key(|(_, connection)| connection.in_flight_bytes());
        match largest.map(|(id, _)| *id) {
            Some(id) => self.close(id, &Closed::LargestOfTooMuch),
            None => self.in_flight_bytes = 0,
        }
    }

    /// Rejects what a client sent, and ends its connection.
    fn begin_end(&mut self, id: ClientId, why: &Closed) {
        self.leave_queue(id);
        self.table.disconnect(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.begin_end(self.limits);
        connection.recount(&mut self.in_flight_bytes);
        let peer = connection.peer();
        match why {
            Closed::Refused(full @ (Refused::TableFull { .. } | Refused::TooManyKeys { .. }))
                if self.full_warnings < FULL_WARNINGS =>
            {
                self.full_warnings += 1;
                warn!(
                    "the workers' store rejected a write from {peer} and closed the connection: {full}; delete keys \
                     that are no longer needed (delete_key), or keep large data elsewhere"
                );
            }
            _ => debug!(%peer, reason = why as &dyn std::error::Error, "store connection rejected"),
        }
    }

    fn close(&mut self, id: ClientId, why: &Closed) {
        self.leave_queue(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        self.table.disconnect(id);
        self.in_flight_bytes -= connection.counted_bytes();
        // Its task may be waiting for the socket that is closed here.
        connection.waker().wake_by_ref();
        let (peer, why) = (connection.peer(), why as &dyn std::error::Error);
        debug!(%peer, reason = why, "store connection closed");
    }
}

/// The result of [`Hub::serve_client`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServeResult {
    /// The connection is gone, and so is the task.
    Gone,
    /// There is more to do, after the others.
    More,
    /// The client was refused; [`Hub::end`] is next.
    Ends,
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
