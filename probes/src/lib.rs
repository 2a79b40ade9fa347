//! The probes of the checks: they return numbers, never a verdict.
//!
//! ```text
//! agent ---- plan, one JSON document on stdin ----> dlrover-probe ---- sockets ---- probes of other nodes
//!       <--- JSON lines on stdout: progress, result ---
//! ```
//!
//! Every probe runs in a child process of the agent, which is this program under another name ([`NAME`]), so that a
//! hanging driver blocks nothing else. Every `main` calls [`run_if_probe`] first. The parent's side is
//! [`ProbeHandle`]; the messages are in `wire`.
//!
//! * [`check_locally`], [`measure_compute`]: tests of a node alone.
//! * [`take_inventory`]: the accelerators, by drivers and vendors' tools.
//! * [`start_ring`]: bytes round a ring of nodes; a pair is a ring of two.
//! * [`start_command`]: a program of the user in place of the ring.
//! * [`take_stacks`]: the stacks of processes of this node, when a job hangs.
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
        stacks::{StacksPlan, take_stacks},
        switchbox::{SwitchboxError, check_switchbox},
    },
    wire::{
        command::CannotRun,
        gpus::GpuMessage,
        group::{AllReduced, Measured},
        ring::{RingMode, RingPlan},
        stacks::StackTarget,
        switchbox::{SwitchboxProbe, SwitchboxTask, TOOL_VARIABLE, WITHOUT_OPTIC_LINK},
    },
};

/// The name under which the program runs as a probe.
pub const NAME: &str = "dlrover-probe";

/// Whether this program can load libraries of the host, such as NVIDIA's. A static one cannot: glibc's `dlopen` would
/// bring in a second C library, of the host's version.
pub const LOADS_LIBRARIES: bool = !cfg!(target_feature = "crt-static");

/// What to do about a build that cannot load such a library.
pub const OTHER_BUILD: &str = "install the wheel, or the tarball without \"static\" in its name";

/// From SIGTERM to SIGKILL, for our own probes.
pub const GRACE: Duration = Duration::from_secs(1);

/// From SIGKILL to giving up on a child that hangs inside the kernel.
pub const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// How a probe's process is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeProgram {
    /// A program whose `main` calls [`run_if_probe`] first.
    pub path: PathBuf,
    /// The launcher's id (`DLROVER_LAUNCHER_ID`), by which a later launcher finds leftovers.
    pub launcher_id: Option<String>,
    /// Variables that are added to the inherited ones: for example which accelerators it may use.
    pub variables: Vec<(OsString, OsString)>,
}

impl Default for ProbeProgram {
    /// This program, without an id.
    fn default() -> Self {
        Self { path: PathBuf::from("/proc/self/exe"), launcher_id: None, variables: Vec::new() }
    }
}

/// Runs the probe if this process was started as one, and returns its exit code; otherwise returns `None` at once.
/// Call it first, while there is one thread.
#[must_use]
pub fn run_if_probe() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    (name == OsStr::new(NAME)).then(child::run)
}
