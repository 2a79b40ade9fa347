//! What can be wrong with the job's state.

use std::{io, path::PathBuf};

/// Why the job's state cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The folder.
    #[error("cannot use --state-dir {}; give a folder that this user may write to", dir.display())]
    Folder {
        /// Which.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Somebody else holds it.
    #[error(
        "--state-dir {} is in use by another job master that runs; stop that one first, or give this one another \
         folder",
        dir.display()
    )]
    InUse {
        /// Which.
        dir: PathBuf,
    },
    /// The lock.
    #[error(
        "cannot lock {}, which keeps two job masters apart; give --state-dir a folder whose file system has locks",
        path.display()
    )]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is there and cannot be read.
    #[error("cannot read the job's state {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What was durable once is not what was written.
    #[error(
        "the job's state {} is damaged at byte {offset}: {what}; the master does not start on half a memory. Put a \
         good copy back, or move the file away: a master without it asks the nodes where they stand",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where, in bytes from its start.
        offset: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// Written by another release, whose records have another shape.
    #[error(
        "the job's state {} was written by release {theirs} (format {their_format}) and this is release {ours} \
         (format {our_format}); start the release that wrote it, or move the file away: a master without it asks \
         the nodes where they stand",
        path.display()
    )]
    OtherRelease {
        /// Which file.
        path: PathBuf,
        /// Who wrote it.
        theirs: String,
        /// Their format.
        their_format: u32,
        /// Who reads it.
        ours: &'static str,
        /// Our format.
        our_format: u32,
    },
    /// A record could not be put into bytes.
    #[error("cannot encode the job's state")]
    Encode(#[source] postcard::Error),
    /// The disk did not take it.
    #[error(
        "cannot write the job's state {}; the master ends here rather than promise what it may forget. Make room, \
         or give another --state-dir, and start it again: the nodes go on and come back to it",
        path.display()
    )]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The thread.
    #[error("cannot start the thread that writes the job's state")]
    Thread(#[source] io::Error),
    /// The thread is gone without a word, which is a bug.
    #[error("the thread that writes the job's state is gone")]
    Gone,
}
