//! The switchbox check: pairs of accelerators are measured against each other, by the probe that fits the host.
//!
//! ```text
//! agent ---- plan ----> dlrover-probe (supervisor: drives diagnosis::switchbox::Check) ----> one process a measurement
//!       <--- log lines, finding ---
//! ```
//!
//! Nothing here touches a driver itself: each measurement is a process of its own, killed at its timeout, and when
//! the supervisor ends no process that it started is left. When the agent dies, the kernel signals the supervisor.
//!
//! * `mxom`: MetaX's own tool; `layout`: which accelerator is on which socket.
//! * `contract`: any program that reads and writes two JSON documents. Our own two are such programs: `cuda` (peer
//!   copies) and `host` (a copy between two processes, which tests no link).

use std::time::Duration;

use diagnosis::switchbox::{DEADLINE, NO_PROBE, SwitchboxFinding};
use tokio::sync::{mpsc, watch};

use super::{
    handle::{Limits, Subscribers, supervise},
    process,
};
use crate::{
    GRACE, ProbeProgram,
    wire::{
        End, Task,
        switchbox::{SwitchboxEnd, SwitchboxTask},
    },
};

/// What the supervisor needs beyond the check's own deadline, to choose a probe and to kill leftovers.
const SLACK: Duration = Duration::from_secs(15);

/// Why a switchbox could not be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchboxError {
    /// There is no probe for this host, which is not a fault.
    #[error("{NO_PROBE}, or leave --switchbox-check out")]
    NoProbe,
    /// The host's layout is invalid, or does not match the pairs.
    #[error("the switchbox cannot be checked: {0}")]
    Cannot(String),
    /// The supervisor died, or hung.
    #[error("{0}")]
    Died(String),
}

/// Checks this node's switchbox, in processes of their own, on a tokio runtime. `said` receives the log lines, as far
/// as there is room: one at the start, one for each bad pair, one at the end. True in `cancel`, or the end of its
/// sender, ends the check.
///
/// # Errors
/// When nothing is known of any pair.
pub async fn check_switchbox(
    task: SwitchboxTask,
    program: &ProbeProgram,
    said: Option<mpsc::Sender<String>>,
    cancel: Option<watch::Receiver<bool>>,
) -> Result<SwitchboxFinding, SwitchboxError> {
    let started = process::start(program, &Task::Switchbox(task), None)
        .map_err(|error| SwitchboxError::Died(rules::chain(&error)))?;
    let limits = Limits { cancel, deadline: Some(DEADLINE + SLACK), grace: GRACE * 3 };
    let run = supervise(started, limits, Subscribers { said, ..Subscribers::default() }).await;
    match run.end {
        Some(End::Switchbox(SwitchboxEnd::Found(finding))) => Ok(finding),
        Some(End::Switchbox(SwitchboxEnd::NoProbe)) => Err(SwitchboxError::NoProbe),
        Some(End::Switchbox(SwitchboxEnd::Cannot(why))) => Err(SwitchboxError::Cannot(why)),
        _ => Err(SwitchboxError::Died(run.no_answer(DEADLINE + SLACK))),
    }
}
