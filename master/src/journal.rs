//! The journal (`--state-dir`): the events of the job, from which a restarted master recovers.
//!
//! Append-only. A commit has all events that arrived while the last one was synced; they are answered when it is
//! durable. The file begins with a snapshot of the job, and is replaced by a new one when it has grown.
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
pub(crate) mod testing;
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
    /// The policy that it was started with. It stays, whatever the options of a later master.
    pub(crate) policy: Policy,
    /// The job itself.
    pub(crate) job: Job,
}

/// The payload of a frame.
#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// The first of a file.
    Snapshot(Box<Snapshot>),
    /// The events since, in order.
    Events(Vec<(Moment, Event)>),
}
