//! All decisions of the master: the job, the liveness of nodes, and progress for waiting nodes. The shell and the
//! simulator drive this one state machine.
//!
//! Only [`Job`] is journalled, as its events. Liveness is determined anew after a restart, and progress is not kept.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    fence::question_timeout,
    ids::{NodeId, Round},
    job::{Effect, Event, Job, NodeEnd, Policy},
    liveness::{Liveness, Timeout},
    pending::Pending,
    presence::{MayRun, Presence},
};
use diagnosis::moment::Moment;

/// Waiting nodes get a progress message at least this often.
const EVERY: Duration = Duration::from_secs(10);

/// Changes are sent together, this long after the first: many nodes that join at once are one change.
const TOGETHER: Duration = Duration::from_secs(1);

/// A loss that is noticed so much too late was not the node's: the master stood still (its machine was paused, or
/// moved, or overloaded), and messages of that time are still to be read.
const STOOD_STILL: Duration = Duration::from_millis(100);

/// An input of the master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and never kept")]
pub enum Input {
    /// An event of the job.
    Event(Event),
    /// A heartbeat, on the node's open stream: it has had the answer to the one before.
    Beat {
        node: NodeId,
        /// The round whose assignment it acknowledges with it.
        taken_round: Option<Round>,
    },
    /// The kernel of a node has closed its last stream, which was reported as broken: the launcher is gone, and a
    /// guard kills its workers.
    HungUp { node: NodeId },
    /// The last stream of a node, which was reported as broken, was reset.
    Reset { node: NodeId },
    /// The moment of [`JobMaster::deadline`] has come.
    Deadline,
}

/// The result of one input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "an effect not carried out leaves the nodes and this state apart"]
pub struct Turn {
    /// The events of the job, in order: the journal's records. To be durable before any effect is carried out.
    pub journal: Vec<Event>,
    /// What to do, in this order.
    pub effects: Vec<Effect>,
    /// Waiting nodes that get a progress message. Not worth a retry.
    pub pending: Option<(Pending, BTreeSet<NodeId>)>,
}

/// When waiting nodes get progress messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Board {
    told: Option<(Pending, BTreeSet<NodeId>)>,
    sent_at: Option<Moment>,
    due: Option<Moment>,
}

/// The master's decisions.
#[derive(Debug, Clone)]
pub struct JobMaster {
    job: Job,
    liveness: Liveness,
    presence: Presence,
    /// When to decide again whether lost nodes still have workers.
    look_at: Option<Moment>,
    board: Board,
}

impl JobMaster {
    /// A master without nodes.
    #[must_use]
    pub fn new(policy: Policy, timeout: Timeout) -> Self {
        Self::of(Job::new(policy), Liveness::new(timeout))
    }

    /// A master that was restarted with the job from the journal. All nodes get the grace period to come back,
    /// counted from `now`. The turn's journal must be written as any other.
    pub fn restored(job: Job, timeout: Timeout, now: Moment) -> (Self, Turn) {
        let mut liveness = Liveness::new(timeout);
        liveness.all_disconnected(now, job.nodes());
        let mut master = Self::of(job, liveness);
        let mut turn = Turn::default();
        master.tell(now, Event::Restarted, &mut turn);
        master.look(now, &mut turn);
        (master, turn)
    }

    fn of(job: Job, liveness: Liveness) -> Self {
        Self { job, liveness, presence: Presence::default(), look_at: None, board: Board::default() }
    }

    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The heartbeat interval of a node; `None`: no heartbeats.
    #[must_use]
    pub fn beat_interval(&self) -> Option<Duration> {
        let interval = self.liveness.beat_interval()?;
        // Nodes that joined since must not make the heartbeats of a round rarer than its lease allows.
        let lease = self.job.world().and_then(|world| world.fence.as_ref()).map(|fence| fence.lease);
        Some(lease.map_or(interval, |lease| interval.min(lease / 6)))
    }

    /// How long a node waits for the answer to a heartbeat before it reconnects; `None`: without limit.
    #[must_use]
    pub fn beat_timeout(&self) -> Option<Duration> {
        self.liveness.silence().map(question_timeout)
    }

    /// When to call [`Self::handle`] with [`Input::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let due = [self.job.deadline(), self.liveness.deadline(), self.board.due, self.look_at];
        due.into_iter().flatten().min()
    }

    /// Handles `input` and returns what to do.
    pub fn handle(&mut self, now: Moment, input: Input) -> Turn {
        let mut turn = Turn::default();
        if self.liveness.deadline().is_some_and(|due| due + STOOD_STILL < now) {
            self.liveness.unheard_until(now);
        }
        match input {
            Input::Beat { node, taken_round } => {
                self.liveness.heard(now, &node);
                match taken_round {
                    // Its heartbeat is an extra one, and has waited for no answer.
                    Some(_) => self.presence.heard(now, &node),
                    None => self.presence.beat(now, &node),
                }
                if let Some(round) = taken_round.filter(|round| self.job.is_assignment_untaken(&node, *round))
                {
                    self.tell(now, Event::AssignmentTaken { node, round }, &mut turn);
                } else if !self.job.has_absent() {
                    return turn;
                }
            }
            Input::HungUp { node } => self.presence.broken(now, &node, true),
            Input::Reset { node } => self.presence.reset(now, &node),
            Input::Event(event) => self.tell(now, event, &mut turn),
            Input::Deadline => {
                for (node, cause) in self.liveness.expired(now) {
                    self.tell(now, Event::NodeLost { node, cause }, &mut turn);
                }
                if self.job.deadline().is_some_and(|due| due <= now) {
                    self.tell(now, Event::Deadline, &mut turn);
                }
            }
        }
        self.look(now, &mut turn);
        self.post(now, &mut turn);
        turn
    }

    /// Decides which of the lost nodes have no workers any more, by when they and others were heard.
    fn look(&mut self, now: Moment, turn: &mut Turn) {
        self.look_at = None;
        let mut gone = BTreeSet::new();
        for (node, away, terms) in self.job.absent() {
            match self.presence.may_run(now, node, away, terms) {
                MayRun::No => {
                    gone.insert(node.clone());
                }
                MayRun::Until(due) => self.look_at = Some(self.look_at.map_or(due, |at| at.min(due))),
                MayRun::AsLongAsOthersAreAway => {}
            }
        }
        if !gone.is_empty() {
            self.tell(now, Event::WorkersGone { nodes: gone }, turn);
        }
    }

    fn tell(&mut self, now: Moment, event: Event, turn: &mut Turn) {
        match &event {
            Event::Subscribed { node } => {
                self.liveness.connected(now, node);
                self.presence.subscribed(now, node);
            }
            Event::LinkBroken { node } => {
                self.presence.broken(now, node, false);
                if self.job.knows(node) {
                    self.liveness.disconnected(now, node);
                } else {
                    self.liveness.forget(node);
                    if !self.job.is_watched(node) {
                        self.presence.forget(node);
                    }
                }
            }
            other => {
                if let Some(node) = other.speaker() {
                    self.liveness.heard(now, node);
                    self.presence.heard(now, node);
                }
                if let Event::NodeEnded { node, end: NodeEnd::Left { .. } | NodeEnd::Failed { .. } } = other {
                    self.presence.leaves(node);
                }
            }
        }
        let effects = self.job.handle(now, event.clone());
        for effect in &effects {
            if let Effect::Forget { node } | Effect::HangUp { node } | Effect::Refuse { node, .. } = effect {
                self.liveness.forget(node);
                if !self.job.is_watched(node) && !self.job.knows(node) {
                    self.presence.forget(node);
                }
            }
        }
        let ghost = match &event {
            Event::Joined(request) | Event::Resumed { request, .. } => Some(request.node_id.clone()),
            _ => None,
        };
        turn.journal.push(event);
        turn.effects.extend(effects);
        // Its stream broke before this message was read: nothing else would ever report that it is gone.
        if let Some(node) = ghost.filter(|node| self.job.knows(node) && !self.liveness.is_connected(node)) {
            self.tell(now, Event::LinkBroken { node }, turn);
        }
    }

    /// Sends waiting nodes what has changed, or that nothing has. What is cheap is done at each event, the rest when
    /// it is due: thousands may be waiting.
    fn post(&mut self, now: Moment, turn: &mut Turn) {
        if !self.job.has_waiting() {
            self.board = Board::default();
            return;
        }
        let soon = now + TOGETHER;
        let due =
            self.board.due.map_or(soon, |due| if turn.journal.is_empty() { due } else { due.min(soon) });
        if now < due {
            self.board.due = Some(due);
            return;
        }
        let Some((pending, waiting)) = self.job.pending(now) else {
            self.board = Board::default();
            return;
        };
        let board = &self.board;
        let is_news = board.told.as_ref().is_none_or(|(told, to)| !told.is_same(&pending) || to != waiting);
        let again = board.sent_at.map_or(now, |told| told + EVERY);
        if !is_news && now < again {
            self.board.due = Some(again);
            return;
        }
        // A spare is notified once.
        let mut to = waiting.clone();
        let is_spare = matches!(pending, Pending::Spare { .. });
        if is_spare && let Some((Pending::Spare { .. }, told)) = &board.told {
            to.retain(|node| !told.contains(node));
        }
        self.board = Board {
            told: Some((pending.clone(), waiting.clone())),
            sent_at: Some(now),
            due: (!is_spare).then(|| now + EVERY),
        };
        turn.pending = (!to.is_empty()).then_some((pending, to));
    }
}

#[cfg(test)]
mod tests;
