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
    table::{ClientId, Errand, Refused, Replies, Table},
};

/// A client that has this much unread is asked nothing more until it has read.
const PAUSE_AT: usize = 256 << 10;

/// One client: its socket and what is on the way in and out.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    decoder: Decoder,
    /// Received, but behind a request that takes its time, or whose reply the client is slow to read. The bytes
    /// before `served` are done with.
    unserved: Vec<u8>,
    served: usize,
    /// What is left of the request that takes its time.
    errand: Option<Errand>,
    errand_bytes: usize,
    outbox: Outbox,
    max_reply_bytes: usize,
    /// What the server's sum of in-flight bytes has of this connection.
    counted_bytes: usize,
    /// Wakes the task that drives this connection.
    waker: Waker,
    validated: bool,
    input_ended: bool,
    /// In the hub's queue of those that have more to do.
    pub(super) is_queued: bool,
    /// Refused: how much came since it was told that nothing more will be said. `None`: not told yet.
    ending: Option<usize>,
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Closed {
    #[error("the client closed it")]
    ByClient,
    #[error("the socket failed")]
    Socket(#[from] io::Error),
    #[error("the client's bytes are no request")]
    Decode(#[from] DecodeError),
    #[error("the request was refused")]
    Refused(#[from] Refused),
    #[error("the client would have {pending} unread bytes, more than {max}")]
    UnreadReplies { pending: usize, max: usize },
    #[error("all clients together hold too much, and this one the most")]
    LargestOfTooMuch,
}

/// What one look at the socket brought.
pub(super) enum Input {
    /// So many bytes, in the buffer given.
    Bytes(usize),
    /// Nothing for now; the task will be woken.
    None,
    Ended,
}

/// How far the end of a refused connection is.
pub(super) enum Ended {
    /// The task will be woken.
    NotYet,
    /// The client still sends.
    MoreComes,
    Done,
}

impl Closed {
    /// Whether the client did nothing to the server but ask for something: then it is told in order that nothing
    /// more comes. A reset would also destroy answers on their way.
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
            errand: None,
            errand_bytes: 0,
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

    /// Whoever is to be woken when the socket is ready, or when the connection is closed by another.
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

    /// Whether it can go on without anything new from the client.
    pub(super) fn has_work(&self) -> bool {
        !self.is_paused() && self.has_unserved()
    }

    /// Whether nothing new can be received yet.
    pub(super) fn has_unserved(&self) -> bool {
        self.errand.is_some() || !self.unserved.is_empty()
    }

    /// Memory that this client makes the server hold beside the table.
    pub(super) fn in_flight_bytes(&self) -> usize {
        let errand = self.errand.as_ref().map_or(0, |errand| self.errand_bytes + errand.gathered_bytes());
        self.decoder.held_bytes() + self.unserved.capacity() + self.outbox.owned_bytes() + errand
    }

    pub(super) fn counted_bytes(&self) -> usize {
        self.counted_bytes
    }

    /// Brings the sum over all connections up to date with this one.
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

    /// Serves what was left before, or else what is whole in `input`, for as long as `budget` lasts. Replies to
    /// this client go straight to its out-queue, those to others into `to_others`.
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
            let step = match self.errand.take() {
                Some(errand) => table.go_on(errand, replies),
                None => match self.decoder.decode(&mut rest)? {
                    Some(request) => {
                        self.validated |= request == Request::Validate;
                        self.errand_bytes = self.decoder.request_bytes();
                        table.begin(id, request, replies)
                    }
                    None => break,
                },
            };
            // Each of those that waited is written to.
            let mut work = replies.len();
            let mut outcome = Ok(());
            match step {
                Ok(step) => {
                    work = work.max(step.work);
                    self.errand = step.rest;
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

    /// From now on it is only sent what it is owed.
    pub(super) fn begin_end(&mut self, limits: Limits) {
        self.decoder = Decoder::new(limits);
        self.unserved = Vec::new();
        self.errand = None;
    }

    /// Sends what is owed, says that this was all, and lets what still comes pass: a socket that is closed with
    /// bytes unread resets the connection, and the reset would destroy what the client has not read yet. Ready
    /// when the client has closed its side, or goes on sending more than `most`.
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
                if passed > most { Ended::Done } else { Ended::MoreComes }
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
