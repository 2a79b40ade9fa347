//! What an agent and its probe say to each other.

use std::collections::BTreeMap;

use diagnosis::{
    gpus::Inventory,
    network_check::{ComputeTime, LocalCheck, Probed},
};
use serde::{Deserialize, Serialize};

use super::{
    command::CommandTask,
    gpus::{GpuTask, GpuWord},
    handle::Measured,
    ring::RingTask,
    switchbox::{CopyTask, SwitchboxEnd, SwitchboxTask},
};

/// What a probe is to do: the one document on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Task {
    /// [`super::check_locally`].
    Local {
        /// Whether accelerators are looked at too.
        accelerators: bool,
        /// Their numbers by their places on the bus.
        places: BTreeMap<String, u32>,
    },
    /// [`super::measure_compute`].
    Compute {
        /// How many samples.
        times: u32,
        /// Whether accelerators are measured, where there are any.
        accelerators: bool,
    },
    /// [`super::take_inventory`].
    Gpus(GpuTask),
    /// [`super::watch_gpus`].
    WatchGpus {
        /// Who holds memory, too.
        and_memory: bool,
    },
    /// [`super::start_ring`].
    Ring(RingTask),
    /// [`super::start_command`].
    Command(CommandTask),
    /// [`super::check_switchbox`].
    Switchbox(SwitchboxTask),
    /// One measurement of it, by a probe of our own.
    SwitchboxCopy(CopyTask),
}

/// One line of a probe's standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Word {
    /// How far it is.
    Progress(Probed),
    /// What it is about to touch, so that who hangs there can be named.
    At(String),
    /// What an inventory has so far.
    SoFar(Box<Inventory>),
    /// What the accelerators' driver tells.
    Gpu(GpuWord),
    /// A line that the user's program said.
    Said(String),
    /// What it came to; nothing follows.
    End(End),
}

/// What a probe came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum End {
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
