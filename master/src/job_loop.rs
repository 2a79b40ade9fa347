//! One task owns the job: it takes one word at a time, asks [`JobMaster`] what to do, and does it when the word is
//! durable. So nothing that anybody was told can be forgotten.
//!
//! ```text
//! command -> decide -> journal --.
//!               `-> deeds (FIFO) -+-> durable up to here: streams, answers
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    future,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use master_proto::pb;
use rules::{
    Moment, NodeId, Round,
    job::{Effect, Event},
    job_master::{Input, JobMaster, Turn},
    topology::Topology,
    verdict::JobVerdict,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep_until,
};
use tracing::debug;

use crate::{
    admission::Ended,
    journal::{JournalError, crash_point},
    lines::Log,
    memory::{Clock, Memory, Record},
    streams::{MOST_SUBSCRIBERS, Opened, QueuedPush, Streams},
    taint_publisher::{TaintConfig, TaintPublisher},
    topology,
};

/// Deeds that may wait for a slow disk before callers are held back.
const PENDING_TURNS: usize = 16_384;

/// Why a call has no part in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// What follows could not be told to its node, which has no stream.
    NotSubscribed,
    /// As many nodes attend as there may.
    Full,
}

/// Whose word was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heed {
    /// A node that has a part in the job, or waits for one.
    Member,
    /// One that has none.
    Stranger,
}

/// A caller that waits for its word to be durable.
type Answer = oneshot::Sender<Result<Heed, Rejected>>;

/// Whether the master listens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heard {
    /// It attends.
    pub(crate) is_known: bool,
    /// When its next beat is due.
    pub(crate) next: Option<Duration>,
}

/// What callers ask of the job's owner.
#[derive(Debug)]
pub(crate) enum Command {
    /// A node opened its stream. The answer says that pushes will reach it from now on.
    Subscribe { node: NodeId, session: u64, pushes: mpsc::Sender<QueuedPush>, subscribed: Answer },
    /// The stream of a node ended. It may have opened another one since. `ended`: how its connection has, if it has.
    Closed { node: NodeId, session: u64, ended: Option<Ended> },
    /// The connection of a stream that ended has ended, too. `None`: by this side.
    Ended { node: NodeId, session: u64, ended: Option<Ended> },
    /// Something happened. The answer says that the job has taken note, and will not forget.
    Happened { event: Box<Event>, noted: Answer },
    /// A node lives, and says so beside this stream of its.
    Beat { node: NodeId, session: u64, seat: Option<Round>, heard: oneshot::Sender<Heard> },
    /// Somebody wants to see the round.
    ShowWorld { shown: oneshot::Sender<pb::WorldTable> },
    /// Somebody wants to see the last report of a check.
    ShowTaintReport { shown: oneshot::Sender<Arc<str>> },
    /// The topology file was read, or could not be.
    TopologyRead(Result<Topology, String>),
}

/// A stream that opens or has ended. It waits like an effect: what was decided before goes to the old one.
#[derive(Debug)]
enum Change {
    Opened(Opened),
    Closed(NodeId, u64),
}

/// What is to be done once the journal is durable up to its log sequence number.
#[derive(Debug)]
struct PendingTurn {
    lsn: u64,
    change: Option<Change>,
    turn: Turn,
    answer: Option<(Answer, Heed)>,
}

/// The owner of one job.
#[derive(Debug)]
pub(crate) struct JobLoop {
    master: JobMaster,
    clock: Clock,
    record: Record,
    inbox: mpsc::Receiver<Command>,
    /// Whose stream is open, as far as decisions know. [`Streams`] follows when it is durable.
    subscribed: BTreeMap<NodeId, u64>,
    /// Whose last stream has ended, and whose connection may not have.
    ending: BTreeMap<NodeId, u64>,
    streams: Streams,
    pending_turns: VecDeque<PendingTurn>,
    /// The last log sequence number that was issued.
    lsn: u64,
    topology: topology::Reader,
    taints: TaintPublisher,
}

impl JobLoop {
    /// A job fed by `inbox`, of which `to` is the other end.
    pub(crate) fn new(
        Memory { master, first, clock, epoch, record }: Memory,
        topology_file: Option<PathBuf>,
        taints: TaintConfig,
        log: Log,
        inbox: mpsc::Receiver<Command>,
        to: mpsc::WeakSender<Command>,
    ) -> Self {
        let mut job = Self {
            master,
            clock,
            record,
            inbox,
            subscribed: BTreeMap::new(),
            ending: BTreeMap::new(),
            taints: TaintPublisher::open(taints, Arc::clone(&log)),
            streams: Streams::new(epoch, log),
            pending_turns: VecDeque::new(),
            lsn: 0,
            topology: topology::Reader::new(topology_file, to),
        };
        job.queue(clock.now(), first, None, None);
        job
    }

    /// Runs the job until every node has heard how it ended, or was waited for long enough.
    pub(crate) async fn run(&mut self) -> Result<JobVerdict, JournalError> {
        let mut durable = 0;
        loop {
            if let Some(verdict) = self.flush_durable(durable) {
                return Ok(verdict);
            }
            let due = self.master.deadline().and_then(|due| self.clock.instant(due));
            let deadline = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => future::pending().await,
                }
            };
            tokio::select! {
                progress = self.record.progress() => durable = progress?,
                () = deadline => self.decide(Input::Deadline, None, None),
                command = self.inbox.recv(), if self.pending_turns.len() < PENDING_TURNS => match command {
                    Some(command) => self.take(command),
                    // The server is gone; so is everyone who could ask. The caller drops this future.
                    None => future::pending().await,
                },
            }
        }
    }

    /// Ends all streams.
    pub(crate) fn end(self) -> (Record, TaintPublisher) {
        (self.record, self.taints)
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Subscribe { node, session, pushes, subscribed } => {
                let is_member = self.subscribed.contains_key(&node) || self.master.job().knows(&node);
                if self.subscribed.len() >= MOST_SUBSCRIBERS && !is_member {
                    let _gone = subscribed.send(Err(Rejected::Full));
                    return;
                }
                self.subscribed.insert(node.clone(), session);
                self.ending.remove(&node);
                let beat = self.master.beat_interval();
                let timeout = self.master.beat_timeout();
                let opened = Opened { node: node.clone(), session, pushes, beat, timeout };
                let event = Input::Event(Event::Subscribed { node });
                self.decide(event, Some(Change::Opened(opened)), Some(subscribed));
            }
            Command::Closed { node, session, ended } => {
                let change = Some(Change::Closed(node.clone(), session));
                // A node that attends again is not broken off.
                if self.subscribed.get(&node) == Some(&session) {
                    self.subscribed.remove(&node);
                    if ended.is_none() {
                        self.ending.insert(node.clone(), session);
                    }
                    self.decide(Input::Event(Event::LinkBroken { node: node.clone() }), change, None);
                    self.connection_ended(node, ended);
                } else {
                    self.queue(self.clock.now(), Turn::default(), change, None);
                }
            }
            Command::Ended { node, session, ended } => {
                if self.ending.get(&node) == Some(&session) {
                    self.ending.remove(&node);
                    self.connection_ended(node, ended);
                }
            }
            Command::Happened { event, noted } => {
                // Who wants a seat, or tells of itself, must be there to be told of it, and must be missed when it goes.
                let asks = match &*event {
                    Event::Joined(request) | Event::Resumed { request, .. } => Some(&request.node_id),
                    Event::InventoryReported { node, .. } => Some(node),
                    _ => None,
                };
                if asks.is_some_and(|node| !self.subscribed.contains_key(node)) {
                    let _gone = noted.send(Err(Rejected::NotSubscribed));
                    return;
                }
                self.decide(Input::Event(*event), None, Some(noted));
            }
            Command::Beat { node, session, seat, heard } => {
                // A word beside an older stream says nothing of the present one.
                let is_known = self.subscribed.get(&node) == Some(&session);
                // It changes no decision that anybody was told, so the answer does not wait for the disk.
                if is_known {
                    self.decide(Input::Beat { node, taken_round: seat }, None, None);
                }
                let _gone = heard.send(Heard { is_known, next: self.master.beat_interval() });
            }
            Command::ShowWorld { shown } => {
                let _gone = shown.send(self.master.job().world().into());
            }
            Command::ShowTaintReport { shown } => {
                let _gone = shown.send(self.taints.last());
            }
            Command::TopologyRead(topology) => {
                self.topology.done();
                self.decide(Input::Event(Event::TopologyRead(topology)), None, None);
            }
        }
    }

    fn decide(&mut self, input: Input, change: Option<Change>, answer: Option<Answer>) {
        let now = self.clock.now();
        debug!(%now, ?input, "input");
        let speaker = match &input {
            Input::Event(event) => event.speaker().cloned(),
            Input::Beat { .. } | Input::HungUp { .. } | Input::Reset { .. } | Input::Deadline => None,
        };
        let turn = self.master.handle(now, input);
        let is_member = speaker.is_some_and(|node| self.master.job().knows(&node));
        let heed = if is_member { Heed::Member } else { Heed::Stranger };
        self.queue(now, turn, change, answer.map(|answer| (answer, heed)));
    }

    fn connection_ended(&mut self, node: NodeId, ended: Option<Ended>) {
        match ended {
            Some(Ended::Closed) => self.decide(Input::HungUp { node }, None, None),
            Some(Ended::Reset) => self.decide(Input::Reset { node }, None, None),
            None => {}
        }
    }

    /// Writes down what the job was told, and notes what is to be done when that is durable.
    fn queue(&mut self, now: Moment, mut turn: Turn, change: Option<Change>, answer: Option<(Answer, Heed)>) {
        for effect in &turn.effects {
            if let Effect::HangUp { node } = effect
                && let Some(session) = self.subscribed.remove(node)
            {
                self.ending.insert(node.clone(), session);
            }
        }
        let events = std::mem::take(&mut turn.journal);
        if !events.is_empty() {
            self.lsn = self.record.write(now, events);
            self.record.compact(now, self.master.job());
        }
        let is_nothing = turn == Turn::default() && change.is_none() && answer.is_none();
        if !is_nothing {
            self.pending_turns.push_back(PendingTurn { lsn: self.lsn, change, turn, answer });
        }
    }

    fn flush_durable(&mut self, durable: u64) -> Option<JobVerdict> {
        while let Some(PendingTurn { change, turn, answer, .. }) =
            self.pending_turns.pop_front_if(|pending| pending.lsn <= durable)
        {
            match change {
                Some(Change::Opened(opened)) => self.streams.open(opened),
                Some(Change::Closed(node, session)) => self.streams.closed(&node, session),
                None => {}
            }
            crash_point("before-effects");
            for effect in turn.effects {
                debug!(?effect, "effect");
                if effect == Effect::ReadTopology {
                    self.topology.read();
                }
                if let Effect::Report(report) = &effect {
                    self.taints.publish(report);
                }
                if let Some(verdict) = self.streams.carry_out(effect) {
                    if let Some((answer, heed)) = answer {
                        let _gone = answer.send(Ok(heed));
                    }
                    return Some(verdict);
                }
            }
            if let Some((pending, nodes)) = turn.pending {
                self.streams.tell(pending, nodes);
            }
            crash_point("after-effects");
            if let Some((answer, heed)) = answer {
                // Who waits for this word no longer wants it if it is gone.
                let _gone = answer.send(Ok(heed));
            }
            crash_point("after-answer");
        }
        None
    }
}
