//! Errors of the journal.

use std::{io, path::PathBuf};

/// Why the job's state cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The directory cannot be used.
    #[error("cannot use --state-dir {}: {error}; give a directory that this user may write to", dir.display())]
    Folder {
        /// Its path.
        dir: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Another master holds the directory.
    #[error(
        "--state-dir {} is in use by another running job master; stop that one first, or give this one another \
         directory",
        dir.display()
    )]
    InUse {
        /// Its path.
        dir: PathBuf,
    },
    /// The directory cannot be locked.
    #[error(
        "cannot lock {}: {error}; the lock keeps a second job master out of the directory: give --state-dir a \
         directory on a file system that supports file locks",
        path.display()
    )]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the journal {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The journal is damaged: bytes that were written completely have changed since.
    #[error(
        "the journal {} is damaged at byte {offset}: {what}; the master does not start with incomplete state. \
         Restore \
         a good copy, or move the file away: a master without it asks the nodes for their state",
        path.display()
    )]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// The offset in bytes.
        offset: usize,
        /// What is wrong at the offset.
        what: &'static str,
    },
    /// The journal was written by another release, in another format.
    #[error(
        "the journal {} was written by release {theirs} (format {their_format}) and this is release {ours} \
         (format {our_format}); start the release that wrote it, or move the file away: a master without it asks \
         the nodes for their state",
        path.display()
    )]
    OtherRelease {
        /// Its path.
        path: PathBuf,
        /// The release that wrote it.
        theirs: String,
        /// Its format.
        their_format: u32,
        /// This release.
        ours: &'static str,
        /// The format of this release.
        our_format: u32,
    },
    /// A record cannot be encoded.
    #[error("cannot encode the journal")]
    Encode(#[source] postcard::Error),
    /// The file cannot be written.
    #[error(
        "cannot write the journal {}: {error}; the master stops, because a restarted master could not recover \
         its further decisions. Free disk space, or give another --state-dir, and start the process of the master \
         again: the other nodes keep running and reconnect",
        path.display()
    )]
    Write {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file of a job that is over cannot be removed.
    #[error(
        "cannot remove the journal {}: {error}; remove it, or give the next job another --state-dir: a job master \
         with this one reports again how this job ended",
        path.display()
    )]
    Remove {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread that writes the journal")]
    Thread(#[source] io::Error),
    /// The thread ended without an error, which is a bug.
    #[error("the thread that writes the journal has stopped; this is a bug: report it with this message")]
    Gone,
}
