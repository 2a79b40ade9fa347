//! Why a run failed, as data. The launcher makes the text and the exit code of it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Attempt, LocalRank, Rank},
    signal_name::signal_text,
    verdict::JobFailure,
};
use diagnosis::exclusion::Exclusion;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    /// The process exited with this code, 0 to 255.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl ExitCause {
    /// Whether the exit code is 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// The exit code as Python writes it, which torchrun's report uses: a signal is negative.
    #[must_use]
    pub fn python_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
        }
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "killed by {}", signal_text(*signal)),
        }
    }
}

/// A worker that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerFailure {
    pub rank: Rank,
    pub local_rank: LocalRank,
    /// Its process id, as seen by the launcher.
    pub pid: i32,
    pub cause: ExitCause,
    /// When its end was noticed, in whole seconds since 1970; or the time in its own error file.
    pub unix_secs: i64,
    /// The kernel's OOM killer killed it.
    pub out_of_memory: bool,
}

impl fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, local_rank, pid, cause, out_of_memory, .. } = self;
        write!(f, "rank {rank} (local rank {local_rank}, pid {pid}) ")?;
        match cause {
            _ if *out_of_memory => write!(f, "was killed by the kernel's OOM killer"),
            ExitCause::Code(code) => write!(f, "exited with code {code}"),
            ExitCause::Signal(signal) => write!(f, "was killed by {}", signal_text(*signal)),
        }
    }
}

/// The workers of one node that failed in one attempt, the first noticed first; never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFailure {
    pub attempt: Attempt,
    /// The failures, the first noticed first.
    pub failures: Vec<WorkerFailure>,
    /// Ranks of this node that had exited with code 0 before the first failure. A peer that still connects to one of
    /// them, or waits for it, fails.
    pub ended_before: Vec<Rank>,
    /// Whether the OOM killer's counter could be read. Without it a SIGKILL may be the OOM killer's although
    /// `out_of_memory` is false.
    pub has_oom_counter: bool,
}

/// Returns the index of the root cause: the earliest in whole seconds, and the first noticed among equals, as
/// torchrun does. 0 for an empty list.
#[must_use]
pub fn root_cause(failures: &[WorkerFailure]) -> usize {
    failures
        .iter()
        .enumerate()
        .min_by_key(|(index, failure)| (failure.unix_secs, *index))
        .map_or(0, |(index, _)| index)
}

/// A process that could not be killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnkillableProcess {
    pub pid: i32,
    pub name: String,
    /// Its state letter in `/proc/<pid>/stat`; `D` waits inside the kernel and cannot be killed.
    pub state: char,
    /// The kernel function that it waits in; empty if unknown.
    pub wait_channel: String,
}

impl fmt::Display for UnkillableProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({}), state {}", self.pid, self.name, self.state)?;
        if !self.wait_channel.is_empty() && self.wait_channel != "0" {
            write!(f, ", waiting in {}", self.wait_channel)?;
        }
        Ok(())
    }
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Workers of this node failed and there is no restart left.
    Workers(GroupFailure),
    /// A worker could not be started.
    Start {
        local_rank: LocalRank,
        /// What was attempted, and the error.
        reason: String,
    },
    /// The files of the workers could not be made, so none was started.
    Prepare {
        /// What was attempted, and the error.
        reason: String,
    },
    /// The workers' store could not be opened.
    Store { reason: String },
    /// The workers could not be killed.
    Unkillable,
    /// The guard process died; nothing can be supervised without it.
    GuardDied { cause: ExitCause },
    /// The master cannot be reached, or refused this node.
    Master {
        /// The reason of the refusal, or the connection's error.
        reason: String,
    },
    /// The master was unreachable for longer than allowed.
    MasterAway {
        /// The error of the last attempt.
        reason: String,
        waited: Duration,
    },
    /// The job succeeded without the workers of this node.
    EndedWithout,
    /// The self-test cannot be made as configured.
    SelfCheck {
        /// What is missing.
        reason: String,
    },
    /// A check excluded this node.
    Excluded(Exclusion),
    /// The job hangs because of this node, and there is no restart left.
    Hang {
        /// Which ranks hang, and where.
        reason: String,
    },
    /// The job ended, for a reason that is not this node's own.
    Job(JobFailure),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers(group) => match group.failures.get(root_cause(&group.failures)) {
                Some(WorkerFailure { rank, cause: ExitCause::Code(code), .. }) => {
                    write!(f, "rank {rank} exited with code {code}")
                }
                Some(WorkerFailure { rank, cause: ExitCause::Signal(signal), .. }) => {
                    write!(f, "rank {rank} was killed by {}", signal_text(*signal))
                }
                None => f.write_str("the workers failed"),
            },
            Self::Start { local_rank, reason } => {
                write!(f, "cannot start the worker of local rank {local_rank}: {reason}")
            }
            Self::Prepare { reason } => write!(f, "cannot start the workers: {reason}"),
            Self::Store { reason }
            | Self::Master { reason }
            | Self::SelfCheck { reason }
            | Self::Hang { reason } => f.write_str(reason),
            Self::EndedWithout => f.write_str(
                "the job master reported success while workers of this node had not ended: either the job \
                 continued without this node, or that process is not the master of this job",
            ),
            Self::Unkillable => f.write_str("the workers could not be killed"),
            Self::GuardDied { cause: ExitCause::Code(code) } => {
                write!(f, "the guard process exited with code {code}")
            }
            Self::GuardDied { cause: ExitCause::Signal(signal) } => {
                write!(f, "the guard process was killed by {}", signal_text(*signal))
            }
            Self::MasterAway { reason, waited } => {
                write!(f, "the job master was unreachable for {} s: {reason}", waited.as_secs_f64())
            }
            Self::Excluded(exclusion) => exclusion.fmt(f),
            Self::Job(failure) => failure.fmt(f),
        }
    }
}

/// How a node's run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Every worker of the job exited with code 0.
    Succeeded,
    Failed(Failure),
    /// A signal to the launcher ended the run; the first such signal.
    Interrupted(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_secs: i64) -> WorkerFailure {
        WorkerFailure {
            rank: Rank(0),
            local_rank: LocalRank(0),
            pid: 1,
            cause: ExitCause::Code(1),
            unix_secs,
            out_of_memory: false,
        }
    }

    #[test]
    fn the_root_cause_is_the_earliest_and_first_noticed_among_equals() {
        assert_eq!(root_cause(&[at(7), at(5), at(5), at(6)]), 1);
        assert_eq!(root_cause(&[at(5), at(5)]), 0);
        assert_eq!(root_cause(&[]), 0);
    }

    #[test]
    fn a_signal_is_negative_as_python_writes_it() {
        assert_eq!(ExitCause::Signal(15).python_code(), -15);
        assert_eq!(ExitCause::Code(3).python_code(), 3);
    }
}
