//! The node's machine: one group of local workers, from joining the job to its end.
//!
//! ```text
//! Joining --Seated--> Preparing --Prepared--> Running --a worker fails, Regroup--> Stopping --TreeGone--> Joining
//!                                               |  all ended well / signal / no restart left       |
//!                                               +---------> Stopping --TreeGone--> Leaving --JobEnded--> Done
//! ```
//!
//! "What happens when a worker dies" is [`WorkerGroup::on_worker_exited`].
//!
//! The stream to the master may break at any time and comes back by itself. The workers do not mind; whatever
//! this node had to say is said again from its state when [`Event::MasterBack`] comes, so no word is lost.

mod generation;
mod master;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::{generation::Generation, master::Link};
use crate::{
    failure::{ExitCause, Failure, GroupFailure, Outcome, WorkerFailure},
    ids::{Attempt, LocalRank, NodeId, Round},
    job::{Claim, NodeEnd, Standing},
    moment::Moment,
    notice::{AfterStop, Notice},
    pending::Pending,
    restart::{self, AfterFailure},
    stop_ladder::{Step, StopLadder},
    verdict::JobVerdict,
    world::Assignment,
};

/// How long a node that failed or was interrupted waits for the master to take note.
pub const FAREWELL_PATIENCE: Duration = Duration::from_secs(10);

/// How long a node that has no restart left waits for the word that its failure followed from another node's. The
/// master has heard of it by then, and answers in milliseconds.
pub const EXCUSE_PATIENCE: Duration = Duration::from_secs(1);

/// How often a person hears that the master is still waited for.
const EVERY: Duration = Duration::from_secs(10);

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
    /// How long a master that is away is waited for once it is needed.
    pub join_timeout: Duration,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The master asks this node to serve the store of a round it completed; on a port of its own, when
    /// somebody may still speak to the last one.
    AskedToHost { round: Round, fresh_port: bool },
    /// The store of that round is open here. Without an address, the master takes the node's own.
    Hosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// The store of that round could not be opened.
    CannotHost { reason: String },
    /// The master completed a round and this node has a seat in it.
    Seated { assignment: Assignment },
    /// Why there is no seat yet.
    Pending(Pending),
    /// The master does not let this node take part.
    Refused { reason: String },
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
    /// The round is over for all its members, and why. With `excuses` that came before any failure of our own
    /// workers, which then followed from it.
    Regroup { round: Round, why: String, excuses: bool },
    /// The job is over.
    JobEnded { verdict: JobVerdict },
    /// A stream to the master is open, for the first time or again.
    MasterBack,
    /// There is none. It is being tried again; another reason may follow.
    MasterAway { reason: String },
    /// The master has taken note of this node's end.
    EndNoted,
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

/// What the shell must do, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Ask the master for a seat, having left this round.
    Join { attempt: Attempt, after: Option<Round> },
    /// Tell the master where this node stands, after the stream was broken.
    Resume { claim: Claim },
    /// Open the store for this round, with nothing in it of any other.
    HostStore { round: Round, fresh_port: bool },
    /// Tell the master where it is.
    ReportHosting { round: Round, master_addr: Option<String>, master_port: u16 },
    /// Tell the master, and so all nodes, that workers failed.
    ReportFailure { round: Round, reason: String, gives_up: bool },
    /// Tell the master that this node has heard of the job's end.
    AcknowledgeEnd,
    /// Make folders, files and pipes for the workers of this round.
    Prepare { assignment: Assignment, attempt: Attempt },
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
    ReportEnd { end: NodeEnd },
    /// Leave. Nothing follows.
    Finish { outcome: Outcome },
}

/// Why workers are being stopped, and so what follows when they are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Then {
    /// Join again as this attempt.
    Rejoin(Attempt),
    /// The failures seen so far, and those seen while stopping, end the run.
    FailWithWorkers { told: Moment },
    /// The run has ended like this already; the stop only clears away what was left.
    End(Outcome),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Joining {
        since: Moment,
    },
    Preparing(Generation),
    Running(Generation),
    Stopping {
        generation: Generation,
        ladder: StopLadder,
        then: Then,
    },
    /// No restart is left and the workers are gone, but the master may yet say that their failure followed from
    /// another node's.
    AwaitingExcuse {
        outcome: Outcome,
        until: Moment,
    },
    /// With `is_farewell` the node goes as soon as the master has taken note; else it waits for the others.
    Leaving {
        outcome: Outcome,
        since: Moment,
        is_farewell: bool,
    },
    Done,
}

/// A store that was asked for, and where it is once it is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hosted {
    round: Round,
    at: Option<(Option<String>, u16)>,
}

/// The node's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerGroup {
    limits: Limits,
    attempt: Attempt,
    interrupted: Option<i32>,
    link: Link,
    /// The last seat.
    last: Option<Assignment>,
    /// All workers of the last seat ended well, and no others have been started since.
    is_done_well: bool,
    hosted: Option<Hosted>,
    /// The round whose failure cost the restart that this node is joining for. Workers may be gone before the master
    /// could say that others' failures had come first.
    charged: Option<Round>,
    /// Processes of some round could not be killed and are still there.
    has_survivors: bool,
    /// The master knows that this node will not come back.
    end_noted: bool,
    state: State,
}

impl WorkerGroup {
    /// A node that has not joined yet. It joins when the stream to the master is open.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            attempt: Attempt(0),
            interrupted: None,
            link: Link::not_yet(),
            last: None,
            is_done_well: false,
            hosted: None,
            charged: None,
            has_survivors: false,
            end_noted: false,
            state: State::Joining { since: Moment::START },
        }
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        match &self.state {
            // While the stream stands, the master holds the deadline of a rendezvous.
            State::Joining { since } => {
                let (due, told) = self.away_until(*since)?;
                Some(due.min(told))
            }
            State::Preparing(_) | State::Running(_) | State::Done => None,
            State::Stopping { ladder, .. } => Some(ladder.deadline()),
            State::AwaitingExcuse { until, .. } => Some(*until),
            State::Leaving { since, is_farewell: true, .. } => Some(*since + FAREWELL_PATIENCE),
            State::Leaving { since, is_farewell: false, .. } => self.away_until(*since).map(|(due, _)| due),
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
            Event::AskedToHost { round, fresh_port } => self.on_asked_to_host(round, fresh_port),
            Event::Hosting { round, master_addr, master_port } => {
                self.on_hosting(round, master_addr, master_port)
            }
            Event::CannotHost { reason } => self.leave(now, Outcome::Failed(Failure::Store { reason })),
            Event::Seated { assignment } => self.on_seated(assignment),
            Event::Pending(pending) => vec![Effect::Tell(Notice::Pending(pending))],
            Event::Refused { reason } => self.on_refused(now, reason),
            Event::Prepared { round } => self.on_prepared(now, round),
            Event::CannotPrepare { reason, .. } => {
                self.leave(now, Outcome::Failed(Failure::Start { local_rank: LocalRank(0), reason }))
            }
            Event::CannotStart { round, local_rank, reason } => {
                let failure = Failure::Start { local_rank, reason };
                let reason = failure.to_string();
                let mut effects = vec![Effect::ReportFailure { round, reason, gives_up: true }];
                effects.extend(self.stop(now, SIGTERM, Then::End(Outcome::Failed(failure))));
                effects
            }
            Event::WorkerStarted { .. } => Vec::new(),
            Event::WorkerExited { exit, .. } => self.on_worker_exited(now, exit),
            Event::TreeGone { .. } => self.on_tree_gone(now),
            Event::Signalled { signal } => self.on_signalled(now, signal),
            Event::Forwarded { signal } => self.on_forwarded(signal),
            Event::Regroup { why, excuses, .. } => self.on_regroup(now, why, excuses),
            Event::JobEnded { verdict } => self.on_job_ended(now, verdict),
            Event::MasterBack => self.on_master_back(),
            Event::MasterAway { reason } => self.on_master_away(now, reason),
            Event::EndNoted => self.on_end_noted(),
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
            Event::Regroup { round, excuses, .. } if matches!(self.state, State::Joining { .. }) => {
                return !excuses || self.charged != Some(*round);
            }
            Event::Regroup { round, .. } => (*round, true),
            Event::WorkerStarted { round, .. }
            | Event::WorkerExited { round, .. }
            | Event::TreeGone { round } => {
                (*round, matches!(self.state, State::Running(_) | State::Stopping { .. }))
            }
            Event::Seated { assignment } => {
                let is_new = self.last.as_ref().is_none_or(|last| last.round < assignment.round);
                return !is_new || !matches!(self.state, State::Joining { .. });
            }
            Event::AskedToHost { .. }
            | Event::Hosting { .. }
            | Event::CannotHost { .. }
            | Event::Pending(_) => {
                return !matches!(self.state, State::Joining { .. });
            }
            Event::Signalled { .. }
            | Event::Forwarded { .. }
            | Event::Refused { .. }
            | Event::JobEnded { .. }
            | Event::MasterBack
            | Event::MasterAway { .. }
            | Event::EndNoted
            | Event::GuardDied { .. }
            | Event::Deadline => return matches!(self.state, State::Done),
        };
        !allowed || self.round() != Some(round)
    }

    /// The round that this node has, or had, its last seat in.
    fn round(&self) -> Option<Round> {
        match &self.state {
            State::Joining { .. } | State::Done => None,
            State::Preparing(_)
            | State::Running(_)
            | State::Stopping { .. }
            | State::AwaitingExcuse { .. }
            | State::Leaving { .. } => self.last.as_ref().map(|last| last.round),
        }
    }

    fn on_seated(&mut self, assignment: Assignment) -> Vec<Effect> {
        let generation = Generation {
            alive: (0..assignment.local_world_size).map(LocalRank).collect(),
            assignment: assignment.clone(),
            failures: Vec::new(),
        };
        let had_others = self.last.as_ref().is_some_and(|last| last.nodes > 1);
        self.last = Some(assignment.clone());
        self.is_done_well = false;
        self.hosted = None;
        self.charged = None;
        self.state = State::Preparing(generation);
        // A node that has always been alone has nothing to tell. The files first: words cost time.
        let tell =
            (assignment.nodes > 1 || had_others).then(|| Effect::Tell(Notice::Seated(assignment.clone())));
        let mut effects = vec![Effect::Prepare { assignment, attempt: self.attempt }];
        effects.extend(tell);
        effects
    }

    fn on_prepared(&mut self, now: Moment, round: Round) -> Vec<Effect> {
        let joining = State::Joining { since: now };
        let State::Preparing(generation) = std::mem::replace(&mut self.state, joining) else {
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
                None if generation.alive.is_empty() => {
                    self.is_done_well = true;
                    self.stop(now, SIGTERM, Then::End(Outcome::Succeeded))
                }
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
            State::Joining { .. }
            | State::Preparing(_)
            | State::AwaitingExcuse { .. }
            | State::Leaving { .. }
            | State::Done => Vec::new(),
        }
    }

    fn on_first_failure(&mut self, now: Moment, failure: WorkerFailure) -> Vec<Effect> {
        let max_restarts = self.limits.max_restarts;
        let (then, after) = match restart::after_failure(max_restarts, self.attempt) {
            AfterFailure::Restart(next) => (Then::Rejoin(next), AfterStop::Restart { next, max_restarts }),
            AfterFailure::GiveUp => (Then::FailWithWorkers { told: now }, AfterStop::Fail),
        };
        let (reason, gives_up) = (failure.to_string(), matches!(then, Then::FailWithWorkers { .. }));
        let notice = Notice::WorkerFailed { failure, attempt: self.attempt, then: after };
        let mut effects = vec![Effect::Tell(notice)];
        // The other nodes' workers hang in the next collective too, so they are told before ours are gone.
        effects.extend(self.round().map(|round| Effect::ReportFailure { round, reason, gives_up }));
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
                self.join(now, attempt)
            }
            Then::FailWithWorkers { told } => {
                let until = *told + EXCUSE_PATIENCE;
                let failures = std::mem::take(&mut generation.failures);
                let failure = GroupFailure { attempt: self.attempt, failures };
                let outcome = Outcome::Failed(Failure::Workers(failure));
                if now >= until || self.has_survivors || self.end_noted || !self.link.is_up() {
                    return self.leave(now, outcome);
                }
                self.state = State::AwaitingExcuse { outcome, until };
                Vec::new()
            }
            Then::End(outcome) => {
                let outcome = outcome.clone();
                self.leave(now, outcome)
            }
        }
    }

    fn join(&mut self, now: Moment, attempt: Attempt) -> Vec<Effect> {
        self.charged = self.last.as_ref().map(|last| last.round).filter(|_| attempt != self.attempt);
        self.attempt = attempt;
        self.state = State::Joining { since: now };
        self.link.needed(now);
        match self.link {
            Link::Up => vec![self.join_effect()],
            Link::Away { .. } => Vec::new(),
        }
    }

    fn join_effect(&self) -> Effect {
        Effect::Join { attempt: self.attempt, after: self.last.as_ref().map(|last| last.round) }
    }

    fn on_signalled(&mut self, now: Moment, signal: i32) -> Vec<Effect> {
        let again = self.interrupted.replace(signal).is_some();
        let left = Effect::ReportEnd { end: NodeEnd::Left { signal } };
        match &mut self.state {
            State::Joining { .. } | State::Preparing(_) => {
                let outcome = self.or_done(Outcome::Interrupted(signal));
                self.say_farewell(now, outcome)
            }
            State::Running(_) => {
                let grace = self.limits.shutdown_timeout;
                // Announced before the workers are gone, so that the others need not wait for that.
                let mut effects = vec![Effect::Tell(Notice::Stopping { signal, grace }), left];
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
                    return vec![left];
                }
                Vec::new()
            }
            State::Leaving { outcome, is_farewell, since } if !*is_farewell && !again => {
                // Its work is done, but the others' is not: they must not take it for lost.
                debug_assert_eq!(*outcome, Outcome::Succeeded);
                (*is_farewell, *since) = (true, now);
                vec![left]
            }
            State::AwaitingExcuse { outcome, .. } | State::Leaving { outcome, .. } => {
                let outcome = outcome.clone();
                self.finish(outcome)
            }
            State::Done => Vec::new(),
        }
    }

    fn on_forwarded(&self, signal: i32) -> Vec<Effect> {
        match self.state {
            State::Running(_) | State::Stopping { .. } => vec![Effect::SignalWorkers { signal }],
            State::Joining { .. }
            | State::Preparing(_)
            | State::AwaitingExcuse { .. }
            | State::Leaving { .. }
            | State::Done => Vec::new(),
        }
    }

    /// Another node's failure, loss or arrival does not spend this node's restarts.
    fn on_regroup(&mut self, now: Moment, why: String, excuses: bool) -> Vec<Effect> {
        let attempt = self.attempt;
        let tell = Effect::Tell(Notice::Regrouping { why: why.clone() });
        let then = match &mut self.state {
            State::Leaving { is_farewell: false, .. } if self.has_survivors => {
                self.leave(now, Outcome::Failed(Failure::Unkillable))
            }
            // Nothing has been started, or all of it has ended well.
            State::Preparing(_) | State::Leaving { is_farewell: false, .. } => self.join(now, attempt),
            State::Running(_) => self.stop(now, SIGTERM, Then::Rejoin(attempt)),
            State::Stopping { then, .. }
                if *then == Then::End(Outcome::Succeeded) && self.interrupted.is_none() =>
            {
                *then = Then::Rejoin(attempt);
                Vec::new()
            }
            // Our workers failed because their peers had: no restart is spent on that.
            State::Stopping { then, .. }
                if excuses && is_own_failure(then, attempt) && self.interrupted.is_none() =>
            {
                *then = Then::Rejoin(attempt);
                return vec![Effect::Tell(Notice::Excused { why })];
            }
            // The same, with no restart left.
            State::AwaitingExcuse { .. } if excuses => {
                let excused = Effect::Tell(Notice::Excused { why });
                return std::iter::once(excused).chain(self.join(now, attempt)).collect();
            }
            // The same, heard after the workers were gone.
            State::Joining { .. } => {
                self.charged = None;
                self.attempt = Attempt(attempt.0.saturating_sub(1));
                return vec![Effect::Tell(Notice::Excused { why })];
            }
            State::Stopping { .. } | State::AwaitingExcuse { .. } | State::Leaving { .. } | State::Done => {
                return Vec::new();
            }
        };
        std::iter::once(tell).chain(then).collect()
    }

    fn on_guard_died(&mut self, now: Moment, cause: ExitCause) -> Vec<Effect> {
        let died = Outcome::Failed(Failure::GuardDied { cause });
        match &self.state {
            State::Joining { .. } | State::Preparing(_) | State::Running(_) => self.leave(now, died),
            State::Stopping { then: Then::Rejoin(_), .. } => self.leave(now, died),
            // The outcome was settled before, and the shell has cleared the rest away.
            State::Stopping { .. } => self.on_tree_gone(now),
            State::AwaitingExcuse { .. } | State::Leaving { .. } | State::Done => Vec::new(),
        }
    }

    fn on_deadline(&mut self, now: Moment) -> Vec<Effect> {
        match &mut self.state {
            State::Stopping { ladder, then, .. } => match ladder.expired(now) {
                None => Vec::new(),
                Some(Step::Kill) => vec![Effect::KillTree],
                Some(Step::GiveUp) => {
                    self.has_survivors = true;
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
            State::AwaitingExcuse { outcome, until } if *until <= now => {
                let outcome = outcome.clone();
                self.leave(now, outcome)
            }
            State::AwaitingExcuse { .. } => Vec::new(),
            State::Leaving { .. } | State::Joining { .. } => self.on_patience_over(now),
            State::Preparing(_) | State::Running(_) | State::Done => Vec::new(),
        }
    }

    /// A node whose work is done waits for the others, unless the job is over; any other goes as soon as the
    /// master knows.
    fn leave(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        if outcome != Outcome::Succeeded || self.interrupted.is_some() || self.end_noted {
            return self.say_farewell(now, outcome);
        }
        self.link.needed(now);
        let end = self.end_of(&outcome);
        self.state = State::Leaving { outcome, since: now, is_farewell: false };
        match self.link {
            Link::Up => end.map(|end| Effect::ReportEnd { end }).into_iter().collect(),
            Link::Away { .. } => Vec::new(),
        }
    }

    fn say_farewell(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        if self.end_noted || !self.link.is_up() {
            return self.finish(outcome);
        }
        let end = self.end_of(&outcome);
        self.state = State::Leaving { outcome, since: now, is_farewell: true };
        end.map(|end| Effect::ReportEnd { end }).into_iter().collect()
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.state = State::Done;
        vec![Effect::Finish { outcome }]
    }
}

/// Whether the workers are stopped because one of them failed.
fn is_own_failure(then: &Then, attempt: Attempt) -> bool {
    match then {
        Then::Rejoin(next) => *next != attempt,
        Then::FailWithWorkers { .. } => true,
        Then::End(_) => false,
    }
}
