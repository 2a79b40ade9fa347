//! The job master: a thin shell around [`rules::job_master`].

mod journal;

pub use journal::JournalError;
