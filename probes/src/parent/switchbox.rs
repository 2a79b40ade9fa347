//! The switchbox check: pairs of accelerators are measured against each other, by whichever probe fits the host.
//!
//! ```text
//! agent ---- plan ----> dlrover-probe (supervisor: drives diagnosis::switchbox::Check) ----> one process a measurement
//!       <--- lines for people, and what was found ---
//! ```
//!
//! Nothing here touches a driver itself: each measurement is a process of its own, killed when its time is over, and
//! when the supervisor ends nothing of what it started is left. When the agent dies, the kernel tells the supervisor.
//!
//! * `mxom`: MetaX's own tool; `layout`: which accelerator hangs on which socket.
//! * `contract`: any program that reads and writes two JSON documents. Our own two probes are such programs:
//!   `cuda` (peer copies) and `host` (a copy between two processes, which tests no link).

use std::time::Duration;

use diagnosis::switchbox::{DEADLINE, Finding, NO_PROBE};
use tokio::sync::{mpsc, watch};

use super::{
    handle::{Limits, Subscribers, supervise},
    process,
};
use crate::{
    GRACE, Helper,
    wire::{
        End, Task,
        switchbox::{SwitchboxEnd, SwitchboxTask},
    },
};

/// What the supervisor needs beyond the check's own deadline: to choose a probe before, and to clear away after.
const SLACK: Duration = Duration::from_secs(15);

/// Why a switchbox could not be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchboxError {
    /// There is no probe for this host, which is nobody's fault.
    #[error("{NO_PROBE}, or leave --switchbox-check out")]
    NoProbe,
    /// The host contradicts itself, or is not the one that the pairs were made for.
    #[error("the switchbox cannot be checked: {0}")]
    Cannot(String),
    /// The supervisor died, or did not come to an end.
    #[error("{0}")]
    Died(String),
}

/// Checks this node's switchbox, in processes of their own, on a tokio runtime. `said` gets the lines for people, as
/// far as there is room: one when it begins, one for each pair that is not good, one when it ends. True in `cancel`, or its sender's end, ends the check.
///
/// # Errors
/// When nothing is known of any pair.
pub async fn check_switchbox(
    task: SwitchboxTask,
    helper: &Helper,
    said: Option<mpsc::Sender<String>>,
    cancel: Option<watch::Receiver<bool>>,
) -> Result<Finding, SwitchboxError> {
    let started = process::start(helper, &Task::Switchbox(task), None)
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
