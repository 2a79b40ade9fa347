//! What a master begins with, and where it writes down what the job is told: a journal, or nothing.

use std::{future, path::Path, time::Instant};

use rules::{
    Moment,
    job::{Event, Job, Policy},
    job_master::{JobMaster, Turn},
    liveness::Timeout,
    verdict::JobVerdict,
};

use crate::{
    journal::{Folder, Journal, JournalError, Progress, Recovered, Snapshot, random},
    lines::{Log, say},
};

/// The job's clock: it goes on where the last life of the master left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    base: Moment,
}

impl Clock {
    fn from(base: Moment) -> Self {
        Self { started: Instant::now(), base }
    }

    /// Now.
    pub(crate) fn now(self) -> Moment {
        self.base + self.started.elapsed()
    }

    /// When a moment comes; `None`: never.
    pub(crate) fn instant(self, at: Moment) -> Option<Instant> {
        self.started.checked_add(at - self.base)
    }
}

/// A job to be served.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) master: JobMaster,
    /// What follows from having come back.
    pub(crate) first: Turn,
    pub(crate) clock: Clock,
    /// Tells this life of the master from any other, also from one whose state was moved away.
    pub(crate) epoch: u64,
    pub(crate) record: Record,
}

/// What there is to do.
#[derive(Debug)]
pub(crate) enum Found {
    /// A job, new or not.
    Job(Box<Memory>),
    /// A job that was over and told to all when the last life of the master ended.
    Over {
        /// How it ended.
        verdict: JobVerdict,
        /// What is left of it.
        record: Box<Record>,
    },
}

impl Memory {
    /// Takes up the job that `state_dir` holds, or a new one. Waits for the disk.
    ///
    /// # Errors
    /// The folder cannot be used, or what is in it.
    pub(crate) fn open(
        state_dir: Option<&Path>,
        policy: Policy,
        timeout: Timeout,
        log: &Log,
    ) -> Result<Found, JournalError> {
        let Some(dir) = state_dir else {
            let (master, record) = (JobMaster::new(policy.clone(), timeout), Record::none(policy));
            let (first, clock, epoch) = (Turn::default(), Clock::from(Moment::START), random());
            return Ok(Found::Job(Box::new(Self { master, first, clock, epoch, record })));
        };
        let folder = Folder::hold(dir)?;
        let Some(Recovered { life, last, torn_bytes }) = Recovered::read(&folder)? else {
            let journal = Journal::start(folder, 1, Snapshot::new(policy.clone()))?;
            let (master, record) = (JobMaster::new(policy.clone(), timeout), Record::of(journal, policy));
            let (first, clock) = (Turn::default(), Clock::from(Moment::START));
            return Ok(Found::Job(Box::new(Self { master, first, clock, epoch: random(), record })));
        };
        let life = life.saturating_add(1);
        say(log, came_back(&last.job, life));
        if torn_bytes > 0 {
            say(
                log,
                format_args!(
                    "the last {torn_bytes} bytes of its memory are no whole record: it was being written when the master \
                     died (then no node had an answer to it), or the file was cut or changed since; the job goes on \
                     from the record before, and nodes that know more say so"
                ),
            );
        }
        if last.policy != policy {
            say(log, "warning: the job keeps the options that it was started with; those given now differ");
        }
        let journal = Journal::start(folder, life, last.clone())?;
        let record = Record::of(journal, last.policy);
        // Whoever waits for a word of the end has until then; without it everybody has had it.
        if let (Some(verdict), None) = (last.job.verdict(), last.job.deadline()) {
            return Ok(Found::Over { verdict: verdict.clone(), record: Box::new(record) });
        }
        let clock = Clock::from(last.at);
        let (master, first) = JobMaster::restored(last.job, timeout, clock.now());
        Ok(Found::Job(Box::new(Self { master, first, clock, epoch: random(), record })))
    }
}

fn came_back(job: &Job, life: u64) -> String {
    let Some(name) = job.name() else {
        return format!("came back to a job that no node has joined, life {life}");
    };
    let nodes = diagnosis::counted::counted(job.nodes().count(), "node");
    match (job.verdict(), job.world()) {
        (Some(_), _) => format!("came back to job {name}, which is over, life {life}"),
        (None, Some(world)) => {
            format!("came back to job {name} (round {}, {nodes}), life {life}", world.round)
        }
        (None, None) => format!("came back to job {name} (between rounds, {nodes}), life {life}"),
    }
}

/// Where the job's words are written down.
#[derive(Debug)]
pub(crate) struct Record {
    journal: Option<Journal>,
    policy: Policy,
    /// A snapshot is on its way to the disk.
    is_compacting: bool,
    is_large: bool,
}

impl Record {
    fn none(policy: Policy) -> Self {
        Self { journal: None, policy, is_compacting: false, is_large: false }
    }

    fn of(journal: Journal, policy: Policy) -> Self {
        Self { journal: Some(journal), ..Self::none(policy) }
    }

    /// Writes down what the job was told. Returns the log sequence number that [`Self::progress`] comes to when it is durable; 0
    /// is durable from the start.
    pub(crate) fn write(&mut self, at: Moment, events: Vec<Event>) -> u64 {
        self.journal.as_mut().map_or(0, |journal| journal.append(at, events))
    }

    /// Keeps the journal small, now that the job has heard all that was written.
    pub(crate) fn compact(&mut self, at: Moment, job: &Job) {
        if let Some(journal) = &self.journal
            && self.is_large
            && !self.is_compacting
        {
            journal.compact(Snapshot { at, policy: self.policy.clone(), job: job.clone() });
            self.is_compacting = true;
        }
    }

    /// Waits for the next log sequence number to become durable. May be dropped while it waits.
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

    /// Forgets a job that is over.
    pub(crate) async fn clear(self, log: &Log) {
        if let Some(journal) = self.journal
            && let Err(error) = journal.clear().await
        {
            // The job is over all the same; who starts another one with this folder is told how this one ended.
            say(log, format_args!("warning: the job is over and its state could not be removed: {error}"));
        }
    }
}
