use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::outbox::Outbox;
use crate::{
    codec::{DecodeError, Decoder, Reply, Request},
    limits::Limits,
    table::{ClientId, Refused, Replies, Table},
};

/// A client that has this much unread is asked nothing more until it has read.
const PAUSE_AT: usize = 256 << 10;

/// One client: its socket and what is on the way in and out.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    decoder: Decoder,
    /// Received, but behind a request whose reply the client is slow to read.
    unserved: Vec<u8>,
    outbox: Outbox,
    max_reply_bytes: usize,
    /// What the server's sum of in-flight bytes has of this connection.
    counted_bytes: usize,
    /// Wakes the task that drives this connection.
    waker: Waker,
    validated: bool,
    input_ended: bool,
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

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, limits: Limits) -> Self {
        Connection {
            stream,
            peer,
            decoder: Decoder::new(limits),
            unserved: Vec::new(),
            outbox: Outbox::default(),
            max_reply_bytes: limits.max_reply_bytes,
            counted_bytes: 0,
            waker: Waker::noop().clone(),
            validated: false,
            input_ended: false,
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
        self.unserved = Vec::new();
    }

    pub(super) fn has_pending(&self) -> bool {
        self.outbox.pending() > 0
    }

    pub(super) fn is_paused(&self) -> bool {
        self.outbox.pending() > PAUSE_AT
    }

    pub(super) fn has_unserved(&self) -> bool {
        !self.unserved.is_empty()
    }

    /// Memory that this client makes the server hold beside the table.
    pub(super) fn in_flight_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.unserved.capacity() + self.outbox.owned_bytes()
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

    /// Serves every whole request in `input`, or in what was left before. Replies to this client go straight
    /// to its out-queue, those to others into `to_others`.
    pub(super) fn serve(
        &mut self,
        id: ClientId,
        input: &[u8],
        table: &mut Table,
        replies: &mut Replies,
        to_others: &mut Replies,
    ) -> Result<(), Closed> {
        let earlier = std::mem::take(&mut self.unserved);
        let mut rest = if earlier.is_empty() { input } else { &earlier[..] };
        while let Some(request) = self.decoder.decode(&mut rest)? {
            if request == Request::Validate {
                self.validated = true;
            }
            let mut outcome = table.handle(id, request, replies).map_err(Closed::from);
            for (client, reply) in replies.drain(..) {
                if client != id {
                    to_others.push((client, reply));
                } else if let Err(too_much) = self.enqueue(&reply) {
                    outcome = Err(too_much);
                }
            }
            outcome?;
            if self.is_paused() {
                self.unserved = rest.to_vec();
                break;
            }
        }
        Ok(())
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
