//! The whole of the master's decisions: the job, who is alive, and what the waiting are told. The shell and the
//! simulator drive this one machine.
//!
//! Only [`Job`] is journalled, as the events it was told. Who is alive is asked anew after a restart, and what
//! the waiting are told is progress.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    ids::{NodeId, Round},
    job::{Effect, Event, Job, Policy},
    liveness::{Liveness, Patience},
    moment::Moment,
    pending::Pending,
};

/// The line that waiting nodes are told comes at least this often.
const EVERY: Duration = Duration::from_secs(10);

/// Changes are told together, this long after the first: a crowd that joins is one change.
const TOGETHER: Duration = Duration::from_secs(1);

/// A loss that is noticed so much too late was not the node's: the master stood still (its machine was paused, or
/// moved, or had no time for it), and what nodes said meanwhile is still to be heard.
const STOOD_STILL: Duration = Duration::from_millis(100);

/// What the shell hears.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and never kept")]
pub enum Input {
    /// Something for the job.
    Event(Event),
    /// A node says that it lives.
    Beat {
        /// Which.
        node: NodeId,
        /// The round whose seat it takes, when it says so.
        seat: Option<Round>,
    },
    /// The moment of [`JobMaster::deadline`] has come.
    Deadline,
}

/// What follows from one input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "an effect not carried out leaves the nodes and this state apart"]
pub struct Turn {
    /// What the job was told, in order: the journal's records. To be durable before any effect is carried out.
    pub journal: Vec<Event>,
    /// What to do, in this order.
    pub effects: Vec<Effect>,
    /// Tell these waiting nodes how things stand. Not worth a retry.
    pub pending: Option<(Pending, BTreeSet<NodeId>)>,
}

/// When the waiting hear of their wait.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Board {
    told: Option<(Pending, BTreeSet<NodeId>)>,
    told_at: Option<Moment>,
    due: Option<Moment>,
}

/// The master's decisions.
#[derive(Debug, Clone)]
pub struct JobMaster {
    job: Job,
    liveness: Liveness,
    board: Board,
}

impl JobMaster {
    /// A master that nobody has spoken to.
    #[must_use]
    pub fn new(policy: Policy, patience: Patience) -> Self {
        Self { job: Job::new(policy), liveness: Liveness::new(patience), board: Board::default() }
    }

    /// A master that was started again with the job as it was journalled. All nodes get the grace to come back,
    /// counted from `now`. The turn's journal must be written as any other.
    pub fn restored(job: Job, patience: Patience, now: Moment) -> (Self, Turn) {
        let mut liveness = Liveness::new(patience);
        liveness.all_disconnected(now, job.nodes());
        let mut master = Self { job, liveness, board: Board::default() };
        let mut turn = Turn::default();
        master.tell(now, Event::Restarted, &mut turn);
        (master, turn)
    }

    /// The job, to look at.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// How often a node shall say that it lives; `None`: not at all.
    #[must_use]
    pub fn beat_interval(&self) -> Option<Duration> {
        self.liveness.beat_interval()
    }

    /// When to call [`Self::handle`] with [`Input::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        [self.job.deadline(), self.liveness.deadline(), self.board.due].into_iter().flatten().min()
    }

    /// What to do about `input`.
    pub fn handle(&mut self, now: Moment, input: Input) -> Turn {
        let mut turn = Turn::default();
        if self.liveness.deadline().is_some_and(|due| due + STOOD_STILL < now) {
            self.liveness.heard_nobody_until(now);
        }
        match input {
            Input::Beat { node, seat } => {
                self.liveness.heard(now, &node);
                let Some(round) = seat.filter(|round| self.job.is_seat_untaken(&node, *round)) else {
                    return turn;
                };
                self.tell(now, Event::SeatTaken { node, round }, &mut turn);
            }
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
        self.post(now, &mut turn);
        turn
    }

    fn tell(&mut self, now: Moment, event: Event, turn: &mut Turn) {
        match &event {
            Event::Attended { node } => self.liveness.connected(now, node),
            Event::LinkBroken { node } if self.job.knows(node) => self.liveness.disconnected(now, node),
            Event::LinkBroken { node } => self.liveness.forget(node),
            other => {
                if let Some(node) = other.speaker() {
                    self.liveness.heard(now, node);
                }
            }
        }
        let effects = self.job.handle(now, event.clone());
        for effect in &effects {
            if let Effect::Forget { node } | Effect::HangUp { node } | Effect::Refuse { node, .. } = effect {
                self.liveness.forget(node);
            }
        }
        let ghost = match &event {
            Event::Joined(request) | Event::Resumed { request, .. } => Some(request.node_id.clone()),
            _ => None,
        };
        turn.journal.push(event);
        turn.effects.extend(effects);
        // Its stream broke before this word was read: nothing else would ever tell that it is gone.
        if let Some(node) = ghost.filter(|node| self.job.knows(node) && !self.liveness.is_connected(node)) {
            self.tell(now, Event::LinkBroken { node }, turn);
        }
    }

    /// Tells the waiting what has changed, or that nothing has. What is cheap is done at each event, the rest when
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
        let again = board.told_at.map_or(now, |told| told + EVERY);
        if !is_news && now < again {
            self.board.due = Some(again);
            return;
        }
        // A spare hears once that it is one.
        let mut to = waiting.clone();
        let is_spare = matches!(pending, Pending::Spare { .. });
        if is_spare && let Some((Pending::Spare { .. }, told)) = &board.told {
            to.retain(|node| !told.contains(node));
        }
        self.board = Board {
            told: Some((pending.clone(), waiting.clone())),
            told_at: Some(now),
            due: (!is_spare).then(|| now + EVERY),
        };
        turn.pending = (!to.is_empty()).then_some((pending, to));
    }
}

#[cfg(test)]
mod tests;
