//! All decisions of the master: the job, the liveness of nodes, the progress of ranks, and messages for waiting nodes. The shell and the
//! simulator drive this one state machine.
//!
//! Only [`Job`] is journalled, as its events. Liveness is determined anew after a restart, and the rest is not kept.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    checkpoint_watch::CheckpointWatch,
    checkpoints::CheckpointProgress,
    contacts::{Contacts, MayRun},
    fence::question_timeout,
    ids::{NodeId, Round},
    job::{Effect, Event, Job, NodeEnd, Policy},
    job_status::{JobStatus, MAX_RANKS},
    liveness::{Liveness, Timeout},
    pending::Pending,
    progress::ProgressReport,
    progress_watch::{ProgressFinding, ProgressWatch},
};
use diagnosis::moment::Moment;

/// Waiting nodes get a message at least this often.
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
    /// A node reports the progress of its ranks.
    Progress { node: NodeId, report: ProgressReport },
    /// A node reports how far its checkpoints are.
    Checkpoints { node: NodeId, progress: CheckpointProgress },
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
pub struct Output {
    /// The events of the job, in order: the journal's records. To be durable before any effect is carried out.
    pub journal: Vec<Event>,
    /// What to do, in this order.
    pub effects: Vec<Effect>,
    /// Waiting nodes that get a message. Not worth a retry.
    pub pending: Option<(Pending, BTreeSet<NodeId>)>,
}

/// When waiting nodes get messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PendingSchedule {
    sent: Option<(Pending, BTreeSet<NodeId>)>,
    last_sent: Option<Moment>,
    due: Option<Moment>,
}

/// The master's decisions.
#[derive(Debug, Clone)]
pub struct JobMaster {
    job: Job,
    liveness: Liveness,
    contacts: Contacts,
    /// When to decide again whether lost nodes still have workers.
    next_look: Option<Moment>,
    pending_schedule: PendingSchedule,
    progress: ProgressWatch,
    checkpoints: CheckpointWatch,
}

impl JobMaster {
    /// A master without nodes.
    #[must_use]
    pub fn new(policy: Policy, timeout: Timeout) -> Self {
        Self::of(Job::new(policy), Liveness::new(timeout))
    }

    /// A master that was restarted with the job from the journal. All nodes get the grace period to come back,
    /// counted from `now`. The output's journal must be written as any other.
    pub fn restored(job: Job, timeout: Timeout, now: Moment) -> (Self, Output) {
        let mut liveness = Liveness::new(timeout);
        liveness.all_disconnected(now, job.nodes());
        let progress = ProgressWatch::restored(job.hanging_round());
        let mut master = Self { progress, ..Self::of(job, liveness) };
        let mut output = Output::default();
        master.apply(now, Event::Restarted, &mut output);
        master.find_ended_workers(now, &mut output);
        (master, output)
    }

    fn of(job: Job, liveness: Liveness) -> Self {
        Self {
            job,
            liveness,
            contacts: Contacts::default(),
            next_look: None,
            pending_schedule: PendingSchedule::default(),
            progress: ProgressWatch::default(),
            checkpoints: CheckpointWatch::default(),
        }
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
        let due = [self.job.deadline(), self.liveness.deadline(), self.pending_schedule.due, self.next_look];
        due.into_iter().flatten().min()
    }

    /// Handles `input` and returns what to do.
    pub fn handle(&mut self, now: Moment, input: Input) -> Output {
        let mut output = Output::default();
        if self.liveness.deadline().is_some_and(|due| due + STOOD_STILL < now) {
            self.liveness.stalled_until(now);
        }
        match input {
            Input::Beat { node, taken_round } => {
                self.liveness.message_received(now, &node);
                match taken_round {
                    // Its heartbeat is an extra one, and has waited for no answer.
                    Some(_) => self.contacts.message_received(now, &node),
                    None => self.contacts.heartbeat_received(now, &node),
                }
                if let Some(round) = taken_round.filter(|round| self.job.is_assignment_untaken(&node, *round))
                {
                    self.apply(now, Event::AssignmentTaken { node, round }, &mut output);
                } else if !self.job.has_absent() {
                    return output;
                }
            }
            Input::HungUp { node } => self.contacts.disconnected(now, &node, true),
            Input::Reset { node } => self.contacts.stream_reset(now, &node),
            Input::Event(event) => self.apply(now, event, &mut output),
            Input::Checkpoints { node, progress } => {
                self.liveness.message_received(now, &node);
                self.contacts.message_received(now, &node);
                if self.job.knows(&node) {
                    self.checkpoints.reported(node, progress);
                }
            }
            Input::Progress { node, report } => self.progress_reported(now, &node, report, &mut output),
            Input::Deadline => {
                for (node, cause) in self.liveness.expired(now) {
                    self.apply(now, Event::NodeLost { node, cause }, &mut output);
                }
                if self.job.deadline().is_some_and(|due| due <= now) {
                    self.apply(now, Event::Deadline, &mut output);
                }
            }
        }
        self.find_ended_workers(now, &mut output);
        self.send_pending(now, &mut output);
        output
    }

    fn progress_reported(&mut self, now: Moment, node: &NodeId, report: ProgressReport, output: &mut Output) {
        self.liveness.message_received(now, node);
        self.contacts.message_received(now, node);
        let Some(world) = self.job.world() else { return };
        let round = world.round;
        for finding in self.progress.reported(now, node, report, world) {
            let event = match finding {
                ProgressFinding::Stalled { idle } => Event::TrainingStalled { round, idle },
                ProgressFinding::Advanced => Event::TrainingAdvanced,
                ProgressFinding::Slow { rank, permille } => Event::SlowRank { rank, permille },
            };
            self.apply(now, event, output);
        }
    }

    /// What the job is doing; `master` is filled in by the shell.
    #[must_use]
    pub fn status(&self, now: Moment) -> JobStatus {
        let mut status = self.job.status(now);
        status.checkpoints = self.checkpoints.status(|dir| self.job.step_on_disk(dir));
        let Some(world) = self.job.world() else { return status };
        let is_large = status.world_size.is_some_and(|ranks| ranks > MAX_RANKS);
        for node in &mut status.nodes {
            let member = node.node_rank.and_then(|rank| world.members.get(rank as usize));
            if let (Some(member), Some(first)) = (member, node.first_rank) {
                node.ranks = self.progress.status_of(now, world.round, &member.node_id, first);
                if is_large {
                    node.ranks.sort_by_key(|rank| (!rank.slow, rank.step, rank.rank));
                    node.ranks.truncate(1);
                }
            }
        }
        status
    }

    /// Decides which of the lost nodes have no workers any more, from the last messages of those and others.
    fn find_ended_workers(&mut self, now: Moment, output: &mut Output) {
        self.next_look = None;
        let mut gone = BTreeSet::new();
        for (node, away, terms) in self.job.absent() {
            match self.contacts.may_run(now, node, away, terms) {
                MayRun::No => {
                    gone.insert(node.clone());
                }
                MayRun::Until(due) => self.next_look = Some(self.next_look.map_or(due, |at| at.min(due))),
                MayRun::AsLongAsOthersAreAway => {}
            }
        }
        if !gone.is_empty() {
            self.apply(now, Event::WorkersGone { nodes: gone }, output);
        }
    }

    fn apply(&mut self, now: Moment, event: Event, output: &mut Output) {
        match &event {
            Event::Subscribed { node } => {
                self.liveness.connected(now, node);
                self.contacts.subscribed(now, node);
            }
            Event::LinkBroken { node } => {
                self.contacts.disconnected(now, node, false);
                if self.job.knows(node) {
                    self.liveness.disconnected(now, node);
                } else {
                    self.liveness.forget(node);
                    if !self.job.is_watched(node) {
                        self.contacts.forget(node);
                    }
                }
            }
            other => {
                if let Some(node) = other.speaker() {
                    self.liveness.message_received(now, node);
                    self.contacts.message_received(now, node);
                }
                if let Event::NodeEnded { node, end: NodeEnd::Left { .. } | NodeEnd::Failed { .. } } = other {
                    self.contacts.leave_announced(node);
                }
            }
        }
        self.checkpoints.recorded(&event);
        let effects = self.job.handle(now, event.clone());
        for effect in &effects {
            if let Effect::Forget { node } | Effect::HangUp { node } | Effect::Refuse { node, .. } = effect {
                self.liveness.forget(node);
                if !self.job.is_watched(node) && !self.job.knows(node) {
                    self.contacts.forget(node);
                }
            }
        }
        let ghost = match &event {
            Event::Joined(request) | Event::Resumed { request, .. } => Some(request.node_id.clone()),
            _ => None,
        };
        output.journal.push(event);
        output.effects.extend(effects);
        // Its stream broke before this message was read: nothing else would ever report that it is gone.
        if let Some(node) = ghost.filter(|node| self.job.knows(node) && !self.liveness.is_connected(node)) {
            self.apply(now, Event::LinkBroken { node }, output);
        }
    }

    /// Sends waiting nodes what has changed, or that nothing has. What is cheap is done at each event, the rest when
    /// it is due: thousands may be waiting.
    fn send_pending(&mut self, now: Moment, output: &mut Output) {
        if !self.job.has_waiting() {
            self.pending_schedule = PendingSchedule::default();
            return;
        }
        let soon = now + TOGETHER;
        let due = self
            .pending_schedule
            .due
            .map_or(soon, |due| if output.journal.is_empty() { due } else { due.min(soon) });
        if now < due {
            self.pending_schedule.due = Some(due);
            return;
        }
        let Some((pending, waiting)) = self.job.pending(now) else {
            self.pending_schedule = PendingSchedule::default();
            return;
        };
        let schedule = &self.pending_schedule;
        let is_new = schedule.sent.as_ref().is_none_or(|(sent, to)| !sent.is_same(&pending) || to != waiting);
        let again = schedule.last_sent.map_or(now, |sent| sent + EVERY);
        if !is_new && now < again {
            self.pending_schedule.due = Some(again);
            return;
        }
        // A spare is notified once, and again when other nodes are needed.
        let mut to = waiting.clone();
        let is_spare = matches!(pending, Pending::Spare { .. });
        if is_spare
            && let Some((before, sent)) = &schedule.sent
            && before.is_same(&pending)
        {
            to.retain(|node| !sent.contains(node));
        }
        self.pending_schedule = PendingSchedule {
            sent: Some((pending.clone(), waiting.clone())),
            last_sent: Some(now),
            due: (!is_spare).then(|| now + EVERY),
        };
        output.pending = (!to.is_empty()).then_some((pending, to));
    }
}

#[cfg(test)]
mod tests;
