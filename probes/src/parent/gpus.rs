//! The inventory of a node's accelerators, by drivers and vendors' tools.
//!
//! It is gathered in a process of its own, which reports after each accelerator: a driver that hangs at the fourth
//! does not hide the first three. A node has accelerators of one vendor: once some are found, no other source is
//! queried.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use diagnosis::{gpus::Inventory, network_check::Component};
use tokio::sync::{mpsc, watch};

use super::{
    handle::{Limits, ProbeRun, Subscribers, supervise},
    process,
};
use crate::{
    GRACE, ProbeProgram,
    wire::{
        End, Task,
        gpus::{GpuMessage, GpuTask},
    },
};

/// How an inventory is gathered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPlan {
    /// When it is cut short; what is known by then counts.
    pub deadline: Duration,
    /// Contains `sys` and `dev`: `/`, except in tests.
    pub root: PathBuf,
    /// Directories that are searched for vendors' tools, in the form of `PATH`; empty: only where a driver's package
    /// installs them.
    pub path: OsString,
    /// How its process is started.
    pub program: ProbeProgram,
}

impl Default for GpuPlan {
    /// Two seconds, on this machine, without tools.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(2),
            root: PathBuf::from("/"),
            path: OsString::new(),
            program: ProbeProgram::default(),
        }
    }
}

/// Gathers the inventory of this node, on a tokio runtime. Never fails: an error is a note in it.
pub async fn take_inventory(plan: GpuPlan) -> Inventory {
    let task = Task::Gpus(GpuTask { root: plan.root.clone(), path: plan.path.clone() });
    let started = match process::start(&plan.program, &task, None) {
        Ok(started) => started,
        Err(error) => return Inventory { notes: vec![rules::chain(&error)], ..Inventory::default() },
    };
    let limits = Limits { cancel: None, deadline: Some(plan.deadline), grace: GRACE };
    let run = supervise(started, limits, Subscribers::default()).await;
    from_run(run, plan.deadline).bounded()
}

/// Gathers the inventory of this node as [`take_inventory`] does, on a runtime that it makes on this thread.
#[must_use]
pub fn inventory_now(plan: GpuPlan) -> Inventory {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(take_inventory(plan)),
        Err(error) => Inventory {
            notes: vec![format!(
                "cannot query the accelerators: \
            {error}"
            )],
            ..Inventory::default()
        },
    }
}

fn from_run(run: ProbeRun, deadline: Duration) -> Inventory {
    if let Some(End::Inventory(inventory)) = run.end {
        return *inventory;
    }
    let why = run.no_answer(deadline);
    let at = run.at.unwrap_or_else(|| Component::Probe.into());
    let mut inventory = run.partial.map_or_else(Inventory::default, |partial| *partial);
    inventory.notes.push(why);
    inventory.hangs_at = Some(at);
    inventory
}

/// Forwards events until `cancel` is true or closed, or the driver fails. With `and_memory` it also queries the
/// memory in use once a second. Messages without room are dropped. Returns why it ended.
pub async fn watch_gpus(
    program: ProbeProgram,
    and_memory: bool,
    subscribers: mpsc::Sender<GpuMessage>,
    cancel: watch::Receiver<bool>,
) -> String {
    let started = match process::start(&program, &Task::WatchGpus { and_memory }, None) {
        Ok(started) => started,
        Err(error) => return rules::chain(&error),
    };
    let limits = Limits { cancel: Some(cancel), deadline: None, grace: GRACE };
    let run =
        supervise(started, limits, Subscribers { gpus: Some(subscribers), ..Subscribers::default() }).await;
    run.failure()
}
