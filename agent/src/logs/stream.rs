//! The two output streams of a process.

use std::fmt;

use crate::streams::Streams;

/// One of a process's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    /// Whether this stream is among the chosen ones.
    pub(crate) const fn is_in(self, chosen: Streams) -> bool {
        match self {
            Self::Out => chosen.out,
            Self::Err => chosen.err,
        }
    }

    /// `stdout.log` or `stderr.log`.
    pub(crate) const fn file_name(self) -> &'static str {
        match self {
            Self::Out => "stdout.log",
            Self::Err => "stderr.log",
        }
    }

    /// `filtered_stdout.log` or `filtered_stderr.log`.
    pub(crate) const fn filtered_file_name(self) -> &'static str {
        match self {
            Self::Out => "filtered_stdout.log",
            Self::Err => "filtered_stderr.log",
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Out => "standard output",
            Self::Err => "standard error",
        })
    }
}
