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

pub(super) mod call;
pub(super) mod contract;
mod copy;
#[cfg(feature = "cuda")]
mod cuda;
mod host;
pub(super) mod layout;
mod measure;
pub(super) mod mxom;
pub(super) mod supervisor;

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

use diagnosis::switchbox::{DEADLINE, Finding, NO_PROBE, Settings};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

pub(super) use self::copy::{CopyTask, run as run_copy};
use super::{
    GRACE, Helper,
    handle::{Limits, Listeners, hear},
    process,
    wire::{End, Task},
};

/// The variable that names MetaX's tool.
pub const TOOL_VARIABLE: &str = "SWITCHBOX_CHECK_TOOL_PATH";

/// Where MetaX's tool lies when the variable is not set.
pub const TOOL: &str = "/opt/mxmap/bin/mxom-client";

/// What the check that follows is told: a collective must not use links that this one has just judged.
pub const WITHOUT_OPTIC_LINK: (&str, &str) = ("MCCL_DISABLE_OPTIC_LINK", "1");

/// What the supervisor needs beyond the check's own deadline: to choose a probe before, and to clear away after.
const SLACK: Duration = Duration::from_secs(15);

/// Which probe measures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchboxProbe {
    /// MetaX's where there is anything of MetaX, else CUDA where there is a device. Never the host's.
    Auto,
    /// MetaX's tool.
    Mxom,
    /// Peer copies by NVIDIA's driver.
    Cuda,
    /// A copy between two processes.
    Host,
    /// A program, run by `/bin/sh -c`.
    Command(OsString),
}

impl From<&OsStr> for SwitchboxProbe {
    /// `auto`, `mxom`, `cuda`, `host`; anything else is a program.
    fn from(words: &OsStr) -> Self {
        match words.to_str() {
            Some("auto") => Self::Auto,
            Some("mxom") => Self::Mxom,
            Some("cuda") => Self::Cuda,
            Some("host") => Self::Host,
            _ => Self::Command(words.to_owned()),
        }
    }
}

/// A check of this node's switchbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchboxTask {
    /// What is measured, and how much of it must be good.
    pub settings: Settings,
    /// By which probe.
    pub probe: SwitchboxProbe,
    /// MetaX's tool.
    pub tool: PathBuf,
    /// `/sys`, or a tree like it.
    pub sysfs: PathBuf,
    /// How long one pair may take; `None`: as long as the probe usually may, 10 s for MetaX's tool and 20 s for others.
    pub patience: Option<Duration>,
}

impl SwitchboxTask {
    /// On this host. `tool`: what [`TOOL_VARIABLE`] says, if anything.
    #[must_use]
    pub fn new(settings: Settings, probe: SwitchboxProbe, tool: Option<&OsStr>) -> Self {
        let tool = tool.filter(|tool| !tool.is_empty()).unwrap_or_else(|| OsStr::new(TOOL));
        Self { settings, probe, tool: tool.into(), sysfs: "/sys".into(), patience: None }
    }
}

/// What the supervisor came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SwitchboxEnd {
    /// It has measured.
    Found(Finding),
    /// There is no probe for this host.
    NoProbe,
    /// It cannot be done as it was asked for; in words.
    Cannot(String),
}

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
    let heard = hear(started, limits, Listeners { said, ..Listeners::default() }).await;
    match heard.end {
        Some(End::Switchbox(SwitchboxEnd::Found(finding))) => Ok(finding),
        Some(End::Switchbox(SwitchboxEnd::NoProbe)) => Err(SwitchboxError::NoProbe),
        Some(End::Switchbox(SwitchboxEnd::Cannot(why))) => Err(SwitchboxError::Cannot(why)),
        _ => Err(SwitchboxError::Died(heard.silence(DEADLINE + SLACK))),
    }
}
