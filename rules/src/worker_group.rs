//! The node's machine: one group of local workers, from joining the job to its end.
//!
//! ```text
//! Joining --Seated--> Preparing --Prepared--> Running --a worker fails--> Stopping --TreeGone--> Joining (restart)
//!                                               |  all ended well / signal / no restart left       |
//!                                               +---------> Stopping --TreeGone--> Leaving --JobEnded--> Done
//! ```
//!
//! "What happens when a worker dies" is [`WorkerGroup::on_worker_exited`].

mod generation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::generation::Generation;
use crate::{
    failure::{ExitCause, Failure, GroupFailure, Outcome, WorkerFailure},
    ids::{Attempt, LocalRank, NodeId, NodeRank, Round},
    moment::Moment,
    notice::{AfterStop, Notice},
    restart::{self, AfterFailure},
    stop_ladder::{Step, StopLadder},
    world::World,
};

/// How long a node whose workers ended well waits for the others. torchrun's exit barrier: 300 s.
pub const EXIT_BARRIER: Duration = Duration::from_secs(300);

/// How long a node that failed or was interrupted waits for the master to take note.
pub const FAREWELL_PATIENCE: Duration = Duration::from_secs(10);

const SIGTERM: i32 = 15;

/// What this node was told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// This launcher.
    pub node_id: NodeId,
    /// Restarts after the first attempt.
    pub max_restarts: u32,
    /// Time between the polite signal and SIGKILL.
    pub shutdown_timeout: Duration,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The master asks this node to serve the store of a round it completed.
    AskedToHost { round: Round },
    /// The store of that round could not be opened.
    CannotHost { reason: String },
    /// The master completed a round and this node has a seat in it.
    Seated { world: World },
    /// Folders, files and pipes of the round's workers are ready.
    Prepared { round: Round },
    /// They could not be made ready.
    CannotPrepare { round: Round, reason: String },
    /// A worker could not be started. No further worker of the round was.
    CannotStart { round: Round, local_rank: LocalRank, reason: String },
    /// A worker runs. For the record: nothing follows from it.
    WorkerStarted { round: Round, local_rank: LocalRank, pid: i32 },
    /// A worker ended.
    WorkerExited { round: Round, exit: WorkerExit },
    /// Of all that the round's workers ever started, no process is left.
    TreeGone { round: Round },
    /// Somebody asked the launcher to end, by this signal.
    Signalled { signal: i32 },
    /// A signal that workers want to see and that does not end the run (SIGUSR1, SIGUSR2).
    Forwarded { signal: i32 },
    /// Another member of the round rejoins, so all do.
    Regroup { round: Round },
    /// The job is over.
    JobEnded { verdict: JobVerdict },
    /// The master cannot be reached, or refused this node.
    MasterLost { reason: String },
    /// The guard process died; the shell has already cleared away whatever was left of the workers.
    GuardDied { cause: ExitCause },
    /// The moment of [`WorkerGroup::deadline`] has come.
    Deadline,
}

/// A worker's end, as the shell saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerExit {
    /// Which worker.
    pub local_rank: LocalRank,
    /// Its process id.
    pub pid: i32,
    /// How it ended.
    pub cause: ExitCause,
    /// When, in whole seconds since 1970.
    pub unix_secs: i64,
    /// The kernel's out-of-memory killer was at work and this worker died of SIGKILL.
    pub out_of_memory: bool,
}

/// How the whole job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobVerdict {
    /// Every node's workers ended well.
    Succeeded,
    /// A node gave up.
    Failed { node: NodeId, reason: String },
}

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask the master for a seat.
    Join { attempt: Attempt },
    /// Give the store a fresh key space for this round and tell the master where it is.
    HostStore { round: Round },
    /// Make folders, files and pipes for the workers of this round.
    Prepare { world: World, seat: NodeRank, attempt: Attempt },
    /// Start the workers that were prepared.
    Spawn { round: Round },
    /// Send a signal to every process the workers have started, and to the workers.
    SignalTree { signal: i32 },
    /// Send a signal to the workers alone.
    SignalWorkers { signal: i32 },
    /// SIGKILL to every process the workers have started, and to the workers.
    KillTree,
    /// The processes that are left cannot be killed: say so at the end, and go on without waiting for them.
    AbandonTree,
    /// Tell a person.
    Tell(Notice),
    /// Tell the master how this node's part ended.
    ReportEnd { outcome: Outcome },
    /// Leave. Nothing follows.
    Finish { outcome: Outcome },
}

/// Why workers are being stopped, and so what follows when they are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Then {
    /// Join again as this attempt.
    Rejoin(Attempt),
    /// The failures seen so far, and those seen while stopping, end the run.
    FailWithWorkers,
    /// The run has ended like this already; the stop only clears away what was left.
    End(Outcome),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Joining,
    Preparing(Generation),
    Running(Generation),
    Stopping { generation: Generation, ladder: StopLadder, then: Then },
    Leaving { outcome: Outcome, until: Moment },
    Done,
}

/// The node's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerGroup {
    limits: Limits,
    attempt: Attempt,
    interrupted: Option<i32>,
    /// Why there is no master any more, if that was heard while nothing was asked of one.
    master_lost: Option<String>,
    state: State,
}

impl WorkerGroup {
    /// A node that has not joined yet, and what to do first.
    #[must_use]
    pub fn new(limits: Limits) -> (Self, Vec<Effect>) {
        let attempt = Attempt(0);
        let group = Self { limits, attempt, interrupted: None, master_lost: None, state: State::Joining };
        (group, vec![Effect::Join { attempt }])
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        match &self.state {
            // The master holds the deadline of a rendezvous, and a lost master is an event.
            State::Joining | State::Preparing(_) | State::Running(_) | State::Done => None,
            State::Stopping { ladder, .. } => Some(ladder.deadline()),
            State::Leaving { until, .. } => Some(*until),
        }
    }

    /// The attempt that runs or ran last.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// What to do about `event`.
    #[must_use = "an effect not carried out leaves the workers and this state apart"]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        if self.is_stale(&event) {
            return Vec::new();
        }
        match event {
            Event::AskedToHost { round } => vec![Effect::HostStore { round }],
            Event::CannotHost { reason } => self.leave(now, Outcome::Failed(Failure::Store { reason })),
            Event::Seated { world } => self.on_seated(now, world),
            Event::Prepared { round } => self.on_prepared(round),
            Event::CannotPrepare { reason, .. } => {
                self.leave(now, Outcome::Failed(Failure::Start { local_rank: LocalRank(0), reason }))
            }
            Event::CannotStart { local_rank, reason, .. } => {
                let outcome = Outcome::Failed(Failure::Start { local_rank, reason });
                self.stop(now, SIGTERM, Then::End(outcome))
            }
            Event::WorkerStarted { .. } => Vec::new(),
            Event::WorkerExited { exit, .. } => self.on_worker_exited(now, exit),
            Event::TreeGone { .. } => self.on_tree_gone(now),
            Event::Signalled { signal } => self.on_signalled(now, signal),
            Event::Forwarded { signal } => self.on_forwarded(signal),
            Event::Regroup { .. } => self.on_regroup(now),
            Event::JobEnded { verdict } => self.on_job_ended(now, verdict),
            Event::MasterLost { reason } => self.on_master_lost(reason),
            Event::GuardDied { cause } => self.on_guard_died(now, cause),
            Event::Deadline => self.on_deadline(now),
        }
    }

    /// Late word of a round that is over, or that the present state has no use for.
    fn is_stale(&self, event: &Event) -> bool {
        let (round, allowed) = match event {
            Event::Prepared { round } | Event::CannotPrepare { round, .. } => {
                (*round, matches!(self.state, State::Preparing(_)))
            }
            Event::CannotStart { round, .. } => (*round, matches!(self.state, State::Running(_))),
            Event::Regroup { round } => {
                (*round, matches!(self.state, State::Preparing(_) | State::Running(_)))
            }
            Event::WorkerStarted { round, .. }
            | Event::WorkerExited { round, .. }
            | Event::TreeGone { round } => {
                (*round, matches!(self.state, State::Running(_) | State::Stopping { .. }))
            }
            Event::AskedToHost { .. } | Event::CannotHost { .. } | Event::Seated { .. } => {
                return !matches!(self.state, State::Joining);
            }
            Event::Signalled { .. }
            | Event::Forwarded { .. }
            | Event::JobEnded { .. }
            | Event::MasterLost { .. }
            | Event::GuardDied { .. }
            | Event::Deadline => return matches!(self.state, State::Done),
        };
        !allowed || self.round() != Some(round)
    }

    fn round(&self) -> Option<Round> {
        match &self.state {
            State::Preparing(generation)
            | State::Running(generation)
            | State::Stopping { generation, .. } => Some(generation.round()),
            State::Joining | State::Leaving { .. } | State::Done => None,
        }
    }

    fn on_seated(&mut self, now: Moment, world: World) -> Vec<Effect> {
        let Some(seat) = world.seat_of(&self.limits.node_id) else {
            let reason = format!("the master gave round {} without a seat for this node", world.round);
            return self.leave(now, Outcome::Failed(Failure::Master { reason }));
        };
        let local_world_size = world.members[seat.0 as usize].local_world_size;
        let generation = Generation {
            world: world.clone(),
            seat,
            alive: (0..local_world_size).map(LocalRank).collect(),
            failures: Vec::new(),
        };
        self.state = State::Preparing(generation);
        vec![Effect::Prepare { world, seat, attempt: self.attempt }]
    }

    fn on_prepared(&mut self, round: Round) -> Vec<Effect> {
        let State::Preparing(generation) = std::mem::replace(&mut self.state, State::Joining) else {
            unreachable!("is_stale lets Prepared through in Preparing only");
        };
        self.state = State::Running(generation);
        vec![Effect::Spawn { round }]
    }

    /// One worker's failure ends the group: its peers would hang in the next collective, so they are
    /// stopped too, and all are started again while restarts remain. The last good end ends the group too.
    fn on_worker_exited(&mut self, now: Moment, exit: WorkerExit) -> Vec<Effect> {
        match &mut self.state {
            State::Running(generation) => match generation.took_note_of(&exit) {
                None if generation.alive.is_empty() => self.stop(now, SIGTERM, Then::End(Outcome::Succeeded)),
                None => Vec::new(),
                Some(failure) => self.on_first_failure(now, failure),
            },
            State::Stopping { generation, ladder, .. } => {
                // Ends of workers that were asked to end still belong in the report.
                let _listed = generation.took_note_of(&exit);
                if generation.alive.is_empty() {
                    ladder.leaders_gone(now);
                }
                Vec::new()
            }
            State::Joining | State::Preparing(_) | State::Leaving { .. } | State::Done => Vec::new(),
        }
    }

    fn on_first_failure(&mut self, now: Moment, failure: WorkerFailure) -> Vec<Effect> {
        let max_restarts = self.limits.max_restarts;
        let (then, after) = match restart::after_failure(max_restarts, self.attempt) {
            AfterFailure::Restart(next) => (Then::Rejoin(next), AfterStop::Restart { next, max_restarts }),
            AfterFailure::GiveUp => (Then::FailWithWorkers, AfterStop::Fail),
        };
        let notice = Notice::WorkerFailed { failure, attempt: self.attempt, then: after };
        let mut effects = vec![Effect::Tell(notice)];
        effects.extend(self.stop(now, SIGTERM, then));
        effects
    }

    /// Ends the running group politely; `then` follows when no process of it is left.
    fn stop(&mut self, now: Moment, signal: i32, then: Then) -> Vec<Effect> {
        let State::Running(generation) = std::mem::replace(&mut self.state, State::Done) else {
            unreachable!("only a running group is stopped");
        };
        let mut ladder = StopLadder::asked(now, self.limits.shutdown_timeout);
        if generation.alive.is_empty() {
            ladder.leaders_gone(now);
        }
        self.state = State::Stopping { generation, ladder, then };
        vec![Effect::SignalTree { signal }]
    }

    fn on_tree_gone(&mut self, now: Moment) -> Vec<Effect> {
        // Every worker's end is told before the tree's, so a running group cannot lose its tree.
        let State::Stopping { generation, then, .. } = &mut self.state else {
            return Vec::new();
        };
        match then {
            Then::Rejoin(attempt) => {
                let attempt = *attempt;
                self.join(attempt)
            }
            Then::FailWithWorkers => {
                let failures = std::mem::take(&mut generation.failures);
                let failure = GroupFailure { attempt: self.attempt, failures };
                self.leave(now, Outcome::Failed(Failure::Workers(failure)))
            }
            Then::End(outcome) => {
                let outcome = outcome.clone();
                self.leave(now, outcome)
            }
        }
    }

    fn join(&mut self, attempt: Attempt) -> Vec<Effect> {
        if let Some(reason) = self.master_lost.take() {
            return self.finish(Outcome::Failed(Failure::Master { reason }));
        }
        self.attempt = attempt;
        self.state = State::Joining;
        vec![Effect::Join { attempt }]
    }

    fn on_signalled(&mut self, now: Moment, signal: i32) -> Vec<Effect> {
        let again = self.interrupted.replace(signal).is_some();
        match &mut self.state {
            State::Joining | State::Preparing(_) => self.leave(now, Outcome::Interrupted(signal)),
            State::Running(_) => {
                let grace = self.limits.shutdown_timeout;
                let mut effects = vec![Effect::Tell(Notice::Stopping { signal, grace })];
                effects.extend(self.stop(now, signal, Then::End(Outcome::Interrupted(signal))));
                effects
            }
            State::Stopping { ladder, .. } if again => match ladder.hurry(now) {
                Some(_) => vec![Effect::Tell(Notice::Killing), Effect::KillTree],
                None => Vec::new(),
            },
            State::Stopping { then, .. } => {
                // The workers were asked to end already; only what follows changes.
                if matches!(then, Then::Rejoin(_)) {
                    *then = Then::End(Outcome::Interrupted(signal));
                }
                Vec::new()
            }
            State::Leaving { outcome, .. } => {
                let outcome = outcome.clone();
                self.finish(outcome)
            }
            State::Done => Vec::new(),
        }
    }

    fn on_forwarded(&self, signal: i32) -> Vec<Effect> {
        match self.state {
            State::Running(_) | State::Stopping { .. } => vec![Effect::SignalWorkers { signal }],
            State::Joining | State::Preparing(_) | State::Leaving { .. } | State::Done => Vec::new(),
        }
    }

    fn on_regroup(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects = vec![Effect::Tell(Notice::Regrouping)];
        // Another node's failure does not spend this node's restarts.
        effects.extend(match self.state {
            // Nothing has been started, and what is being prepared is late word of an old round.
            State::Preparing(_) => self.join(self.attempt),
            State::Running(_)
            | State::Joining
            | State::Stopping { .. }
            | State::Leaving { .. }
            | State::Done => self.stop(now, SIGTERM, Then::Rejoin(self.attempt)),
        });
        effects
    }

    fn on_job_ended(&mut self, now: Moment, verdict: JobVerdict) -> Vec<Effect> {
        let elsewhere = |verdict| match verdict {
            JobVerdict::Succeeded => Outcome::Succeeded,
            JobVerdict::Failed { node, reason } => Outcome::Failed(Failure::Elsewhere { node, reason }),
        };
        match &mut self.state {
            State::Joining | State::Preparing(_) => self.finish(elsewhere(verdict)),
            State::Running(_) => self.stop(now, SIGTERM, Then::End(elsewhere(verdict))),
            State::Stopping { then, .. } => {
                if matches!(then, Then::Rejoin(_)) {
                    *then = Then::End(elsewhere(verdict));
                }
                Vec::new()
            }
            State::Leaving { outcome, .. } => {
                let outcome = outcome.clone();
                self.finish(outcome)
            }
            State::Done => Vec::new(),
        }
    }

    fn on_master_lost(&mut self, reason: String) -> Vec<Effect> {
        match &self.state {
            State::Joining | State::Preparing(_) => self.finish(Outcome::Failed(Failure::Master { reason })),
            // Training needs no master until something changes.
            State::Running(_) | State::Stopping { .. } => {
                self.master_lost = Some(reason);
                Vec::new()
            }
            State::Done => Vec::new(),
            State::Leaving { outcome, .. } => {
                let outcome = outcome.clone();
                self.finish(outcome)
            }
        }
    }

    fn on_guard_died(&mut self, now: Moment, cause: ExitCause) -> Vec<Effect> {
        let died = Outcome::Failed(Failure::GuardDied { cause });
        match &self.state {
            State::Joining | State::Preparing(_) | State::Running(_) => self.leave(now, died),
            State::Stopping { then: Then::Rejoin(_), .. } => self.leave(now, died),
            // The outcome was settled before, and the shell has cleared the rest away.
            State::Stopping { .. } => self.on_tree_gone(now),
            State::Leaving { .. } | State::Done => Vec::new(),
        }
    }

    fn on_deadline(&mut self, now: Moment) -> Vec<Effect> {
        match &mut self.state {
            State::Stopping { ladder, then, .. } => match ladder.expired(now) {
                None => Vec::new(),
                Some(Step::Kill) => vec![Effect::KillTree],
                Some(Step::GiveUp) => {
                    // New workers next to unkillable ones would fight over the same devices. Any other end stays
                    // what it is.
                    if matches!(then, Then::Rejoin(_)) {
                        *then = Then::End(Outcome::Failed(Failure::Unkillable));
                    }
                    let mut effects = vec![Effect::AbandonTree];
                    effects.extend(self.on_tree_gone(now));
                    effects
                }
            },
            State::Leaving { outcome, until } if *until <= now => {
                let outcome = outcome.clone();
                self.finish(outcome)
            }
            State::Leaving { .. }
            | State::Joining
            | State::Preparing(_)
            | State::Running(_)
            | State::Done => Vec::new(),
        }
    }

    fn leave(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        if self.master_lost.is_some() {
            return self.finish(outcome);
        }
        let patience = if outcome == Outcome::Succeeded { EXIT_BARRIER } else { FAREWELL_PATIENCE };
        self.state = State::Leaving { outcome: outcome.clone(), until: now + patience };
        vec![Effect::ReportEnd { outcome }]
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.state = State::Done;
        vec![Effect::Finish { outcome }]
    }
}
