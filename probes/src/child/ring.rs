//! The ring: member i sends to member i + 1 and receives from member i - 1; each connection carries bytes both ways.
//! A pair is a ring of two, with two connections.
//!
//! [`peers`] connects the members, [`transfer`] is the check, [`reduce`] an all-reduce; [`connection`] is one
//! connection. Blocking threads, one for each direction: this process does nothing else.

mod connection;
pub(crate) mod error;
pub(crate) mod hello;
pub(crate) mod manual;
pub(crate) mod peers;
mod reduce;
mod transfer;

use std::{net::TcpListener, os::fd::FromRawFd as _};

use self::{
    error::RingError,
    peers::{Acceptor, connect_peers},
};
use super::progress::Progress;
use crate::wire::{
    group::Measured,
    ring::{RingMode, RingPlan, RingTask},
};

/// Runs this member of the ring.
pub(super) fn run(task: RingTask, progress: &Progress) -> Result<Measured, RingError> {
    let RingTask { plan, listener } = task;
    check(&plan)?;
    // SAFETY: the agent has left it open for this process, which uses it nowhere else.
    let listener = unsafe { TcpListener::from_raw_fd(listener) };
    let acceptor = Acceptor::open(listener, plan.token).map_err(RingError::Thread)?;
    let links = connect_peers(&plan, &acceptor)?;
    match plan.mode {
        RingMode::Check => Ok(transfer::run(plan.seed, links, progress)?.probed().into()),
        RingMode::AllReduce { bytes, repeats } => reduce::run(&plan, links, bytes, repeats.max(1), progress),
    }
}

fn check(plan: &RingPlan) -> Result<(), RingError> {
    let size = plan.members.len();
    if size < 2 || plan.me >= size || plan.ports.len() != size {
        return Err(RingError::NoRing { members: size, ports: plan.ports.len(), me: plan.me });
    }
    Ok(())
}
