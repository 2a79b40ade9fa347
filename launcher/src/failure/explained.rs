//! The meaning of a worker's exit, in words.

use rules::{
    failure::{ExitCause, GroupFailure, WorkerFailure},
    signal_name::signal_text,
};

/// What the OOM killer's counter says of a SIGKILL that is not known to be the OOM killer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OomCounter {
    /// The counter of the OOM killer has not risen.
    Unchanged,
    /// The counter of the OOM killer cannot be read on this host.
    Missing,
    /// The worker ran on another node, whose launcher reads the counter.
    OfAnotherNode,
}

impl OomCounter {
    pub(crate) fn of(group: &GroupFailure) -> Self {
        if group.has_oom_counter { Self::Unchanged } else { Self::Missing }
    }
}

/// The meaning of an exit.
pub(crate) fn explained(failure: &WorkerFailure, counter: OomCounter) -> String {
    let signal = match failure.cause {
        ExitCause::Code(code) => return format!("exited with code {code}"),
        ExitCause::Signal(signal) => signal,
    };
    let name = signal_text(signal);
    let meaning = match name.as_str() {
        _ if failure.out_of_memory => {
            "sent by the kernel's OOM killer; use less memory or raise the container's memory limit"
        }
        "SIGKILL" => match counter {
            OomCounter::Unchanged => {
                "sent by another process or by the worker itself; not by the OOM killer, whose counter for this container did \
                 not rise"
            }
            OomCounter::Missing => {
                "sent by another process, by the worker itself or by the OOM killer; this host has no OOM counter to read: check \
                 the kernel log (dmesg)"
            }
            OomCounter::OfAnotherNode => "see the output of that node's launcher",
        },
        "SIGPIPE" => "wrote to a pipe or socket whose reader has closed it",
        "SIGSEGV" => "segmentation fault in native code",
        "SIGBUS" => {
            "memory behind a mapped file is missing; often /dev/shm is too small (docker run --shm-size; in \
                     Kubernetes a memory-backed emptyDir on /dev/shm)"
        }
        "SIGABRT" => "aborted; native code prints the reason on standard error",
        "SIGILL" => "illegal instruction; often code built for another CPU",
        "SIGFPE" => "arithmetic error in native code, such as a division by zero",
        "SIGTERM" | "SIGINT" | "SIGHUP" | "SIGQUIT" => {
            "sent by another process or by the worker itself; not by this launcher"
        }
        _ => "see signal(7)",
    };
    format!("killed by {name}: {meaning}")
}

/// The meaning of the exit of a worker that was not the first to fail. The launcher stops such workers itself.
pub(crate) fn explained_later(failure: &WorkerFailure, counter: OomCounter) -> String {
    match failure.cause {
        ExitCause::Signal(signal) if !failure.out_of_memory => match signal_text(signal).as_str() {
            name @ ("SIGTERM" | "SIGKILL") => stopped(name),
            _ => explained(failure, counter),
        },
        ExitCause::Signal(_) | ExitCause::Code(_) => explained(failure, counter),
    }
}

/// A worker that was not the first to fail was killed by SIGTERM or SIGKILL.
fn stopped(name: &str) -> String {
    format!("killed by {name}, which this launcher sends to the other workers after the first failure")
}
