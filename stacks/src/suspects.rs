//! The odd ranks of a hang, and why each of them is one.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::model::RankDump;

/// The odd ranks, in order.
pub type Suspects = BTreeMap<u32, Reason>;

/// Why a rank is an odd one. As text it follows "rank 6 is" or stands for itself in a report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// The rank is in other code than its peers.
    Elsewhere { place: String, doing: Doing },
    /// The rank waits for its peers, but in another call than most of them.
    OtherCollective { waits_in: String, place: String },
    /// The rank is stopped by a signal.
    Stopped,
    /// A debugger has stopped the rank, and its stacks are not known.
    Traced,
    /// The rank is in uninterruptible sleep, usually in a file system or a driver.
    Uninterruptible { wchan: Option<String> },
    /// The rank has no process.
    Gone,
    /// The main thread of the rank has ended, and other threads have not.
    WithoutMain,
    /// All other ranks wait, and where this one is could not be read.
    Unread { why: String },
}

/// What a process does at its place, by its state and its system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    Unknown,
    Running,
    Sleeping,
    WaitingForLock,
    WaitingForSocket,
    WaitingForPipe,
    WaitingForInput,
    WaitingForChild,
    ReadingOrWriting,
}

impl Doing {
    /// What the main thread of a rank does.
    #[must_use]
    pub fn of(dump: &RankDump) -> Self {
        let call = dump.syscall.as_deref().unwrap_or_default();
        let wchan = dump.wchan.as_deref().unwrap_or_default();
        let in_kernel = |parts: &[&str]| parts.iter().any(|part| wchan.contains(part));
        if in_kernel(&["pipe_", "wait_for_partner", "fifo"]) {
            return Self::WaitingForPipe;
        }
        match call {
            "nanosleep" | "clock_nanosleep" => Self::Sleeping,
            "futex" | "futex_wait" | "futex_waitv" | "flock" => Self::WaitingForLock,
            "recvfrom" | "recvmsg" | "sendto" | "sendmsg" | "accept" | "accept4" | "connect" => {
                Self::WaitingForSocket
            }
            "poll" | "ppoll" | "select" | "pselect6" | "epoll_wait" | "epoll_pwait" => Self::WaitingForInput,
            "wait4" | "waitid" => Self::WaitingForChild,
            "" | "running" if in_kernel(&["hrtimer_nanosleep", "do_nanosleep"]) => Self::Sleeping,
            "" | "running" if in_kernel(&["futex"]) => Self::WaitingForLock,
            "" | "running" if in_kernel(&["sk_wait", "inet_csk_accept", "unix_stream", "wait_woken"]) => {
                Self::WaitingForSocket
            }
            "" | "running" if in_kernel(&["do_poll", "poll_schedule", "do_select", "ep_poll"]) => {
                Self::WaitingForInput
            }
            "" | "running" if in_kernel(&["do_wait"]) => Self::WaitingForChild,
            "read" | "write" | "readv" | "writev" | "open" | "openat" | "pread64" | "pwrite64" => {
                if in_kernel(&["sk_wait", "unix_stream", "wait_woken"]) {
                    Self::WaitingForSocket
                } else {
                    Self::ReadingOrWriting
                }
            }
            _ if dump.state.as_deref().is_some_and(|state| state.starts_with('R')) => Self::Running,
            _ => Self::Unknown,
        }
    }

    /// As in `rank 6 sleeps`; none when it is not known.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Unknown => None,
            Self::Running => Some("runs"),
            Self::Sleeping => Some("sleeps"),
            Self::WaitingForLock => Some("waits for a lock"),
            Self::WaitingForSocket => Some("waits for a socket"),
            Self::WaitingForPipe => Some("waits for a pipe"),
            Self::WaitingForInput => Some("waits for input"),
            Self::WaitingForChild => Some("waits for a child process"),
            Self::ReadingOrWriting => Some("reads or writes a file"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere { place, .. } => write!(f, "in {place}"),
            Self::OtherCollective { waits_in, place } => {
                write!(f, "waiting in {waits_in}, called from {place}")
            }
            Self::Stopped => f.write_str("stopped (SIGSTOP)"),
            Self::Traced => f.write_str("stopped by a debugger"),
            Self::Uninterruptible { wchan: Some(wchan) } => {
                write!(f, "in uninterruptible sleep (D), waiting in {wchan}")
            }
            Self::Uninterruptible { wchan: None } => f.write_str("in uninterruptible sleep (D)"),
            Self::Gone => f.write_str("without a process"),
            Self::WithoutMain => f.write_str("without a main thread, which has ended"),
            Self::Unread { why } => write!(f, "unknown: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doing(state: &str, syscall: Option<&str>, wchan: Option<&str>) -> Doing {
        Doing::of(&RankDump {
            state: Some(state.to_owned()),
            syscall: syscall.map(str::to_owned),
            wchan: wchan.map(str::to_owned),
            ..RankDump::new(0, 1)
        })
    }

    #[test]
    fn what_a_process_does_follows_from_its_call() {
        for (state, syscall, wchan, expected) in [
            ("R (running)", None, None, Doing::Running),
            ("R (running)", Some("running"), Some("0"), Doing::Running),
            ("S (sleeping)", Some("clock_nanosleep"), Some("0"), Doing::Sleeping),
            ("S (sleeping)", None, Some("hrtimer_nanosleep"), Doing::Sleeping),
            ("S (sleeping)", Some("futex"), None, Doing::WaitingForLock),
            ("S (sleeping)", Some("read"), Some("pipe_read"), Doing::WaitingForPipe),
            ("S (sleeping)", Some("openat"), Some("wait_for_partner"), Doing::WaitingForPipe),
            ("S (sleeping)", Some("read"), None, Doing::ReadingOrWriting),
            ("S (sleeping)", Some("recvfrom"), None, Doing::WaitingForSocket),
            ("S (sleeping)", Some("read"), Some("unix_stream_read_generic"), Doing::WaitingForSocket),
            ("S (sleeping)", Some("poll"), Some("do_poll.constprop.0"), Doing::WaitingForInput),
            ("S (sleeping)", None, None, Doing::Unknown),
        ] {
            assert_eq!(doing(state, syscall, wchan), expected, "{state} {syscall:?} {wchan:?}");
        }
    }
}
