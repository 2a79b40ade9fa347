//! The actions of a schedule and their times.

use std::collections::BTreeMap;

use checkpoint::{
    manifest::Manifest,
    message::{Dir, Reply},
    slots::{Connection, Event as SaverEvent, FetchOrder, Persist, SendId},
};
use rules::{
    LocalRank, Moment, Round, failure::ExitCause, fence::Answer, job::Event as JobEvent,
    worker_group::Event as NodeEvent,
};

use crate::{plan::Fault, savers::Content};

/// A launcher's life, counted over all slots.
pub(crate) type LifeId = usize;

/// A stream between a node and the master, counted over all nodes.
pub(crate) type ConnId = usize;

/// An action.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Fault(Fault),
    /// A launcher starts.
    Start {
        slot: usize,
    },
    /// A node tries to open its stream.
    Connect {
        life: LifeId,
    },
    ConnectFails {
        life: LifeId,
        reason: &'static str,
    },
    /// The master sees the stream.
    ConnectArrives {
        conn: ConnId,
    },
    /// The node sees it.
    Opened {
        conn: ConnId,
    },
    /// The master's message reaches the node.
    Push {
        conn: ConnId,
        event: Box<NodeEvent>,
    },
    /// The node sees that its stream is broken.
    StreamEnds {
        conn: ConnId,
        reason: &'static str,
    },
    /// The master sees it.
    LinkBroken {
        conn: ConnId,
        /// The launcher is gone, and its kernel has closed the stream.
        is_off: bool,
    },
    /// The node's message reaches the master.
    Message {
        conn: ConnId,
        message: Box<JobEvent>,
    },
    /// A node has read what its failed worker printed.
    DetailRead {
        life: LifeId,
        message: Box<JobEvent>,
    },
    /// The answer reaches the node.
    Acked {
        conn: ConnId,
        ends: bool,
    },
    Beat {
        conn: ConnId,
    },
    /// The heartbeat reaches the master.
    BeatArrives {
        conn: ConnId,
        sent: Moment,
    },
    /// The answer reaches the node.
    BeatAnswered {
        conn: ConnId,
        sent: Moment,
        is_known: bool,
    },
    /// The node has waited for an answer to its heartbeat for as long as it does.
    Unanswered {
        conn: ConnId,
        beats: u64,
    },
    /// A launcher is asked by another one whether it has the master.
    Question {
        life: LifeId,
        of: LifeId,
        asking: u64,
        round: Round,
    },
    /// The answer reaches the other one.
    Answer {
        life: LifeId,
        asking: u64,
        answer: Answer,
    },
    /// The questions time out.
    AskingOver {
        life: LifeId,
        asking: u64,
    },
    /// The guard of a launcher that stands still has waited for it for as long as it may.
    GuardFences {
        life: LifeId,
    },
    /// Something on the node's own machine.
    Local {
        life: LifeId,
        event: Box<NodeEvent>,
    },
    NodeTimer {
        life: LifeId,
        generation: u64,
    },
    WorkerDies {
        life: LifeId,
        spawn: u64,
        local_rank: LocalRank,
        cause: ExitCause,
    },
    TreeGone {
        life: LifeId,
        spawn: u64,
    },
    /// Something for the saver of a node.
    SaverHears {
        life: LifeId,
        saver: u64,
        event: Box<SaverEvent>,
    },
    SaverTimer {
        life: LifeId,
        saver: u64,
        generation: u64,
    },
    /// A write to disk ends, of what was in the slot when it began.
    Persisted {
        life: LifeId,
        saver: u64,
        persist: Box<Persist>,
        content: Option<Content>,
        fails: bool,
    },
    ManifestWritten {
        life: LifeId,
        saver: u64,
        dir: Dir,
        manifest: Box<Manifest>,
        sets_tracker: bool,
    },
    /// A saver asks that of another node for a slot.
    FetchAsks {
        life: LifeId,
        saver: u64,
        order: Box<FetchOrder>,
    },
    /// The last byte of a slot was sent.
    SlotSent {
        life: LifeId,
        saver: u64,
        send: SendId,
    },
    /// A worker goes on.
    TrainerTurn {
        life: LifeId,
        spawn: u64,
        local_rank: LocalRank,
    },
    TrainerHears {
        life: LifeId,
        saver: u64,
        connection: Connection,
        reply: Box<Reply>,
        content: Option<Content>,
    },
    /// The workers of a launcher that was killed are gone.
    OrphansGone {
        life: LifeId,
    },
    Thaw {
        life: LifeId,
    },
    /// What was being written is durable.
    Flushed {
        incarnation: u64,
    },
    MasterTimer {
        incarnation: u64,
        generation: u64,
    },
    MasterStarts,
    TopologyRead {
        incarnation: u64,
        is_readable: bool,
    },
}

/// Actions in the order of their times, and of their creation among equals.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    actions: BTreeMap<(Moment, u64), Action>,
    made: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: Moment, action: Action) {
        self.made += 1;
        self.actions.insert((at, self.made), action);
    }

    pub(crate) fn pop(&mut self) -> Option<(Moment, Action)> {
        self.actions.pop_first().map(|((at, _), action)| (at, action))
    }

    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.actions.first_key_value().map(|((at, _), _)| *at)
    }
}
