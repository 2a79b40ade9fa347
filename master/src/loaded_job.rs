//! The state that a master starts with, and the record of the job's events: a journal, or none.

use std::{future, path::Path, time::Instant};

use diagnosis::counted::counted;
use rules::{
    Moment,
    job::{Event, Job, Policy},
    job_master::{JobMaster, Output},
    liveness::Timeout,
    verdict::JobVerdict,
};

use crate::{
    journal::{Folder, Journal, JournalError, Progress, Recovered, Snapshot, random},
    log::{Log, log_line, log_warning},
};

/// The job's clock, which continues where the last life of the master stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    base: Moment,
}

impl Clock {
    fn from(base: Moment) -> Self {
        Self { started: Instant::now(), base }
    }

    /// Returns the present moment.
    pub(crate) fn now(self) -> Moment {
        self.base + self.started.elapsed()
    }

    /// Converts a moment; `None` when it is too far away.
    pub(crate) fn instant(self, at: Moment) -> Option<Instant> {
        self.started.checked_add(at - self.base)
    }
}

/// A job to be served.
#[derive(Debug)]
pub(crate) struct LoadedJob {
    pub(crate) master: JobMaster,
    /// What follows from the restart.
    pub(crate) first: Output,
    pub(crate) clock: Clock,
    /// Tells this life of the master from any other, also when the state was moved away.
    pub(crate) epoch: u64,
    pub(crate) record: Record,
}

/// What the state directory holds.
#[derive(Debug)]
pub(crate) enum StateDirContent {
    /// A job, new or not.
    Job(Box<LoadedJob>),
    /// A job that is over, as all its nodes know.
    Over {
        /// How it ended.
        verdict: JobVerdict,
        /// What is left of it.
        record: Box<Record>,
    },
}

impl LoadedJob {
    /// Loads the job that `state_dir` holds, or a new one. Waits for the disk.
    ///
    /// # Errors
    /// The directory or its content cannot be used.
    pub(crate) fn load(
        state_dir: Option<&Path>,
        policy: Policy,
        timeout: Timeout,
        log: &Log,
    ) -> Result<StateDirContent, JournalError> {
        let Some(dir) = state_dir else {
            let (master, record) = (JobMaster::new(policy.clone(), timeout), Record::none(policy));
            let (first, clock, epoch) = (Output::default(), Clock::from(Moment::START), random());
            return Ok(StateDirContent::Job(Box::new(Self { master, first, clock, epoch, record })));
        };
        let folder = Folder::hold(dir)?;
        let Some(Recovered { life, last, torn_bytes }) = Recovered::read(&folder)? else {
            let journal = Journal::start(folder, 1, Snapshot::new(policy.clone()))?;
            let (master, record) = (JobMaster::new(policy.clone(), timeout), Record::of(journal, policy));
            let (first, clock) = (Output::default(), Clock::from(Moment::START));
            return Ok(StateDirContent::Job(Box::new(Self {
                master,
                first,
                clock,
                epoch: random(),
                record,
            })));
        };
        let life = life.saturating_add(1);
        log_line(log, resumed_line(&last.job, life - 1));
        if torn_bytes > 0 {
            log_warning(
                log,
                format_args!(
                    "the journal ends with an incomplete record ({}): either the master was killed while writing it, \
                     before it had answered any node, or the file was truncated or changed later; the job \
                     continues from the previous record, and the nodes report what is missing",
                    counted(torn_bytes, "byte")
                ),
            );
        }
        for warning in ignored_options(&policy, &last.policy) {
            log_line(log, warning);
        }
        let journal = Journal::start(folder, life, last.clone())?;
        let record = Record::of(journal, last.policy);
        // Without a deadline all nodes have acknowledged the end.
        if let (Some(verdict), None) = (last.job.verdict(), last.job.deadline()) {
            return Ok(StateDirContent::Over { verdict: verdict.clone(), record: Box::new(record) });
        }
        let clock = Clock::from(last.at);
        let (master, first) = JobMaster::restored(last.job, timeout, clock.now());
        Ok(StateDirContent::Job(Box::new(Self { master, first, clock, epoch: random(), record })))
    }
}

/// A line for each option that differs from that of the job in the state directory, which keeps its own.
fn ignored_options(given: &Policy, kept: &Policy) -> Vec<String> {
    const REMEDY: &str = "use an empty --state-dir to change it";
    let mut lines = Vec::new();
    let mut differs = |option: &str, given: String, kept: String| {
        if given != kept {
            lines.push(format!(
                "warning: {option}={given} is ignored: the job in --state-dir was started with {kept}; {REMEDY}"
            ));
        }
    };
    let share = |permille: u32| (f64::from(permille) / 1000.0).to_string();
    differs("--restart-count", given.restart_count.to_string(), kept.restart_count.to_string());
    differs("--taint-guard", share(given.taint_guard_permille), share(kept.taint_guard_permille));
    if given.has_topology != kept.has_topology {
        lines.push(match given.has_topology {
            true => format!(
                "warning: --topology-config is ignored: the job in --state-dir was started without it; {REMEDY}"
            ),
            false => "warning: --topology-config is not given, but the job in --state-dir was started with it: no \
                      topology orders the node ranks of further rounds; give it again to keep their order"
                .to_owned(),
        });
    }
    let same = Policy {
        restart_count: kept.restart_count,
        taint_guard_permille: kept.taint_guard_permille,
        has_topology: kept.has_topology,
        ..given.clone()
    };
    if same != *kept {
        lines.push(
            "warning: other options differ from those the job in --state-dir was started with (whether there is a \
             job token, --heartbeat-timeout, --reconnect-grace, or those of the job's command line); the token given \
             now applies, and the timeouts given now decide when a node is lost; the job keeps its other settings, and \
             how long workers run without a job master; use an empty --state-dir to change those too"
                .to_owned(),
        );
    }
    lines
}

fn resumed_line(job: &Job, restart: u64) -> String {
    let Some(name) = job.name() else {
        return format!("recovered a job that no node has joined; master restart {restart}");
    };
    let nodes = diagnosis::counted::counted(job.nodes().count(), "node");
    match (job.verdict(), job.world()) {
        (Some(_), _) => format!("recovered job {name}, which is over; master restart {restart}"),
        (None, Some(world)) => {
            format!("recovered job {name} (round {}, {nodes}); master restart {restart}", world.round)
        }
        (None, None) => {
            format!("recovered job {name} (between rounds, {nodes}); master restart {restart}")
        }
    }
}

/// The record of the job's events.
#[derive(Debug)]
pub(crate) struct Record {
    journal: Option<Journal>,
    policy: Policy,
    /// A snapshot is being written.
    is_compacting: bool,
    is_large: bool,
}

impl Record {
    fn none(policy: Policy) -> Self {
        Self { journal: None, policy, is_compacting: false, is_large: false }
    }

    /// Whether a restarted master finds the job.
    pub(crate) fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    fn of(journal: Journal, policy: Policy) -> Self {
        Self { journal: Some(journal), ..Self::none(policy) }
    }

    /// Writes events. They are durable when [`Self::progress`] returns this log sequence number or a later one; 0 is
    /// durable from the start.
    pub(crate) fn write(&mut self, at: Moment, events: Vec<Event>) -> u64 {
        self.journal.as_mut().map_or(0, |journal| journal.append(at, events))
    }

    /// Compacts the journal if it has grown; the job has handled all that was written.
    pub(crate) fn compact(&mut self, at: Moment, job: &Job) {
        if let Some(journal) = &self.journal
            && self.is_large
            && !self.is_compacting
        {
            journal.compact(Snapshot { at, policy: self.policy.clone(), job: job.clone() });
            self.is_compacting = true;
        }
    }

    /// Waits for the next log sequence number to become durable. Cancel-safe.
    pub(crate) async fn progress(&mut self) -> Result<u64, JournalError> {
        let Some(journal) = &mut self.journal else { return future::pending().await };
        match journal.progress().await {
            Progress::Durable { lsn, is_large } => {
                self.is_large = is_large;
                self.is_compacting &= is_large;
                Ok(lsn)
            }
            Progress::Failed(error) => Err(error),
        }
    }

    /// Removes the state of a job that is over.
    pub(crate) async fn clear(self, log: &Log) {
        if let Some(journal) = self.journal
            && let Err(error) = journal.clear().await
        {
            // The job is over all the same; the next master with this directory reports how it ended.
            log_line(
                log,
                format_args!("warning: the job is over and its state could not be removed: {error}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::testing;

    #[test]
    fn options_that_the_job_does_not_take_are_named_with_both_values() {
        let kept = testing::policy();
        assert_eq!(ignored_options(&kept, &kept), Vec::<String>::new());
        let given =
            Policy { restart_count: kept.restart_count + 2, taint_guard_permille: 250, ..kept.clone() };
        assert_eq!(
            ignored_options(&given, &Policy { taint_guard_permille: 300, ..kept.clone() }),
            [
                format!(
                    "warning: --restart-count={} is ignored: the job in --state-dir was started with {}; use an empty \
                     --state-dir to change it",
                    given.restart_count, kept.restart_count
                ),
                "warning: --taint-guard=0.25 is ignored: the job in --state-dir was started with 0.3; use an empty \
                 --state-dir to change it"
                    .to_owned()
            ]
        );
        let given = Policy { has_topology: !kept.has_topology, is_open: !kept.is_open, ..kept.clone() };
        let lines = ignored_options(&given, &kept);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].contains("--topology-config is ignored") && lines[1].contains("job token"),
            "{lines:?}"
        );
        let (with, without) =
            (Policy { has_topology: true, ..kept.clone() }, Policy { has_topology: false, ..kept });
        let lines = ignored_options(&without, &with);
        assert!(lines[0].contains("no topology orders the node ranks of further rounds"), "{lines:?}");
    }
}
