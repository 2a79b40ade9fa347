//! What an agent and its probe say to each other.

use std::time::Duration;

use rules::network_check::{LocalCheck, Probed};
use serde::{Deserialize, Serialize};

use super::{command::CommandTask, handle::Measured, ring::RingTask};

/// What a probe is to do: the one document on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Task {
    /// [`super::check_locally`].
    Local {
        /// Whether accelerators are looked at too.
        accelerators: bool,
    },
    /// [`super::measure_compute`].
    Compute {
        /// How many samples.
        times: u32,
        /// Whether accelerators are measured, where there are any.
        accelerators: bool,
    },
    /// [`super::start_ring`].
    Ring(RingTask),
    /// [`super::start_command`].
    Command(CommandTask),
}

/// One line of a probe's standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Word {
    /// How far it is.
    Progress(Probed),
    /// What it is about to touch, so that who hangs there can be named.
    At(String),
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
    Compute(Vec<Duration>),
    /// Of [`Task::Ring`] and [`Task::Command`].
    Group(Measured),
}
