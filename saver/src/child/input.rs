//! Input of the saver's loop.

use std::net::TcpStream;

use checkpoint::{
    message::{Level, LineError, Refusal, Request, ToSaver},
    slots::{Connection, Event, Process},
};
use tokio::net::UnixStream;

use super::{peer::Peer, threads::Lane, transfer::Ask};

#[derive(Debug)]
pub(super) enum Input {
    /// A connection of a process of this run.
    Accepted(UnixStream, Peer),
    /// A connection was refused, or none can be accepted: why.
    NotAccepted(String),
    /// A saver of another node, which has shown the ticket, wants a slot.
    Asked(TcpStream, Box<Ask>),
    Received(Connection, Box<Result<Request, Refusal>>),
    /// The task of the connection has ended.
    Disconnected(Connection),
    /// The pidfd is readable.
    Died(Process),
    Agent(Result<ToSaver, LineError>),
    /// Standard input ended, or the launcher is dead.
    AgentGone,
    /// Work on a thread has ended.
    Worked(Lane, Outcome),
}

/// What work on a thread has to say.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) event: Option<Event>,
    pub(super) logs: Vec<(Level, String)>,
}

impl From<Event> for Outcome {
    fn from(event: Event) -> Self {
        Self { event: Some(event), logs: Vec::new() }
    }
}
