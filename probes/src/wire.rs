//! What an agent and its probe say to each other.

pub(crate) mod command;
pub(crate) mod gpus;
pub(crate) mod group;
pub(crate) mod ring;
pub(crate) mod switchbox;

use std::collections::BTreeMap;

use diagnosis::{
    gpus::Inventory,
    network_check::{ComputeTime, LocalCheck, Probed},
};
use serde::{Deserialize, Serialize};

use self::{
    command::CommandTask,
    gpus::{GpuMessage, GpuTask},
    group::Measured,
    ring::RingTask,
    switchbox::{CopyTask, SwitchboxEnd, SwitchboxTask},
};

/// What a probe is to do: the one document on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// [`crate::check_locally`].
    Local {
        /// Whether accelerators are looked at too.
        accelerators: bool,
        /// Their numbers by their places on the bus.
        places: BTreeMap<String, u32>,
    },
    /// [`crate::measure_compute`].
    Compute {
        /// How many samples.
        times: u32,
        /// Whether accelerators are measured, where there are any.
        accelerators: bool,
    },
    /// [`crate::take_inventory`].
    Gpus(GpuTask),
    /// [`crate::watch_gpus`].
    WatchGpus {
        /// Who holds memory, too.
        and_memory: bool,
    },
    /// [`crate::start_ring`].
    Ring(RingTask),
    /// [`crate::start_command`].
    Command(CommandTask),
    /// [`crate::check_switchbox`].
    Switchbox(SwitchboxTask),
    /// One measurement of it, by a probe of our own.
    SwitchboxCopy(CopyTask),
}

/// One line of a probe's standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ProbeMessage {
    /// How far it is.
    Progress(Probed),
    /// What it is about to touch, so that who hangs there can be named.
    At(String),
    /// What an inventory has so far.
    Partial(Box<Inventory>),
    /// What the accelerators' driver tells.
    Gpu(GpuMessage),
    /// A line that the user's program said.
    Log(String),
    /// What it came to; nothing follows.
    End(End),
}

/// What a probe came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum End {
    /// Of [`Task::Local`].
    Local(LocalCheck),
    /// Of [`Task::Compute`].
    Compute(Vec<ComputeTime>),
    /// Of [`Task::Gpus`].
    Inventory(Box<Inventory>),
    /// Of [`Task::Ring`] and [`Task::Command`].
    Group(Measured),
    /// Of [`Task::Switchbox`].
    Switchbox(SwitchboxEnd),
}
