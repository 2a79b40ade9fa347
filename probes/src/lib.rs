//! The probes of the network check: they bring numbers back, never a verdict.
//!
//! ```text
//! agent ---- plan, one JSON document on stdin ----> dlrover-probe ---- sockets ---- other nodes' probes
//!       <--- JSON lines on stdout: progress, end ---
//! ```
//!
//! Every probe runs in a child of the agent, which is this very program under another name ([`NAME`]): a driver
//! that hangs takes the child with it and nobody else. Every `main` calls [`run_if_probe`] first. The parent's
//! side is [`ProbeHandle`]; what the two say to each other is in `wire`.
//!
//! * [`check_locally`], [`measure_compute`]: what a node finds out alone.
//! * [`take_inventory`]: what drivers and vendors' tools say of its accelerators.
//! * [`start_ring`]: bytes round a ring of nodes; a pair is a ring of two.
//! * [`start_command`]: a program of the user's in place of the ring.
//! * [`check_switchbox`]: the links between this node's accelerators and their switchbox.

mod child;
mod listener;
mod parent;
#[doc(hidden)]
pub mod readers;
mod wire;

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

pub use self::{
    child::ring::{
        error::{Peer, RingError, WrongByte},
        manual::{PairListener, PairMeasured, dial_pair, listen_for_pair},
    },
    listener::{Listener, Reservation},
    parent::{
        command::{CommandPlan, start_command},
        gpus::{GpuPlan, inventory_now, take_inventory, watch_gpus},
        handle::{Canceller, ProbeHandle},
        local::{LocalPlan, check_locally, measure_compute},
        ring::start_ring,
        switchbox::{SwitchboxError, check_switchbox},
    },
    wire::{
        command::CANNOT_RUN,
        gpus::GpuMessage,
        group::{AllReduced, Measured},
        ring::{RingMode, RingPlan},
        switchbox::{SwitchboxProbe, SwitchboxTask, TOOL_VARIABLE, WITHOUT_OPTIC_LINK},
    },
};

/// The name by which a child knows that it is a probe.
pub const NAME: &str = "dlrover-probe";

/// From the polite word to SIGKILL, for a probe of ours.
pub const GRACE: Duration = Duration::from_secs(1);

/// From SIGKILL to giving a child up that does not even die of that: it hangs inside the kernel.
pub const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// How a probe's process is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Helper {
    /// A program whose `main` calls [`run_if_probe`] first.
    pub program: PathBuf,
    /// The launcher's mark (`DLROVER_LAUNCHER_ID`), by which a later launcher finds what was left behind.
    pub launcher_id: Option<String>,
    /// Variables beside the inherited ones, or in place of them: which accelerators it may use.
    pub variables: Vec<(OsString, OsString)>,
}

impl Default for Helper {
    /// This very program, without a mark.
    fn default() -> Self {
        Self { program: PathBuf::from("/proc/self/exe"), launcher_id: None, variables: Vec::new() }
    }
}

/// If this process was started as a probe, is one, and gives its exit code when it is done. Otherwise `None`, at
/// once. To be called before anything else, as long as there is one thread.
#[must_use]
pub fn run_if_probe() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    (name == OsStr::new(NAME)).then(child::run)
}
