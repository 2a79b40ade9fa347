//! One task owns the job: it takes one event at a time, asks [`rules::job`] what to do, and does it.

use std::{
    collections::BTreeMap,
    future,
    time::{Duration, Instant},
};

use master_proto::convert::Push;
use rules::{
    Moment, NodeId,
    job::{Effect, Event, Job, JobLimits},
    worker_group::JobVerdict,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep_until, timeout},
};
use tracing::{debug, info};

/// Pushes that may wait for one node. A node gets a handful a round.
pub(crate) const PUSHES: usize = 64;

/// How long nodes may take to hear that the job ended.
pub const FAREWELL: Duration = Duration::from_secs(10);

/// What callers ask of the job's owner.
#[derive(Debug)]
pub enum Command {
    /// A node opened its stream. The answer says that pushes will reach it from now on.
    Attend { node: NodeId, attendance: u64, pushes: mpsc::Sender<Push>, attended: oneshot::Sender<()> },
    /// The stream of a node ended. It may have opened another one since.
    StreamClosed { node: NodeId, attendance: u64 },
    /// Something happened. The answer says that the job has taken note.
    Happened { event: Event, noted: oneshot::Sender<()> },
}

/// A node's stream.
#[derive(Debug)]
struct Attendee {
    attendance: u64,
    /// `None` once the master has nothing more to say: the stream ends when all was delivered.
    pushes: Option<mpsc::Sender<Push>>,
}

/// The owner of one job.
#[derive(Debug)]
pub struct JobLoop {
    job: Job,
    inbox: mpsc::Receiver<Command>,
    nodes: BTreeMap<NodeId, Attendee>,
    started: Instant,
}

impl JobLoop {
    /// A job nobody has joined, fed by `inbox`.
    #[must_use]
    pub fn new(limits: JobLimits, inbox: mpsc::Receiver<Command>) -> Self {
        Self { job: Job::new(limits), inbox, nodes: BTreeMap::new(), started: Instant::now() }
    }

    /// Runs the job to its end, and leaves when every node has heard of it (or after [`FAREWELL`]).
    pub async fn run(mut self) -> JobVerdict {
        let verdict = loop {
            if let Some(verdict) = self.turn().await {
                break verdict;
            }
        };
        for attendee in self.nodes.values_mut() {
            attendee.pushes = None;
        }
        let farewell = async {
            while !self.nodes.is_empty() {
                self.turn().await;
            }
        };
        if timeout(FAREWELL, farewell).await.is_err() {
            info!("left before every node had heard that the job ended");
        }
        verdict
    }

    /// Takes one event and does what it asks for.
    async fn turn(&mut self) -> Option<JobVerdict> {
        let (event, noted) = self.next_event().await?;
        let now = Moment::new(self.started.elapsed());
        debug!(?event, "event");
        let mut verdict = None;
        for effect in self.job.handle(now, event) {
            debug!(?effect, "effect");
            verdict = verdict.or(self.perform(effect));
        }
        // Who waits for this word no longer wants it if it is gone.
        let _gone = noted.map(|noted| noted.send(()));
        verdict
    }

    async fn next_event(&mut self) -> Option<(Event, Option<oneshot::Sender<()>>)> {
        let due = self.job.deadline().map(|at| self.started + at.since_start());
        let deadline = async move {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            command = self.inbox.recv() => match command {
                Some(Command::Attend { node, attendance, pushes, attended }) => {
                    self.nodes.insert(node, Attendee { attendance, pushes: Some(pushes) });
                    let _gone = attended.send(());
                    None
                }
                Some(Command::StreamClosed { node, attendance }) => {
                    // A node that attended again is not lost.
                    let is_current = self.nodes.get(&node).is_some_and(|now| now.attendance == attendance);
                    is_current.then(|| {
                        self.nodes.remove(&node);
                        (Event::NodeLost { node }, None)
                    })
                }
                Some(Command::Happened { event, noted }) => Some((event, Some(noted))),
                // The server is gone; so is everyone who could ask. The caller drops this future.
                None => future::pending().await,
            },
            () = deadline => Some((Event::Deadline, None)),
        }
    }

    fn perform(&mut self, effect: Effect) -> Option<JobVerdict> {
        match effect {
            Effect::AskToHost { node, round } => self.push(&node, Push::Host { round }),
            Effect::Seat { node, world } => {
                info!(%node, round = %world.round, nodes = world.members.len(), "node was seated");
                self.push(&node, Push::World(world));
            }
            Effect::Regroup { node, round } => self.push(&node, Push::Regroup { round }),
            Effect::Refuse { node, reason } => {
                info!(%node, %reason, "node was refused");
                self.push(&node, Push::Refused { reason: reason.to_string() });
            }
            Effect::TellEnd { node, verdict } => self.push(&node, Push::JobEnd(verdict)),
            Effect::Finish { verdict } => {
                info!(?verdict, "job ended");
                return Some(verdict);
            }
        }
        None
    }

    /// Never waits: the stream of a node that does not read its pushes is ended, and so the node is lost.
    fn push(&mut self, node: &NodeId, push: Push) {
        if let Some(attendee) = self.nodes.get_mut(node)
            && let Some(pushes) = &attendee.pushes
            && pushes.try_send(push).is_err()
        {
            attendee.pushes = None;
        }
    }
}
