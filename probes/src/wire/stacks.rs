//! The task and the messages of the process that takes stacks.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use stacks::Thread;

/// A rank of this node whose stacks are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackTarget {
    pub rank: u32,
    pub world_size: u32,
    pub pid: u32,
    /// The start of the process in clock ticks since boot (`/proc/PID/stat`), by which another process that has got the
    /// same number is told apart. `None`: whatever process has the number is taken.
    pub started: Option<u64>,
    /// The last step that the rank is known to have finished.
    pub step: Option<u64>,
    /// The name of the host, for people.
    pub host: String,
    /// The process may be a shell or the like that has started the Python program whose stacks matter.
    pub may_be_wrapper: bool,
}

/// [`crate::take_stacks`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StacksTask {
    pub(crate) targets: Vec<StackTarget>,
    /// Whether native stacks are read too.
    pub(crate) native: bool,
    /// The first of these directories that takes files gets that of a flight recorder.
    pub(crate) collect_in: Vec<PathBuf>,
    /// When the process is killed, from its start.
    pub(crate) limit: Duration,
}

/// What has been read of one target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StacksMessage {
    /// Its place in the task.
    pub(crate) target: usize,
    pub(crate) part: StacksPart,
}

/// A part of a dump. Large ones come in pieces, so that every message is a line of a limited size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StacksPart {
    /// The first part of every target.
    Process(ProcessPart),
    /// A thread with its innermost frames, or with the next ones if `is_more`.
    Python { thread: Thread, is_more: bool },
    /// Nothing more comes of Python's stacks.
    PythonDone,
    /// As `Python`.
    Native { thread: Thread, is_more: bool },
    /// Nothing more comes of native stacks.
    NativeDone,
    /// A sentence for people.
    Note(String),
}

/// The state of a process before any stack is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessPart {
    /// Another process than that of the target is read.
    pub(crate) pid: Option<u32>,
    pub(crate) gone: bool,
    pub(crate) state: Option<String>,
    pub(crate) wchan: Option<String>,
    pub(crate) syscall: Option<String>,
}
