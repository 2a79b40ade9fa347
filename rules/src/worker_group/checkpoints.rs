//! The saver of this node, which keeps checkpoints in memory: when it is started, what it is told of rounds and
//! workers, what the master hears of it, and what is written before the launcher exits. What the saver itself decides
//! is in [`checkpoint::slots`].
//!
//! Workers find its socket in their environment. It is started when the first of them connects, so a run without
//! checkpoints in memory has none. When it dies, the next connection starts another one: a worker that has written a
//! step by itself meanwhile tells it, and it keeps checkpoints in memory again. Nothing here waits for a disk but the
//! end of the run.

use std::{collections::BTreeMap, time::Duration};

use checkpoint::{
    job::Order,
    message::{Dir, FromSaver, ShardState, ToSaver},
};
use serde::{Deserialize, Serialize};

use super::{Effect, State, WorkerGroup, stopping::AfterStop};
use crate::{
    checkpoints::{
        CheckpointNotice, CheckpointProgress, CheckpointReport, MOST_LOSSES, NextSaver, RunningWrite,
    },
    failure::Outcome,
    ids::Round,
    notice::Notice,
    world::Assignment,
};
use diagnosis::moment::Moment;

/// How long a node waits for what its saver has in memory before it joins without that. The saver answers in
/// milliseconds, unless its host stands still.
pub const STATE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long what is to be written to disk may take at the end of a run.
pub const SAVE_TIMEOUT: Duration = Duration::from_secs(600);

/// What is left for it at least: after a signal, however long the workers took to end; and without a job master.
const LEAST_GRACE: Duration = Duration::from_secs(5);

/// An end that takes longer is announced.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// For the saver's last answer.
const ANSWER: Duration = Duration::from_secs(1);

/// How often the progress of a write is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// How often what is in memory is reported, for people, by each of up to [`PER_INTERVAL`] nodes.
const MEMORY_INTERVAL: Duration = Duration::from_secs(30);

/// Of more nodes each reports more rarely.
const PER_INTERVAL: u32 = 1000;

/// What is known of the saver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Checkpoints {
    saver: Saver,
    /// The round whose workers are gone, of which the saver is to say what it has; and until when that is waited for.
    asked: Option<(Round, Moment)>,
    /// What it said last.
    shards: Vec<ShardState>,
    /// The newest step of each directory that workers of this round have written by themselves. The master must know
    /// before it puts the next round together, even if its stream or the saver was away when that was said.
    written_alone: BTreeMap<Dir, u64>,
    /// Savers that have died in this round.
    losses: u32,
    /// When the first signal came that ends the run, or the job did because of one to another launcher.
    signalled: Option<Moment>,
    /// When the progress of a write was reported last.
    reported: Option<Moment>,
    /// When the saver is asked what it has, for people.
    ask_at: Option<Moment>,
    /// It was asked: what it says then is no news for the job.
    is_for_people: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Saver {
    /// No worker has asked for one.
    #[default]
    Absent,
    Running,
    /// It ended by itself. Another one is started at the next connection, or with the next workers.
    Lost,
    /// The run is over for it.
    Closed,
}

impl WorkerGroup {
    /// Whether a connection to the socket of the workers is to be reported ([`super::Event::SaverWanted`]).
    #[must_use]
    pub fn wants_saver(&self) -> bool {
        // What connects at another time is not a worker that goes on.
        let has_workers = matches!(self.state, State::Preparing(_) | State::Running(_));
        let may_start = match self.checkpoints.saver {
            Saver::Absent => true,
            Saver::Lost => self.checkpoints.losses < MOST_LOSSES,
            Saver::Running | Saver::Closed => false,
        };
        has_workers && may_start
    }

    /// The first worker has connected, or one after the saver was lost.
    pub(super) fn on_saver_wanted(&mut self, now: Moment) -> Vec<Effect> {
        if !self.wants_saver() {
            return Vec::new();
        }
        let Some(assignment) = self.last.clone() else { return Vec::new() };
        self.start_saver(now, &assignment)
    }

    fn start_saver(&mut self, now: Moment, assignment: &Assignment) -> Vec<Effect> {
        self.checkpoints.saver = Saver::Running;
        self.checkpoints.ask_at = Some(now + MEMORY_INTERVAL);
        let is_void = assignment.restore_from_disk;
        let mut effects = vec![Effect::StartSaver, tell(round_of(assignment, is_void))];
        effects.extend(self.report(CheckpointReport::Kept));
        effects
    }

    /// Before workers of a round are started: the saver answers their clients for that round only.
    pub(super) fn saver_round(
        &mut self,
        now: Moment,
        assignment: &Assignment,
        last_world: Option<u32>,
    ) -> Vec<Effect> {
        (self.checkpoints.asked, self.checkpoints.reported) = (None, None);
        self.checkpoints.losses = 0;
        self.checkpoints.written_alone.clear();
        match self.checkpoints.saver {
            Saver::Running => {
                self.checkpoints.ask_at = Some(now + MEMORY_INTERVAL);
                let is_other_world = last_world.is_some_and(|last| last != assignment.world_size);
                vec![tell(round_of(assignment, assignment.restore_from_disk || is_other_world))]
            }
            Saver::Lost => self.start_saver(now, assignment),
            // All ranks of the job wait for what this node fetches, whether its workers load it or not.
            Saver::Absent if assignment.fetches() => self.start_saver(now, assignment),
            Saver::Absent | Saver::Closed => Vec::new(),
        }
    }

    /// No process of the round's workers is left. What the saver has in memory then is told to the master when the node
    /// joins, so `waits` for the answer.
    pub(super) fn saver_workers_gone(&mut self, now: Moment, round: Round, waits: bool) -> Vec<Effect> {
        if self.checkpoints.saver != Saver::Running {
            return Vec::new();
        }
        self.checkpoints.asked = waits.then(|| (round, now + STATE_TIMEOUT));
        vec![tell(ToSaver::WorkersGone { round: round.0 })]
    }

    /// Whether the node is to join only when the saver has answered.
    pub(super) fn awaits_saver(&self) -> bool {
        self.checkpoints.asked.is_some()
    }

    /// What the node has in memory, for the master.
    pub(super) fn shards_in_memory(&self) -> Vec<ShardState> {
        match self.checkpoints.saver {
            Saver::Running => self.checkpoints.shards.clone(),
            Saver::Absent | Saver::Lost | Saver::Closed => Vec::new(),
        }
    }

    /// What workers of the last round have written by themselves: said again before the node joins the next one, since
    /// the master may have missed it.
    pub(super) fn announce_written_alone(&self) -> Vec<Effect> {
        let Some(round) = self.last.as_ref().map(|last| last.round.0) else { return Vec::new() };
        let written = self.checkpoints.written_alone.iter();
        let report = |(dir, step): (&Dir, &u64)| {
            self.report(CheckpointReport::WrittenAlone { dir: dir.clone(), step: *step, round })
        };
        written.filter_map(report).collect()
    }

    /// When the master knows this node, for the first time or again: it may have missed what the saver said.
    pub(super) fn announce_saver(&self) -> Vec<Effect> {
        match self.checkpoints.saver {
            Saver::Running => {
                let kept = self.report(CheckpointReport::Kept);
                kept.into_iter().chain([tell(ToSaver::Report {})]).collect()
            }
            Saver::Absent | Saver::Lost | Saver::Closed => Vec::new(),
        }
    }

    pub(super) fn on_saver_said(&mut self, now: Moment, said: FromSaver) -> Vec<Effect> {
        if self.checkpoints.saver != Saver::Running {
            return Vec::new();
        }
        match said {
            FromSaver::State { round, shards } => self.on_state(now, round, shards),
            FromSaver::Persisted { dir, step, saved_in, given_up, shard } => {
                self.reports(CheckpointReport::Persisted { dir, step, saved_in, given_up, shard })
            }
            FromSaver::Committed { dir, step } => self.reports(CheckpointReport::Committed { dir, step }),
            FromSaver::WrittenAlone { dir, step, round } => {
                if self.last.as_ref().is_some_and(|last| last.round.0 == round) {
                    let known = self.checkpoints.written_alone.entry(dir.clone()).or_default();
                    *known = step.max(*known);
                }
                self.reports(CheckpointReport::WrittenAlone { dir, step, round })
            }
            FromSaver::Failed { dir, step, shard, saved_in, reason } => {
                self.reports(CheckpointReport::Failed { dir, step, shard, saved_in, reason })
            }
            FromSaver::FetchFailed { dir, step, shard, reason } => {
                self.reports(CheckpointReport::FetchFailed { dir, step, shard, reason })
            }
            FromSaver::Progress(progress) => {
                let is_due = self.checkpoints.reported.is_none_or(|last| last + PROGRESS_INTERVAL <= now);
                if !is_due || !self.link.is_up() {
                    return Vec::new();
                }
                self.checkpoints.reported = Some(now);
                let (id, step, bytes, of) = (progress.id, progress.step, progress.bytes, progress.of);
                let write = RunningWrite { dir: id.dir, shard: id.shard, step, bytes, of };
                let progress = CheckpointProgress::Writing(write);
                vec![Effect::ReportCheckpointProgress { progress }]
            }
            FromSaver::Log { level, text } => {
                vec![Effect::Notify(Notice::Checkpoints(CheckpointNotice::Saver { level, text }))]
            }
            FromSaver::Finished {} => self.on_saver_finished(),
        }
    }

    fn on_state(&mut self, now: Moment, round: Option<u32>, shards: Vec<ShardState>) -> Vec<Effect> {
        let is_answer = self.checkpoints.asked.is_some_and(|(asked, _)| round == Some(asked.0));
        self.checkpoints.shards = shards;
        if is_answer {
            self.checkpoints.asked = None;
        }
        // Of a node that waits to join, it goes with that.
        if matches!(self.state, State::Joining { .. }) {
            return if is_answer { self.join_after_saver(now) } else { Vec::new() };
        }
        let shards = self.checkpoints.shards.clone();
        let is_for_people = std::mem::take(&mut self.checkpoints.is_for_people);
        if is_for_people && shards.iter().all(|shard| shard.wishes.is_empty()) {
            let mut steps = BTreeMap::new();
            for shard in shards {
                let newest = shard.steps.last().copied();
                steps.entry(shard.dir).and_modify(|step| *step = newest.min(*step)).or_insert(newest);
            }
            let steps = steps.into_iter().filter_map(|(dir, step)| Some((dir, step?))).collect();
            let progress = CheckpointProgress::InMemory { steps };
            return self
                .link
                .is_up()
                .then_some(Effect::ReportCheckpointProgress { progress })
                .into_iter()
                .collect();
        }
        let last = matches!(self.state, State::Saving { .. });
        self.reports(CheckpointReport::InMemory { shards, last })
    }

    fn join_after_saver(&mut self, now: Moment) -> Vec<Effect> {
        let may_join = matches!(self.state, State::Joining { .. }) && self.link.is_up();
        if may_join { self.request_to_join(now) } else { Vec::new() }
    }

    /// The saver ended by itself, or could not be started.
    pub(super) fn on_saver_ended(&mut self, now: Moment, reason: String) -> Vec<Effect> {
        if self.checkpoints.saver != Saver::Running {
            return Vec::new();
        }
        self.checkpoints.saver = Saver::Lost;
        self.checkpoints.losses = self.checkpoints.losses.saturating_add(1);
        self.checkpoints.shards.clear();
        let was_asked = self.checkpoints.asked.take().is_some();
        let notice = CheckpointNotice::SaverEnded { reason, next: self.next_saver() };
        let mut effects = vec![Effect::Notify(Notice::Checkpoints(notice))];
        effects.extend(self.report(CheckpointReport::Closed));
        if was_asked {
            effects.extend(self.join_after_saver(now));
        }
        effects.extend(self.end_saving());
        effects
    }

    fn next_saver(&self) -> NextSaver {
        match &self.state {
            State::Preparing(_) | State::Running(_) if self.checkpoints.losses >= MOST_LOSSES => {
                NextSaver::NotInThisRound
            }
            State::Preparing(_) | State::Running(_) => {
                NextSaver::AtNextSave { losses: self.checkpoints.losses }
            }
            State::Joining { .. } | State::Stopping { then: AfterStop::Rejoin(_), .. } => {
                NextSaver::WithNextWorkers
            }
            State::Stopping { then: AfterStop::End(outcome), .. } if *outcome != Outcome::Succeeded => {
                NextSaver::InNextRun
            }
            State::Leaving { is_farewell: true, .. } | State::Saving { .. } | State::Done => {
                NextSaver::InNextRun
            }
            // A failure may turn out to be secondary, and a node that is done starts again with the others.
            State::Stopping { .. } | State::AwaitingRootCause { .. } | State::Leaving { .. } => {
                NextSaver::Unknown
            }
        }
    }

    pub(super) fn on_checkpoint_order(&mut self, now: Moment, order: Order) -> Vec<Effect> {
        if self.checkpoints.saver == Saver::Running {
            return vec![tell(order.into())];
        }
        // All ranks of the job wait for the manifest, which a node that is lost may even have written.
        if matches!(order, Order::Commit { .. }) && self.wants_saver() {
            let mut effects = self.on_saver_wanted(now);
            effects.push(tell(order.into()));
            return effects;
        }
        match order {
            Order::Commit { dir, step, .. } => {
                let reason = "the node that was to write the manifest has no saver".to_owned();
                let notice = CheckpointNotice::NoSaver { dir: dir.clone(), step };
                let failed = CheckpointReport::Failed { dir, step, shard: None, saved_in: None, reason };
                let notice = Effect::Notify(Notice::Checkpoints(notice));
                std::iter::once(notice).chain(self.report(failed)).collect()
            }
            // The job knows that the saver has ended, or is told so when one is started.
            Order::Committed { .. }
            | Order::Persist { .. }
            | Order::Fail { .. }
            | Order::Fetch { .. }
            | Order::Fetched { .. }
            | Order::NotFetched { .. } => Vec::new(),
        }
    }

    pub(super) fn checkpoint_deadline(&self) -> Option<Moment> {
        let asks = self.checkpoints.ask_at.filter(|_| self.asks_for_people());
        self.checkpoints.asked.map(|(_, until)| until).into_iter().chain(asks).min()
    }

    /// Whether the saver is asked from time to time: there is no other news of checkpoints that stay in memory.
    fn asks_for_people(&self) -> bool {
        self.checkpoints.saver == Saver::Running
            && matches!(self.state, State::Running(_))
            && self.link.is_up()
    }

    pub(super) fn on_checkpoint_deadline(&mut self, now: Moment) -> Vec<Effect> {
        if self.asks_for_people() && self.checkpoints.ask_at.is_some_and(|at| at <= now) {
            let nodes = self.last.as_ref().map_or(1, |last| last.nodes);
            self.checkpoints.ask_at = Some(now + MEMORY_INTERVAL * nodes.div_ceil(PER_INTERVAL).max(1));
            self.checkpoints.is_for_people = true;
            return vec![tell(ToSaver::Report {})];
        }
        if self.checkpoints.asked.is_none_or(|(_, until)| now < until) {
            return Vec::new();
        }
        self.checkpoints.asked = None;
        // What it said before may have changed since.
        self.checkpoints.shards.clear();
        let notice = CheckpointNotice::NoState { waited: STATE_TIMEOUT };
        let tell = Effect::Notify(Notice::Checkpoints(notice));
        std::iter::once(tell).chain(self.join_after_saver(now)).collect()
    }

    /// The first signal that ends the run counts, also one to the launcher that serves the job master.
    pub(super) fn saver_signalled(&mut self, now: Moment) {
        self.checkpoints.signalled.get_or_insert(now);
    }

    /// What is saved and not on disk is written first; `None`: there is nothing to wait for. After a signal the newest
    /// step in memory is written too, and with `--save-at-breakpoint` after a failure.
    pub(super) fn save_before_end(&mut self, now: Moment, outcome: &Outcome) -> Option<Vec<Effect>> {
        if self.checkpoints.saver != Saver::Running {
            return None;
        }
        let limit = match self.checkpoints.signalled {
            Some(signalled) => {
                let grace = self.limits.shutdown_timeout.saturating_sub(now - signalled);
                grace.max(LEAST_GRACE)
            }
            // No step counts without its word, and it was waited for long enough.
            None if self.link.is_away_for(now, self.limits.join_timeout) => LEAST_GRACE,
            None => SAVE_TIMEOUT,
        };
        let is_breakpoint = self.limits.save_at_breakpoint && !matches!(outcome, Outcome::Succeeded);
        let also_memory = self.checkpoints.signalled.is_some() || is_breakpoint;
        self.checkpoints.asked = None;
        let (outcome, until) = (outcome.clone(), now + limit + ANSWER);
        self.state = State::Saving { outcome, tell: Some(now + TELL_AFTER), until };
        let grace_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Some(vec![tell(ToSaver::Finish { grace_ms, also_memory })])
    }

    /// The round or the job is over for the master: it has forgotten, or not heard, what this node has said of its memory.
    pub(super) fn say_memory_again(&self) -> Vec<Effect> {
        if self.checkpoints.saver == Saver::Running { vec![tell(ToSaver::Report {})] } else { Vec::new() }
    }

    pub(super) fn on_saving_deadline(&mut self, now: Moment) -> Vec<Effect> {
        let State::Saving { tell, until, .. } = &mut self.state else { return Vec::new() };
        if *until <= now {
            return self.give_up_saving();
        }
        let is_due = tell.take_if(|tell| *tell <= now).is_some();
        let notice = Notice::Checkpoints(CheckpointNotice::Saving { limit: *until - now });
        is_due.then_some(Effect::Notify(notice)).into_iter().collect()
    }

    /// The first signal leaves what is being written the time that workers have; the second one ends the wait.
    pub(super) fn on_signalled_while_saving(&mut self, now: Moment, again: bool) -> Vec<Effect> {
        if again {
            return self.give_up_saving();
        }
        if let State::Saving { until, .. } = &mut self.state {
            *until = (*until).min(now + self.limits.shutdown_timeout.max(LEAST_GRACE));
        }
        Vec::new()
    }

    fn on_saver_finished(&mut self) -> Vec<Effect> {
        self.checkpoints.saver = Saver::Closed;
        let mut effects: Vec<Effect> = self.report(CheckpointReport::Closed).into_iter().collect();
        effects.extend(self.end_saving());
        effects
    }

    /// The time for it is over, or a second signal came.
    fn give_up_saving(&mut self) -> Vec<Effect> {
        self.checkpoints.saver = Saver::Closed;
        let notice = Notice::Checkpoints(CheckpointNotice::Unfinished);
        let mut effects = vec![Effect::Notify(notice)];
        effects.extend(self.report(CheckpointReport::Closed));
        effects.extend(self.end_saving());
        effects
    }

    fn end_saving(&mut self) -> Vec<Effect> {
        let State::Saving { outcome, .. } = &self.state else { return Vec::new() };
        let outcome = outcome.clone();
        self.end(outcome)
    }

    fn reports(&self, report: CheckpointReport) -> Vec<Effect> {
        self.report(report).into_iter().collect()
    }

    /// Without a stream it is asked for again when there is one.
    fn report(&self, report: CheckpointReport) -> Option<Effect> {
        self.link.is_up().then(|| Effect::ReportCheckpoint { report: Box::new(report) })
    }
}

fn tell(message: ToSaver) -> Effect {
    Effect::TellSaver { message: Box::new(message) }
}

fn round_of(assignment: &Assignment, memory_is_void: bool) -> ToSaver {
    ToSaver::Round {
        round: assignment.round.0,
        world: assignment.world_size,
        first_rank: assignment.first_rank,
        local_world_size: assignment.local_world_size,
        restore: assignment.restore.clone(),
        memory_is_void,
    }
}
