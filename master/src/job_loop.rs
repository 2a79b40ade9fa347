//! One task owns the job: it takes one command at a time, asks [`JobMaster`] what to do, and does it once the command
//! is durable. So a restarted master remembers all that was sent.
//!
//! ```text
//! command -> decide -> journal ----------.
//!               `-> pending outputs (FIFO) -+-> durable: streams, replies
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    future,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use checkpoint::job::Order;
use master_proto::{
    convert::{ProgressMessage, StacksPart},
    pb,
};
use rules::{
    Moment, NodeId, Round,
    checkpoints::CheckpointProgress,
    job::{Effect, Event},
    job_master::{Input, JobMaster, Output},
    job_status::{JobStatus, MasterStatus},
    push::Push,
    topology::Topology,
    verdict::JobVerdict,
    world::World,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tracing::debug;

use crate::{
    admission::Ended,
    hang::{StackCollector, StacksConfig},
    journal::{JournalError, crash_point},
    loaded_job::{Clock, LoadedJob, Record},
    log::Log,
    streams::{MAX_SUBSCRIBERS, Opened, QueuedMessage, Streams},
    taint_publisher::{TaintConfig, TaintPublisher},
    topology,
};

/// Outputs that may wait for a slow disk before callers are held back.
const PENDING_OUTPUTS: usize = 16_384;

/// Why a call is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The node has no stream on which to receive what follows.
    NotSubscribed,
    /// There are as many subscribers as the master takes.
    Full,
}

/// The sender of a recorded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A node of the job, or one that waits for an assignment.
    Member,
    /// Any other.
    Unknown,
}

/// Answers a caller that waits for its event to be durable.
type Reply = oneshot::Sender<Result<Caller, Rejected>>;

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BeatReply {
    /// The node is subscribed, with this stream.
    pub(crate) is_known: bool,
    /// When the next heartbeat is due.
    pub(crate) next: Option<Duration>,
}

/// What callers ask of the job's owner, or report to it.
#[derive(Debug)]
pub(crate) enum Command {
    /// A node opened its stream. Answered once pushes reach it.
    Subscribe { node: NodeId, session: u64, pushes: mpsc::Sender<QueuedMessage>, reply: Reply },
    /// The stream of a node ended. It may have opened another one since. `ended`: how its connection ended, if it has.
    Closed { node: NodeId, session: u64, ended: Option<Ended> },
    /// The connection of a closed stream has ended, too. `None`: this side closed it.
    Ended { node: NodeId, session: u64, ended: Option<Ended> },
    /// An event of the job. Answered once it is durable. `session`: of the stream that a request expects its answer on.
    Event { event: Box<Event>, session: Option<u64>, reply: Reply },
    /// A heartbeat of a node, for this stream.
    Beat { node: NodeId, session: u64, taken_round: Option<Round>, reply: oneshot::Sender<BeatReply> },
    /// Asks for the table of the round.
    ShowWorld { reply: oneshot::Sender<pb::WorldTable> },
    /// Asks for the last report of a check.
    ShowTaintReport { reply: oneshot::Sender<Arc<str>> },
    /// Asks what the job is doing.
    ShowStatus { reply: oneshot::Sender<Box<JobStatus>> },
    /// The topology file was read, or could not be read.
    TopologyRead(Result<Topology, String>),
    /// A node reports the progress of its ranks.
    Progress { message: ProgressMessage, reply: oneshot::Sender<()> },
    /// A node reports how far its checkpoints are.
    Checkpoints { node: NodeId, progress: CheckpointProgress, reply: oneshot::Sender<()> },
    /// A node sends a part of its stacks.
    Stacks { part: StacksPart, reply: Reply },
    /// The stacks of a hang were judged ([`Event::HangJudged`]).
    HangJudged(Box<Event>),
}

/// A stream that opens or has ended. It waits like an effect: what was decided before goes to the old stream.
#[derive(Debug)]
enum StreamChange {
    Opened(Opened),
    Closed(NodeId, u64),
}

/// What follows once the journal is durable up to `lsn`.
#[derive(Debug)]
struct PendingOutput {
    lsn: u64,
    change: Option<StreamChange>,
    output: Output,
    answer: Option<(Reply, Caller)>,
}

/// What tells watchers that the status has changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatusChange {
    /// Grows with every event that is recorded.
    pub(crate) version: u64,
    /// The last status of the job, when its owner is about to end.
    pub(crate) last: Option<Arc<JobStatus>>,
}

/// The owner of one job.
#[derive(Debug)]
pub(crate) struct JobLoop {
    master: JobMaster,
    clock: Clock,
    record: Record,
    inbox: mpsc::Receiver<Command>,
    /// Nodes with an open stream, for decisions. [`Streams`] follows when it is durable.
    subscribed: BTreeMap<NodeId, u64>,
    /// Nodes whose last stream has ended, and whose connection may be open.
    ending: BTreeMap<NodeId, u64>,
    streams: Streams,
    pending_outputs: VecDeque<PendingOutput>,
    /// The last log sequence number.
    lsn: u64,
    topology: topology::Reader,
    taints: TaintPublisher,
    stacks: StackCollector,
    started: Instant,
    changes: watch::Sender<StatusChange>,
}

impl JobLoop {
    /// Creates the owner of a job; `to` is the other end of `inbox`.
    pub(crate) fn new(
        LoadedJob { master, first, clock, epoch, record }: LoadedJob,
        topology_file: Option<PathBuf>,
        (taints, stacks): (TaintConfig, StacksConfig),
        log: Log,
        inbox: mpsc::Receiver<Command>,
        to: mpsc::WeakSender<Command>,
        changes: watch::Sender<StatusChange>,
    ) -> Self {
        let mut job = Self {
            master,
            clock,
            record,
            inbox,
            subscribed: BTreeMap::new(),
            ending: BTreeMap::new(),
            taints: TaintPublisher::start(taints, Arc::clone(&log)),
            stacks: StackCollector::new(stacks, to.clone()),
            streams: Streams::new(epoch, log),
            started: Instant::now(),
            changes,
            pending_outputs: VecDeque::new(),
            lsn: 0,
            topology: topology::Reader::new(topology_file, to),
        };
        job.enqueue(clock.now(), first, None, None);
        job
    }

    /// Runs the job until every node has acknowledged its end, or has not within the time limit.
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
                command = self.inbox.recv(), if self.pending_outputs.len() < PENDING_OUTPUTS => match command {
                    Some(command) => self.on_command(command),
                    // The server is gone, and with it all callers. This future is dropped.
                    None => future::pending().await,
                },
            }
        }
    }

    /// Closes all streams. Watchers get the last status.
    pub(crate) fn end(self) -> (Record, TaintPublisher) {
        let last = Some(Arc::new(self.status()));
        self.changes.send_modify(|change| *change = StatusChange { version: change.version + 1, last });
        (self.record, self.taints)
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Subscribe { node, session, pushes, reply } => {
                let is_member = self.subscribed.contains_key(&node) || self.master.job().knows(&node);
                if self.subscribed.len() >= MAX_SUBSCRIBERS && !is_member {
                    let _gone = reply.send(Err(Rejected::Full));
                    return;
                }
                self.subscribed.insert(node.clone(), session);
                self.ending.remove(&node);
                let beat = self.master.beat_interval();
                let timeout = self.master.beat_timeout();
                let opened = Opened { node: node.clone(), session, pushes, beat, timeout };
                let event = Input::Event(Event::Subscribed { node });
                self.decide(event, Some(StreamChange::Opened(opened)), Some(reply));
            }
            Command::Closed { node, session, ended } => {
                let change = Some(StreamChange::Closed(node.clone(), session));
                // A node that has subscribed again is not disconnected.
                if self.subscribed.get(&node) == Some(&session) {
                    self.subscribed.remove(&node);
                    if ended.is_none() {
                        self.ending.insert(node.clone(), session);
                    }
                    self.decide(Input::Event(Event::LinkBroken { node: node.clone() }), change, None);
                    self.connection_ended(node, ended);
                } else {
                    self.enqueue(self.clock.now(), Output::default(), change, None);
                }
            }
            Command::Ended { node, session, ended } => {
                if self.ending.get(&node) == Some(&session) {
                    self.ending.remove(&node);
                    self.connection_ended(node, ended);
                }
            }
            Command::Event { event, session, reply } => {
                // These nodes need a stream: to be answered on, and to be missed when it ends.
                let needs_stream = match &*event {
                    Event::Joined(request) | Event::Resumed { request, .. } => Some(&request.node_id),
                    Event::InventoryReported { node, .. } => Some(node),
                    _ => None,
                };
                let has_stream = |node| match (self.subscribed.get(node), session) {
                    (None, _) => false,
                    (Some(_), None) => true,
                    // A node joins or resumes anew on each stream.
                    (Some(present), Some(session)) => *present == session,
                };
                if needs_stream.is_some_and(|node| !has_stream(node)) {
                    let _gone = reply.send(Err(Rejected::NotSubscribed));
                    return;
                }
                self.decide(Input::Event(*event), None, Some(reply));
            }
            Command::Beat { node, session, taken_round, reply } => {
                // A heartbeat for an older stream says nothing about the present one.
                let is_known = self.subscribed.get(&node) == Some(&session);
                // It changes no decision that was sent, so the answer does not wait for the disk.
                if is_known {
                    self.decide(Input::Beat { node, taken_round }, None, None);
                }
                let _gone = reply.send(BeatReply { is_known, next: self.master.beat_interval() });
            }
            Command::ShowWorld { reply } => {
                let _gone = reply.send(self.master.job().world().into());
            }
            Command::ShowTaintReport { reply } => {
                let _gone = reply.send(self.taints.last());
            }
            Command::ShowStatus { reply } => {
                let _gone = reply.send(Box::new(self.status()));
            }
            Command::Progress { message: ProgressMessage { node, report }, reply } => {
                // Not recorded, and answered at once: it is reported again when it is lost.
                self.decide(Input::Progress { node, report }, None, None);
                let _gone = reply.send(());
            }
            Command::Checkpoints { node, progress, reply } => {
                // As above.
                self.decide(Input::Checkpoints { node, progress }, None, None);
                let _gone = reply.send(());
            }
            Command::Stacks { part, reply } => self.on_stacks(part, reply),
            Command::HangJudged(judged) => self.decide(Input::Event(*judged), None, None),
            Command::TopologyRead(topology) => {
                self.topology.done();
                self.decide(Input::Event(Event::TopologyRead(topology)), None, None);
            }
        }
    }

    fn on_stacks(&mut self, part: StacksPart, reply: Reply) {
        // A node speaks for its own ranks only.
        let is_own = |world: &World| world.ranks_of(&part.node).contains(&part.rank.0);
        if !self.master.job().world().is_some_and(is_own) {
            let _gone = reply.send(Ok(Caller::Unknown));
            return;
        }
        let sent = part.is_all.then(|| Event::StacksSent { node: part.node.clone(), episode: part.episode });
        self.stacks.add(part);
        match sent {
            Some(sent) => self.decide(Input::Event(sent), None, Some(reply)),
            None => {
                let _gone = reply.send(Ok(Caller::Member));
            }
        }
    }

    fn decide(&mut self, input: Input, change: Option<StreamChange>, answer: Option<Reply>) {
        let now = self.clock.now();
        debug!(%now, ?input, "input");
        let speaker = match &input {
            Input::Event(event) => event.speaker().cloned(),
            Input::Beat { .. }
            | Input::Progress { .. }
            | Input::Checkpoints { .. }
            | Input::HungUp { .. }
            | Input::Reset { .. }
            | Input::Deadline => None,
        };
        let output = self.master.handle(now, input);
        let is_member = speaker.is_some_and(|node| self.master.job().knows(&node));
        let caller = if is_member { Caller::Member } else { Caller::Unknown };
        self.enqueue(now, output, change, answer.map(|answer| (answer, caller)));
    }

    fn status(&self) -> JobStatus {
        let master = MasterStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seconds: self.started.elapsed().as_secs(),
            epoch: format!("{:016x}", self.streams.epoch()),
            has_state_dir: self.record.is_kept(),
        };
        JobStatus { master, ..self.master.status(self.clock.now()) }
    }

    fn connection_ended(&mut self, node: NodeId, ended: Option<Ended>) {
        match ended {
            Some(Ended::Closed) => self.decide(Input::HungUp { node }, None, None),
            Some(Ended::Reset) => self.decide(Input::Reset { node }, None, None),
            None => {}
        }
    }

    /// Writes the events to the journal, and queues what follows once they are durable.
    fn enqueue(
        &mut self,
        now: Moment,
        mut output: Output,
        change: Option<StreamChange>,
        answer: Option<(Reply, Caller)>,
    ) {
        for effect in &output.effects {
            if let Effect::HangUp { node } = effect
                && let Some(session) = self.subscribed.remove(node)
            {
                self.ending.insert(node.clone(), session);
            }
        }
        let events = std::mem::take(&mut output.journal);
        if !events.is_empty() {
            self.lsn = self.record.write(now, events);
            self.record.compact(now, self.master.job());
            self.changes.send_modify(|change| change.version += 1);
        }
        let is_nothing = output == Output::default() && change.is_none() && answer.is_none();
        if !is_nothing {
            self.pending_outputs.push_back(PendingOutput { lsn: self.lsn, change, output, answer });
        }
    }

    fn flush_durable(&mut self, durable: u64) -> Option<JobVerdict> {
        while let Some(PendingOutput { change, output, answer, .. }) =
            self.pending_outputs.pop_front_if(|pending| pending.lsn <= durable)
        {
            match change {
                Some(StreamChange::Opened(opened)) => self.streams.open(opened),
                Some(StreamChange::Closed(node, session)) => self.streams.closed(&node, session),
                None => {}
            }
            crash_point("before-effects");
            for effect in output.effects {
                debug!(?effect, "effect");
                if matches!(&effect, Effect::Push { push: Push::Checkpoint(Order::Commit { .. }), .. }) {
                    crash_point("before-commit");
                }
                if effect == Effect::ReadTopology {
                    self.topology.read();
                }
                match &effect {
                    Effect::Report(report) => self.taints.publish(report),
                    Effect::ReportHang(report) => self.taints.publish_hang(report),
                    Effect::CollectStacks { episode } => self.stacks.begin(*episode),
                    Effect::JudgeStacks { episode, world } => {
                        self.stacks.judge(*episode, (**world).clone(), self.master.job().name());
                    }
                    _ => {}
                }
                if let Some(verdict) = self.streams.carry_out(effect) {
                    if let Some((answer, caller)) = answer {
                        let _gone = answer.send(Ok(caller));
                    }
                    return Some(verdict);
                }
            }
            if let Some((pending, nodes)) = output.pending {
                self.streams.send_pending(pending, nodes);
            }
            crash_point("after-effects");
            if let Some((answer, caller)) = answer {
                let _gone = answer.send(Ok(caller));
            }
            crash_point("after-answer");
        }
        None
    }
}
