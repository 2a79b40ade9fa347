//! The exit code for every way in which a run can end.

use agent::Report;
use rules::{
    failure::{ExitCause, Failure, Outcome, WorkerFailure},
    verdict::JobFailure,
};

use super::root::{dated, root_of};
use crate::resolve::Rendezvous;

/// All workers succeeded.
pub const SUCCEEDED: u8 = 0;
/// The run failed, for any other reason (torchrun: the same).
pub const FAILED: u8 = 1;
/// The command line cannot be parsed (argparse: the same), or its options contradict each other.
pub const USAGE: u8 = 2;
/// With `--propagate-exit-code`: a worker was killed by the kernel's out-of-memory killer. DLRover's operator
/// reads it so.
pub const OUT_OF_MEMORY: u8 = 247;
/// With `--propagate-exit-code`: added to the number of the signal that killed the root cause, as shells do.
pub const SIGNAL_BASE: u8 = 128;

/// A rendezvous at `DLROVER_MASTER_ADDR` failed: too few nodes joined within `join_timeout`, or the job master was
/// unreachable for that long. A retry may succeed (`sysexits.h`: EX_TEMPFAIL). On torchrun's own lines it is
/// [`FAILED`], torchrun's code.
pub const NO_RENDEZVOUS: u8 = 75;

/// A network check excluded this node. DLRover's own master reads 201 as a hardware error.
pub const EXCLUDED: u8 = 201;

/// A network check could not find which node is at fault, or nodes are cut off from each other and
/// `--on-bad-path` fails the job.
pub const INCONCLUSIVE: u8 = 202;

/// A network check found more nodes at fault than `--taint-guard` allows.
pub const MASS_FAILURE: u8 = 203;

/// The exit code of a run.
#[must_use]
pub fn exit_code(report: &Report, propagate: bool, rendezvous: &Rendezvous) -> u8 {
    let code = match &report.outcome {
        Outcome::Failed(Failure::MasterAway { .. } | Failure::Job(JobFailure::TimedOut { .. }))
            if matches!(rendezvous, Rendezvous::Master(_)) =>
        {
            return NO_RENDEZVOUS;
        }
        Outcome::Failed(Failure::Excluded(exclusion)) => {
            return if exclusion.is_inconclusive { INCONCLUSIVE } else { EXCLUDED };
        }
        Outcome::Failed(Failure::Job(JobFailure::Inconclusive { .. } | JobFailure::Cut { .. })) => {
            return INCONCLUSIVE;
        }
        Outcome::Failed(Failure::Job(JobFailure::MassFailure { .. })) => return MASS_FAILURE,
        Outcome::Succeeded => return SUCCEEDED,
        Outcome::Failed(Failure::Workers(group)) => {
            let failures = dated(group, &report.workers);
            failures.get(root_of(&failures, &report.workers)).map_or(FAILED, own_code)
        }
        Outcome::Interrupted(signal) => own_code_of_signal(*signal),
        Outcome::Failed(_) => FAILED,
    };
    if propagate { code } else { FAILED }
}

fn own_code(failure: &WorkerFailure) -> u8 {
    match failure.cause {
        _ if failure.out_of_memory => OUT_OF_MEMORY,
        ExitCause::Code(code) => u8::try_from(code).unwrap_or(FAILED),
        ExitCause::Signal(signal) => own_code_of_signal(signal),
    }
}

fn own_code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| SIGNAL_BASE.checked_add(signal)).unwrap_or(FAILED)
}
