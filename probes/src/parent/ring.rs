//! Starts this node's part of a ring.

use std::os::fd::AsRawFd as _;

use diagnosis::network_check::Probed;
use tokio::sync::mpsc;

use super::{
    handle::{ProbeHandle, Subscribers},
    process,
};
use crate::{
    GRACE, ProbeProgram,
    listener::Listener,
    wire::{
        Task,
        ring::{RingPlan, RingTask},
    },
};

/// Starts this node's part of a ring, on a tokio runtime. `on_progress` receives [`Probed::Unfinished`] at most four
/// times a second, as far as it has room.
///
/// Never fails: an error to start is its result.
#[must_use]
pub fn start_ring(
    plan: RingPlan,
    listener: &Listener,
    program: &ProbeProgram,
    on_progress: Option<mpsc::Sender<Probed>>,
) -> ProbeHandle {
    let total = plan.total_bytes();
    let task = Task::Ring(RingTask { plan, listener: listener.fd().as_raw_fd() });
    let started = process::start(program, &task, Some(listener));
    ProbeHandle::supervise(
        started,
        GRACE,
        total,
        Subscribers { progress: on_progress, ..Subscribers::default() },
    )
}
