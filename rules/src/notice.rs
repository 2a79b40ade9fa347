//! What a person is told while the run goes on.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    failure::{ExitCause, WorkerFailure},
    ids::Attempt,
    signal_name::signal_words,
};

/// Something a person wants to know while the run goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A worker failed and its peers are stopped.
    WorkerFailed { failure: WorkerFailure, attempt: Attempt, then: AfterStop },
    /// The first signal was passed on.
    Stopping { signal: i32, grace: Duration },
    /// The second one, or the end of the grace.
    Killing,
    /// Another node restarts, so this one does.
    Regrouping,
}

/// What follows once the old workers are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterStop {
    /// A new attempt, out of this many in all.
    Restart { next: Attempt, max_restarts: u32 },
    /// The run fails.
    Fail,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerFailed { failure, then, .. } => {
                let WorkerFailure { rank, local_rank, pid, cause, out_of_memory, .. } = failure;
                write!(f, "rank {rank} (local rank {local_rank}, pid {pid}) ")?;
                match cause {
                    _ if *out_of_memory => write!(f, "was killed by the kernel's OOM killer")?,
                    ExitCause::Code(code) => write!(f, "exited with code {code}")?,
                    ExitCause::Signal(signal) => write!(f, "was ended by {}", signal_words(*signal))?,
                }
                match then {
                    AfterStop::Restart { next, max_restarts } => {
                        write!(f, "; restarting all workers (restart {next} of {max_restarts})")
                    }
                    AfterStop::Fail => write!(f, "; no restart is left"),
                }
            }
            Self::Stopping { signal, grace } => write!(
                f,
                "{} was passed on to the workers, which have {} s to end; once more kills them now",
                signal_words(*signal),
                grace.as_secs_f64()
            ),
            Self::Killing => f.write_str("killing every process that is left"),
            Self::Regrouping => f.write_str("another node restarts its workers, so all nodes do"),
        }
    }
}
