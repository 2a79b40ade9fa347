//! The master's memory (`--state-dir`): what the job was told, so that a master that is started again knows it.
//!
//! Append-only. A commit is every word that came while the last one was synced; the answers to them leave when
//! it is durable. The file begins with the job's state, and a new one takes its place when it has grown.
//!
//! [`frame`]: the bytes. [`folder`]: the files and the lock. [`writer`]: the thread. [`recovery`]: after a
//! restart.

pub mod bytes;
pub(crate) mod crash;
mod error;
mod folder;
mod frame;
#[cfg(test)]
mod golden;
mod recovery;
#[cfg(test)]
mod testing;
mod writer;

use rules::{
    Moment,
    job::{Event, Job, Policy},
};
use serde::{Deserialize, Serialize};

pub use self::error::JournalError;
pub(crate) use self::{
    crash::point as crash_point,
    folder::Folder,
    frame::random,
    recovery::Recovered,
    writer::{Journal, Progress},
};

/// The job at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// When, on the job's own clock, which no restart sets back.
    pub(crate) at: Moment,
    /// What its master was told. The job keeps it, whatever a later master is told.
    pub(crate) policy: Policy,
    /// The job.
    pub(crate) job: Job,
}

/// What one frame holds.
#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// The first of a file.
    Snapshot(Box<Snapshot>),
    /// What the job was told since, in order.
    Events(Vec<(Moment, Event)>),
}
