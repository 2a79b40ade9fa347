//! The node's state machine: one group of local workers, from joining the job to its end.
//!
//! ```text
//! Joining --Assigned--> Preparing --Prepared--> Running --a worker fails, Regroup--> Stopping --TreeGone--> Joining
//!                                               |  all succeeded / signal / no restart left        |
//!                                               +---------> Stopping --TreeGone--> Leaving --JobEnded--> Done
//! ```
//!
//! "What happens when a worker dies" is [`WorkerGroup::on_worker_exited`]. The ways into a state have their own files:
//! `starting`, `stopping`, `leaving`.
//!
//! The stream to the master may break at any time and comes back by itself. The workers are not affected; what this
//! node had to report is sent again from its state on [`Event::MasterBack`], so no message is lost.

mod checkpoints;
mod checks;
mod dumps;
mod event;
mod fencing;
mod inventory;
mod leaving;
mod local_workers;
mod master;
mod progress;
mod regroup;
mod share_watch;
mod stale_events;
mod starting;
mod stopping;
#[cfg(test)]
mod tests;
mod warm;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::checkpoints::{SAVE_TIMEOUT, STATE_TIMEOUT};
pub use self::event::{Effect, Event, Limits, WorkerExit};
use self::{
    checkpoints::Checkpoints, checks::Checks, dumps::Dumps, inventory::Accelerators,
    local_workers::LocalWorkers, master::MasterStream, progress::WorkersProgress, stopping::AfterStop,
    warm::Warm,
};
use crate::{
    failure::{Failure, Outcome, WorkerFailure},
    fence::{Fence, FenceFinding},
    ids::{Attempt, LocalRank, Round},
    job::{Claim, NodeEnd, WorkersState},
    notice::{Notice, RestartDecision},
    push::Push,
    restart::{self, AfterFailure},
    root_cause::RootCause,
    start_watch::StartWatch,
    stop_sequence::StopSequence,
    world::Assignment,
};
use diagnosis::moment::Moment;

/// How long a node that failed or was interrupted waits for the master's acknowledgement.
pub const FAREWELL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a node without restarts left waits for the message that its failure is secondary, or for the end of the job.
/// The master knows of the failure by then. It answers in milliseconds, or withholds the end until it has the root
/// cause: [`crate::job::DETAIL_TIMEOUT`].
pub const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a wait for the master is reported.
const EVERY: Duration = Duration::from_secs(10);

const SIGTERM: i32 = 15;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Joining {
        since: Moment,
    },
    Preparing(LocalWorkers),
    Running(LocalWorkers),
    Stopping {
        workers: LocalWorkers,
        sequence: StopSequence,
        then: AfterStop,
    },
    /// No restart is left and the workers are gone, but the master may yet report that their failure is secondary.
    AwaitingRootCause {
        outcome: Outcome,
        until: Moment,
    },
    /// With `is_farewell` the node exits as soon as the master has acknowledged; else it waits for the others.
    Leaving {
        outcome: Outcome,
        since: Moment,
        is_farewell: bool,
    },
    /// Everything is settled, and the saver writes to disk what is not there yet.
    Saving {
        outcome: Outcome,
        /// When it is said that this takes time; `None`: it was.
        tell: Option<Moment>,
        until: Moment,
    },
    Done,
}

/// A store that was requested, and its address once it is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hosted {
    round: Round,
    at: Option<(Option<String>, u16)>,
}

/// The node's state machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerGroup {
    limits: Limits,
    attempt: Attempt,
    interrupted: Option<i32>,
    link: MasterStream,
    /// The last assignment.
    last: Option<Assignment>,
    /// All workers of the last assignment exited with code 0, and no others have been started since.
    is_done_well: bool,
    hosted: Option<Hosted>,
    /// The round whose failure used the restart that this node is joining for. Workers may be gone before the master
    /// reports that another node failed first.
    charged: Option<Round>,
    /// Why no further workers can be started here: some could not be killed, or the guard died.
    cannot_start: Option<Failure>,
    /// The master knows that this node will not come back.
    end_noted: bool,
    checks: Checks,
    accelerators: Accelerators,
    /// When the last message was sent that the master has answered.
    last_answered: Moment,
    /// The lease of the workers of the last assignment.
    fence: Option<Fence>,
    /// The result of asking the jurors since then.
    finding: Option<FenceFinding>,
    /// The user was notified that the master counts as dead.
    is_death_shown: bool,
    /// The last round that is over: the node was assigned to a later one.
    over: Option<Round>,
    start_watch: StartWatch,
    progress: WorkersProgress,
    /// The user was notified that no worker shows progress.
    is_missing_progress_shown: bool,
    dumps: Dumps,
    warm: Warm,
    checkpoints: Checkpoints,
    /// The failure that ended the job, as the master has it.
    root_cause: Option<Box<RootCause>>,
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
            link: MasterStream::not_yet(),
            last: None,
            is_done_well: false,
            hosted: None,
            charged: None,
            cannot_start: None,
            end_noted: false,
            checks: Checks::default(),
            accelerators: Accelerators::default(),
            last_answered: Moment::START,
            fence: None,
            finding: None,
            is_death_shown: false,
            over: None,
            start_watch: StartWatch::default(),
            progress: WorkersProgress::default(),
            is_missing_progress_shown: false,
            dumps: Dumps::default(),
            warm: Warm::default(),
            checkpoints: Checkpoints::default(),
            root_cause: None,
            state: State::Joining { since: Moment::START },
        }
    }

    /// When to call [`Self::handle`] with [`Event::Deadline`], if nothing else happens first.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        let start = self.start_watch.deadline().filter(|_| matches!(self.state, State::Running(_)));
        let due = [
            self.state_deadline(),
            self.fence_deadline(),
            start,
            self.warm_deadline(),
            self.checkpoint_deadline(),
        ];
        due.into_iter().flatten().min()
    }

    fn state_deadline(&self) -> Option<Moment> {
        match &self.state {
            // While the stream is open, the master has the deadline of the rendezvous.
            State::Joining { since } => {
                let (due, next_notice) = self.away_until(*since)?;
                Some(due.min(next_notice))
            }
            State::Preparing(_) | State::Running(_) | State::Done => None,
            State::Stopping { sequence, .. } => Some(sequence.deadline()),
            State::AwaitingRootCause { until, .. } => Some(*until),
            State::Leaving { since, is_farewell: true, .. } => Some(*since + FAREWELL_TIMEOUT),
            State::Leaving { since, is_farewell: false, .. } => self.away_until(*since).map(|(due, _)| due),
            State::Saving { tell, until, .. } => Some(tell.unwrap_or(*until).min(*until)),
        }
    }

    /// The attempt that runs or ran last.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The last assignment.
    #[must_use]
    pub fn assignment(&self) -> Option<&Assignment> {
        self.last.as_ref()
    }

    /// The failure that ended the job, on whatever node; `None` when the master did not say.
    #[must_use]
    pub fn root_cause(&self) -> Option<&RootCause> {
        self.root_cause.as_deref()
    }

    /// The workers that never reached the store, if others did.
    #[must_use]
    pub fn missing_at_store(&self) -> Vec<LocalRank> {
        self.start_watch.missing()
    }

    /// Whether [`Event::StoreReached`] may still change anything.
    #[must_use]
    pub fn watches_store(&self) -> bool {
        !self.start_watch.is_over()
    }

    /// Handles `event` and returns what to do.
    #[must_use = "an effect not carried out leaves the workers and this state apart"]
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        if let Event::MasterAnswered { sent } = event {
            self.on_master_answered(sent);
        }
        let mut effects = self.kill_fenced_workers(now);
        if !self.is_stale(&event) {
            effects.extend(self.on(now, event));
        }
        effects
    }

    fn on(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        match event {
            // Handled before.
            Event::MasterAnswered { .. } => Vec::new(),
            Event::Pushed(push) => self.on_pushed(now, push),
            Event::Answered { round, answers, is_master_gone } => {
                self.on_answered(round, &answers, is_master_gone)
            }
            Event::Hosting { round, master_addr, master_port } => {
                self.on_hosting(round, master_addr, master_port)
            }
            Event::CannotHost { reason } => self.leave(now, Outcome::Failed(Failure::Store { reason })),
            Event::SelfCheckProgress { message } => vec![Effect::Notify(Notice::SelfCheck { message })],
            Event::CannotCheck { reason } => self.leave(now, Outcome::Failed(Failure::SelfCheck { reason })),
            Event::LocallyChecked { checked } => self.on_locally_checked(now, checked),
            Event::Probing { at, probed } => self.on_probing(now, at, probed),
            Event::Probed { report } => self.on_probed(report),
            Event::Prepared { round, oom_kills } => self.on_prepared(now, round, oom_kills),
            Event::CannotPrepare { reason, .. } => {
                self.leave(now, Outcome::Failed(Failure::Prepare { reason }))
            }
            Event::CannotStart { round, local_rank, reason } => {
                let failure = Failure::Start { local_rank, reason };
                let reason = failure.to_string();
                let mut effects = vec![Effect::ReportFailure { round, reason, gives_up: true, worker: None }];
                effects.extend(self.stop(now, SIGTERM, AfterStop::End(Outcome::Failed(failure))));
                effects
            }
            Event::WorkerStarted { local_rank, pid, .. } => self.on_worker_started(local_rank, pid),
            Event::InventoryTaken { inventory } => self.on_inventory_taken(inventory),
            Event::GpuError { gpu, code } => self.on_gpu_error(gpu, code),
            Event::GpuMemory { uses } => self.on_gpu_memory(&uses),
            Event::ProgressSampled { samples, .. } => self.on_progress_sampled(now, samples),
            Event::StacksTaken => self.on_stacks_taken(),
            Event::TemplateReady { left_out, .. } => self.on_template_ready(now, left_out),
            Event::TemplateUnfit { reason } => self.on_template_unfit(now, reason),
            Event::TemplateRefused { reason } => self.on_template_refused(reason),
            Event::SaverWanted => self.on_saver_wanted(now),
            Event::SaverSaid { said } => self.on_saver_said(now, *said),
            Event::SaverEnded { reason } => self.on_saver_ended(now, reason),
            Event::WorkerExited { exit, oom_kills, .. } => self.on_worker_exited(now, exit, oom_kills),
            Event::StoreReached { workers, is_unsure, .. } => {
                self.start_watch.reached(&workers, is_unsure);
                Vec::new()
            }
            Event::TreeGone { .. } => self.on_tree_gone(now),
            Event::Signalled { signal } => self.on_signalled(now, signal),
            Event::Forwarded { signal } => self.on_forwarded(signal),
            Event::MasterBack => self.on_master_back(now),
            Event::MasterAway { reason } => self.on_master_away(now, reason),
            Event::EndNoted => self.on_end_noted(now),
            Event::GuardDied { cause } => self.on_guard_died(now, cause),
            Event::Deadline => self.on_deadline(now),
        }
    }

    fn on_pushed(&mut self, now: Moment, push: Push) -> Vec<Effect> {
        match push {
            Push::Host { round, fresh_port } => self.on_host_requested(round, fresh_port),
            Push::Assigned(assignment) => self.on_assigned(now, assignment),
            Push::Pending(pending) => vec![Effect::Notify(Notice::Pending(pending))],
            Push::Check(order) => self.on_check_ordered(now, order),
            Push::CancelCheck(at) => self.on_check_cancelled(at),
            Push::CheckOver { message } => self.on_check_over(message),
            Push::Excluded(exclusion) => self.on_excluded(now, exclusion),
            Push::Refused { reason } => self.on_refused(now, reason),
            Push::Regroup { why, is_secondary, .. } => self.on_regroup(now, why, is_secondary),
            Push::RootCause(root_cause) => {
                self.root_cause = Some(root_cause);
                Vec::new()
            }
            Push::JobEnd(verdict) => self.on_job_ended(now, verdict),
            Push::DumpStacks { round, episode } => self.on_dump_ordered(now, round, episode),
            Push::Hang(notice) => self.on_hang(now, notice),
            Push::Checkpoint(order) => self.on_checkpoint_order(now, order),
        }
    }

    fn has_workers(&self) -> bool {
        matches!(self.state, State::Running(_) | State::Stopping { .. })
    }

    /// The round of the last assignment.
    fn round(&self) -> Option<Round> {
        match &self.state {
            State::Joining { .. } | State::Done => None,
            State::Preparing(_)
            | State::Running(_)
            | State::Stopping { .. }
            | State::AwaitingRootCause { .. }
            | State::Leaving { .. }
            | State::Saving { .. } => self.last.as_ref().map(|last| last.round),
        }
    }

    /// One worker's failure ends the group: its peers would hang in the next collective, so they are stopped too, and
    /// all are started again while restarts remain. The last success ends the group too.
    fn on_worker_exited(&mut self, now: Moment, exit: WorkerExit, oom_kills: Option<u64>) -> Vec<Effect> {
        if exit.cause.is_success() {
            self.start_watch.succeeded(exit.local_rank);
        }
        self.progress.ended(exit.local_rank);
        // Also of the last one, of which nothing is sampled any more.
        let report = self.report_progress(now);
        match &mut self.state {
            State::Running(workers) => match workers.record(&exit, oom_kills) {
                None if workers.alive.is_empty() => {
                    self.is_done_well = true;
                    let stop = self.stop(now, SIGTERM, AfterStop::End(Outcome::Succeeded));
                    report.into_iter().chain(stop).collect()
                }
                None => report,
                Some(failure) => self.on_first_failure(now, failure),
            },
            State::Stopping { workers, sequence, .. } => {
                // Workers that end while stopping still belong in the report.
                let _listed = workers.record(&exit, oom_kills);
                if workers.alive.is_empty() {
                    sequence.workers_exited(now);
                }
                Vec::new()
            }
            State::Joining { .. }
            | State::Preparing(_)
            | State::AwaitingRootCause { .. }
            | State::Leaving { .. }
            | State::Saving { .. }
            | State::Done => Vec::new(),
        }
    }

    fn on_first_failure(&mut self, now: Moment, failure: WorkerFailure) -> Vec<Effect> {
        let max_restarts = self.limits.max_restarts;
        let (then, after) = match restart::after_failure(max_restarts, self.attempt) {
            AfterFailure::Restart(next) => {
                (AfterStop::Rejoin(next), RestartDecision::Restart { next, max_restarts })
            }
            AfterFailure::GiveUp => {
                (AfterStop::FailWithWorkers { reported: now }, RestartDecision::Fail { max_restarts })
            }
        };
        let (reason, gives_up) = (failure.to_string(), matches!(then, AfterStop::FailWithWorkers { .. }));
        let worker = Some(Box::new(failure.clone()));
        let notice = Notice::WorkerFailed { failure, attempt: self.attempt, then: after };
        let mut effects = vec![Effect::Notify(notice)];
        // The other nodes' workers hang in the next collective too, so they are notified before ours are gone.
        let report = |round| Effect::ReportFailure { round, reason, gives_up, worker };
        effects.extend(self.round().map(report));
        effects.extend(self.stop(now, SIGTERM, then));
        effects
    }

    fn on_deadline(&mut self, now: Moment) -> Vec<Effect> {
        let mut effects: Vec<Effect> = self.ask(now).into_iter().collect();
        effects.extend(self.on_warm_deadline(now));
        effects.extend(self.on_checkpoint_deadline(now));
        effects.extend(self.on_state_deadline(now));
        effects
    }

    fn on_state_deadline(&mut self, now: Moment) -> Vec<Effect> {
        match &mut self.state {
            State::Stopping { sequence, .. } => match sequence.expired(now) {
                Some(step) => self.on_stop_step(now, step),
                None => Vec::new(),
            },
            State::AwaitingRootCause { outcome, until } if *until <= now => {
                let outcome = outcome.clone();
                self.leave(now, outcome)
            }
            State::AwaitingRootCause { .. } => Vec::new(),
            State::Leaving { .. } | State::Joining { .. } => self.on_timeout_over(now),
            State::Saving { .. } => self.on_saving_deadline(now),
            State::Running(_) => self.start_watch.expired(now).map(Effect::Notify).into_iter().collect(),
            State::Preparing(_) | State::Done => Vec::new(),
        }
    }
}
