//! The messages between an agent and its probe.

pub(crate) mod command;
pub(crate) mod gpus;
pub(crate) mod group;
pub(crate) mod ring;
pub(crate) mod stacks;
pub(crate) mod switchbox;

use std::collections::BTreeMap;

use diagnosis::{
    gpus::Inventory,
    network_check::{ComputeTime, LocalCheck, Probed},
};
use serde::{Deserialize, Serialize};

use self::{
    command::{CannotRun, CommandTask},
    gpus::{GpuMessage, GpuTask},
    group::Measured,
    ring::RingTask,
    stacks::{StacksMessage, StacksTask},
    switchbox::{CopyTask, SwitchboxEnd, SwitchboxTask},
};

/// The task of a probe: the one document on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// [`crate::check_locally`].
    Local {
        /// Whether accelerators are checked too.
        accelerators: bool,
        /// Their numbers by PCI address.
        places: BTreeMap<String, u32>,
    },
    /// [`crate::measure_compute`].
    Compute {
        times: u32,
        /// Whether accelerators are measured, where there are any.
        accelerators: bool,
    },
    /// [`crate::take_inventory`].
    Gpus(GpuTask),
    /// [`crate::watch_gpus`].
    WatchGpus {
        /// Whether memory in use is reported too.
        and_memory: bool,
    },
    /// [`crate::start_ring`].
    Ring(RingTask),
    /// [`crate::start_command`].
    Command(CommandTask),
    /// [`crate::check_switchbox`].
    Switchbox(SwitchboxTask),
    /// One measurement of it, by our own program.
    SwitchboxCopy(CopyTask),
    /// [`crate::take_stacks`].
    Stacks(StacksTask),
}

/// One line of a probe's standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ProbeMessage {
    /// The progress.
    Progress(Probed),
    /// The next step, to be named if it hangs.
    At(String),
    /// The inventory so far.
    Partial(Box<Inventory>),
    /// An event of the accelerators' driver.
    Gpu(GpuMessage),
    /// A part of the stacks of a process.
    Stacks(StacksMessage),
    /// A line for the log.
    Log(String),
    /// The result; nothing follows.
    End(End),
}

/// The result of a probe.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum End {
    /// Of [`Task::Local`].
    Local(LocalCheck),
    /// Of [`Task::Compute`].
    Compute(Vec<ComputeTime>),
    /// Of [`Task::Gpus`].
    Inventory(Box<Inventory>),
    /// Of [`Task::Ring`] and [`Task::Command`].
    Group(Result<Measured, CannotRun>),
    /// Of [`Task::Switchbox`].
    Switchbox(SwitchboxEnd),
    /// Of [`Task::Stacks`], whose messages came before.
    Stacks,
}
