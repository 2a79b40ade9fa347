//! The ring: member i sends to member i + 1 and hears from member i - 1, and each connection carries bytes both
//! ways. A pair is a ring of two, with two connections.
//!
//! [`meet`] finds the neighbours, [`transfer`] is the check, [`reduce`] an all-reduce; [`link`](mod@link) is one
//! connection. Threads that block, one for each direction: this process does nothing else.

pub(super) mod by_hand;
pub(super) mod error;
pub(super) mod hello;
mod link;
pub(super) mod meet;
mod reduce;
mod transfer;

use std::{
    net::TcpListener,
    os::fd::{AsRawFd as _, FromRawFd as _, RawFd},
    time::Duration,
};

use diagnosis::network_check::Probed;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::{
    error::RingError,
    meet::{Door, meet},
};
use super::{
    GRACE, Helper, Listener, Measured, ProbeHandle, handle::Listeners, process, progress::Progress,
    wire::Task,
};

/// What the ring is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingMode {
    /// Known bytes both ways on every connection, every one checked.
    Check,
    /// A ring all-reduce of 32-bit floating point numbers, the sum checked.
    AllReduce {
        /// Size of what is summed; rounded down to whole numbers.
        bytes: u64,
        /// How often, beside one that is not timed; at least once.
        repeats: u32,
    },
}

/// Who forms a ring, and what for. All members have the same but for [`me`](Self::me).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingPlan {
    /// Names the check, round, group and test. Whoever comes with another is turned away.
    pub token: u64,
    /// Of the bytes that are moved.
    pub seed: u64,
    /// Which member this node is.
    pub me: usize,
    /// Host name or address of each member, in the order of the ring; the one that workers will use.
    pub members: Vec<String>,
    /// [`Listener::port`] of each member.
    pub ports: Vec<u16>,
    /// So long is a neighbour that cannot be reached tried again. There is no other time limit; the master has one.
    pub connect_patience: Duration,
    /// What it is for.
    pub mode: RingMode,
}

/// What an all-reduce was measured at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AllReduced {
    /// Size of what was summed.
    pub bytes: u64,
    /// Members of the ring.
    pub members: usize,
    /// The median of the repeats.
    pub seconds_median: f64,
}

impl AllReduced {
    /// Bytes per second, as its user sees it.
    #[must_use]
    pub fn algorithm_bandwidth(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = self.bytes as f64;
        bytes / self.seconds_median
    }

    /// Bytes per second that crossed each link: 2 (k - 1) / k as many.
    #[must_use]
    pub fn bus_bandwidth(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let members = self.members as f64;
        self.algorithm_bandwidth() * 2.0 * (members - 1.0) / members
    }
}

/// A plan, and the inherited descriptor of the listener.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RingTask {
    pub(super) plan: RingPlan,
    listener: RawFd,
}

impl RingPlan {
    /// Bytes that this node is to receive.
    pub(super) fn total_bytes(&self) -> u64 {
        match self.mode {
            RingMode::Check => 2 * transfer::SIZES.iter().sum::<u64>(),
            RingMode::AllReduce { bytes, repeats } => {
                reduce::bytes_received(bytes, self.members.len()) * (u64::from(repeats.max(1)) + 1)
            }
        }
    }

    fn next(&self) -> usize {
        (self.me + 1) % self.members.len()
    }

    fn previous(&self) -> usize {
        (self.me + self.members.len() - 1) % self.members.len()
    }

    fn address(&self, member: usize) -> String {
        let host = &self.members[member];
        let port = self.ports[member];
        if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }

    fn check(&self) -> Result<(), RingError> {
        let size = self.members.len();
        if size < 2 || self.me >= size || self.ports.len() != size {
            return Err(RingError::NoRing { members: size, ports: self.ports.len(), me: self.me });
        }
        Ok(())
    }
}

/// Starts this node's part of a ring, on a tokio runtime. `on_progress` is told [`Probed::Unfinished`] at most four
/// times a second, as far as it has room.
///
/// Never fails: what keeps the probe from starting is what it comes to.
#[must_use]
pub fn start_ring(
    plan: RingPlan,
    listener: &Listener,
    helper: &Helper,
    on_progress: Option<mpsc::Sender<Probed>>,
) -> ProbeHandle {
    let total = plan.total_bytes();
    let task = Task::Ring(RingTask { plan, listener: listener.fd().as_raw_fd() });
    let started = process::start(helper, &task, Some(listener));
    ProbeHandle::hear(started, GRACE, total, Listeners { progress: on_progress, ..Listeners::default() })
}

/// The probe's side.
pub(super) fn run(task: RingTask, progress: &Progress) -> Result<Measured, RingError> {
    let RingTask { plan, listener } = task;
    plan.check()?;
    // SAFETY: the agent has left it open for this process, which uses it nowhere else.
    let listener = unsafe { TcpListener::from_raw_fd(listener) };
    let door = Door::open(listener, plan.token).map_err(RingError::Thread)?;
    let links = meet(&plan, &door)?;
    match plan.mode {
        RingMode::Check => Ok(transfer::run(plan.seed, links, progress)?.probed().into()),
        RingMode::AllReduce { bytes, repeats } => reduce::run(&plan, links, bytes, repeats.max(1), progress),
    }
}
