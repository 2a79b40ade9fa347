//! One client: its socket, its decoder and its buffers.

use std::{
    io::{self, IoSlice},
    mem,
    net::{Shutdown, SocketAddr},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use socket2::SockRef;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::outbox::Outbox;
use crate::{
    codec::{DecodeError, Decoder, Reply, Request},
    limits::Limits,
    table::{ClientId, LongRequest, Refused, Replies, Table},
};

/// A client with this much unread is served no further until it has read.
const PAUSE_AT: usize = 256 << 10;

/// A client: its socket and its buffers.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    decoder: Decoder,
    /// Received, but behind a long request, or held back because the client reads slowly. The bytes before `served`
    /// are done.
    unserved: Vec<u8>,
    served: usize,
    /// The rest of a long request.
    long_request: Option<LongRequest>,
    long_request_bytes: usize,
    outbox: Outbox,
    max_reply_bytes: usize,
    /// This connection's part of the server's in-flight bytes.
    counted_bytes: usize,
    /// Wakes the task that drives this connection.
    waker: Waker,
    validated: bool,
    input_ended: bool,
    /// In the hub's queue of connections with more to do.
    pub(super) is_queued: bool,
    /// Refused: the bytes received since our end was shut down. `None`: not shut down yet.
    ending: Option<usize>,
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Closed {
    #[error("the client closed the connection")]
    ByClient,
    #[error("the socket failed")]
    Socket(#[from] io::Error),
    #[error("the client sent bytes that are not a request")]
    Decode(#[from] DecodeError),
    #[error("the request was rejected")]
    Refused(#[from] Refused),
    #[error("the client would have {pending} unread bytes, more than {max}")]
    UnreadReplies { pending: usize, max: usize },
    #[error("all clients together have too many unread bytes, and this one has the most")]
    LargestOfTooMuch,
}

/// The result of one read.
pub(super) enum Input {
    /// The number of bytes in the buffer.
    Bytes(usize),
    /// Nothing for now; the task will be woken.
    None,
    Ended,
}

/// The state of a refused connection's end.
pub(super) enum Ended {
    /// The task will be woken.
    NotYet,
    /// The client still sends.
    StillSending,
    Done,
}

impl Closed {
    /// Whether the connection is to be shut down in order: the client only requested too much. A reset would also
    /// destroy replies in flight.
    pub(super) fn is_in_order(&self) -> bool {
        match self {
            Closed::Refused(_) => true,
            Closed::Decode(DecodeError::NotValidated { .. } | DecodeError::WrongMagic { .. }) => false,
            Closed::Decode(_) => true,
            Closed::ByClient
            | Closed::Socket(_)
            | Closed::UnreadReplies { .. }
            | Closed::LargestOfTooMuch => false,
        }
    }
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, limits: Limits) -> Self {
        Connection {
            stream,
            peer,
            decoder: Decoder::new(limits),
            unserved: Vec::new(),
            served: 0,
            long_request: None,
            long_request_bytes: 0,
            outbox: Outbox::default(),
            max_reply_bytes: limits.max_reply_bytes,
            counted_bytes: 0,
            waker: Waker::noop().clone(),
            validated: false,
            input_ended: false,
            is_queued: false,
            ending: None,
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn is_validated(&self) -> bool {
        self.validated
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The task to wake when the socket is ready, or another task closes the connection.
    pub(super) fn set_waker(&mut self, waker: &Waker) {
        self.waker.clone_from(waker);
    }

    pub(super) fn input_ended(&self) -> bool {
        self.input_ended
    }

    pub(super) fn end_input(&mut self) {
        self.input_ended = true;
    }

    pub(super) fn has_pending(&self) -> bool {
        self.outbox.pending() > 0
    }

    pub(super) fn is_paused(&self) -> bool {
        self.outbox.pending() > PAUSE_AT
    }

    /// Whether it can continue without new bytes from the client.
    pub(super) fn has_work(&self) -> bool {
        !self.is_paused() && self.has_unserved()
    }

    /// Whether no new bytes can be received yet.
    pub(super) fn has_unserved(&self) -> bool {
        self.long_request.is_some() || !self.unserved.is_empty()
    }

    /// Memory of this client besides the table.
    pub(super) fn in_flight_bytes(&self) -> usize {
        let long_request = self
            .long_request
            .as_ref()
            .map_or(0, |long_request| self.long_request_bytes + long_request.gathered_bytes());
        self.decoder.held_bytes() + self.unserved.capacity() + self.outbox.owned_bytes() + long_request
    }

    pub(super) fn counted_bytes(&self) -> usize {
        self.counted_bytes
    }

    /// Updates the sum over all connections.
    pub(super) fn recount(&mut self, sum: &mut usize) {
        let now = self.in_flight_bytes();
        *sum = *sum - self.counted_bytes + now;
        self.counted_bytes = now;
    }

    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Input> {
        let mut context = Context::from_waker(&self.waker);
        let mut buffer = ReadBuf::new(buffer);
        match Pin::new(&mut self.stream).poll_read(&mut context, &mut buffer) {
            Poll::Pending => Ok(Input::None),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => Ok(Input::Ended),
            Poll::Ready(Ok(())) => Ok(Input::Bytes(buffer.filled().len())),
        }
    }

    /// Serves the rest of what was received before, or else the complete requests in `input`, for as long as `budget`
    /// lasts. Replies to this client go straight to its send queue, those to others into `to_others`.
    pub(super) fn serve(
        &mut self,
        id: ClientId,
        input: &[u8],
        budget: &mut usize,
        table: &mut Table,
        replies: &mut Replies,
        to_others: &mut Replies,
    ) -> Result<(), Closed> {
        let left = mem::take(&mut self.unserved);
        let mut rest = if left.is_empty() { input } else { &left[self.served..] };
        while *budget > 0 && !self.is_paused() {
            let step = match self.long_request.take() {
                Some(long_request) => table.resume(long_request, replies),
                None => match self.decoder.decode(&mut rest)? {
                    Some(request) => {
                        self.validated |= request == Request::Validate;
                        self.long_request_bytes = self.decoder.request_bytes();
                        table.begin(id, request, replies)
                    }
                    None => break,
                },
            };
            // Each reply is a write.
            let mut work = replies.len();
            let mut outcome = Ok(());
            match step {
                Ok(step) => {
                    work = work.max(step.work);
                    self.long_request = step.rest;
                }
                Err(refused) => outcome = Err(Closed::from(refused)),
            }
            *budget = budget.saturating_sub(work);
            for (client, reply) in replies.drain(..) {
                if client != id {
                    to_others.push((client, reply));
                } else if let Err(too_much) = self.enqueue(&reply) {
                    outcome = Err(too_much);
                }
            }
            outcome?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        if left.is_empty() {
            (self.unserved, self.served) = (rest.to_vec(), 0);
        } else {
            self.served = left.len() - rest.len();
            self.unserved = left;
        }
        Ok(())
    }

    /// From now on only pending replies are sent.
    pub(super) fn begin_end(&mut self, limits: Limits) {
        self.decoder = Decoder::new(limits);
        self.unserved = Vec::new();
        self.long_request = None;
    }

    /// Sends pending replies, shuts down the sending side, and discards what is received: closing a socket with
    /// unread bytes resets the connection, and the reset would destroy replies that the client has not read yet.
    /// Ready when the client has closed its side, or has sent more than `most`.
    pub(super) fn end(&mut self, buffer: &mut [u8], most: usize) -> io::Result<Ended> {
        if self.has_pending() {
            self.send()?;
            if self.has_pending() {
                return Ok(Ended::NotYet);
            }
        }
        if self.ending.is_none() {
            SockRef::from(&self.stream).shutdown(Shutdown::Write)?;
        }
        let mut passed = self.ending.unwrap_or(0);
        let outcome = match self.receive(buffer)? {
            Input::Bytes(received) => {
                passed += received;
                if passed > most { Ended::Done } else { Ended::StillSending }
            }
            Input::None => Ended::NotYet,
            Input::Ended => Ended::Done,
        };
        self.ending = Some(passed);
        Ok(outcome)
    }

    pub(super) fn enqueue(&mut self, reply: &Reply) -> Result<(), Closed> {
        let pending = self.outbox.pending().saturating_add(reply.encoded_len());
        if pending > self.max_reply_bytes {
            return Err(Closed::UnreadReplies { pending, max: self.max_reply_bytes });
        }
        reply.encode(&mut self.outbox);
        Ok(())
    }

    /// Sends as much as the socket takes. If that is not all, the task is woken when it takes more.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let mut context = Context::from_waker(&self.waker);
        let stream = &mut self.stream;
        self.outbox.send(|slices: &[IoSlice<'_>]| {
            let written = match slices {
                [one] => Pin::new(&mut *stream).poll_write(&mut context, one),
                many => Pin::new(&mut *stream).poll_write_vectored(&mut context, many),
            };
            match written {
                Poll::Pending => Ok(None),
                Poll::Ready(written) => written.map(Some),
            }
        })
    }
}
