//! The task and the result of a switchbox check, and the request to a measuring program.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

use diagnosis::switchbox::{FEWEST, Settings, SocketPair, Style, SwitchboxFinding};
use serde::{Deserialize, Serialize};

pub(crate) const VERSION: u32 = 1;

/// Bytes of one copy.
pub(crate) const BYTES: u64 = 256 << 20;

/// The variable that names MetaX's tool.
pub const TOOL_VARIABLE: &str = "SWITCHBOX_CHECK_TOOL_PATH";

/// Where MetaX's tool is when the variable is not set.
pub const TOOL: &str = "/opt/mxmap/bin/mxom-client";

/// The variable for the network check that follows: a collective must not use links that this check has just judged.
pub const WITHOUT_OPTIC_LINK: (&str, &str) = ("MCCL_DISABLE_OPTIC_LINK", "1");

/// Which probe measures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwitchboxProbe {
    /// MetaX's if there is MetaX hardware or its tool, else CUDA if there is a device. Never the host's.
    Auto,
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
    fn from(message: &OsStr) -> Self {
        match message.to_str() {
            Some("auto") => Self::Auto,
            Some("mxom") => Self::Mxom,
            Some("cuda") => Self::Cuda,
            Some("host") => Self::Host,
            _ => Self::Command(message.to_owned()),
        }
    }
}

/// A check of this node's switchbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchboxTask {
    /// What to measure, and how much of it must be good.
    pub settings: Settings,
    pub probe: SwitchboxProbe,
    pub tool: PathBuf,
    /// `/sys`, or a tree like it.
    pub sysfs: PathBuf,
    /// The timeout for one pair; `None`: the probe's default, 10 s for MetaX's tool and 20 s for others.
    pub timeout: Option<Duration>,
}

impl SwitchboxTask {
    /// For this host. `tool`: the value of [`TOOL_VARIABLE`], if any.
    #[must_use]
    pub fn new(settings: Settings, probe: SwitchboxProbe, tool: Option<&OsStr>) -> Self {
        let tool = tool.filter(|tool| !tool.is_empty()).unwrap_or_else(|| OsStr::new(TOOL));
        Self { settings, probe, tool: tool.into(), sysfs: "/sys".into(), timeout: None }
    }
}

/// The result of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SwitchboxEnd {
    /// It has measured.
    Found(SwitchboxFinding),
    /// There is no probe for this host.
    NoProbe,
    /// It cannot be done as requested; the reason.
    Cannot(String),
}

/// The task of one of our own programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CopyTask {
    pub(crate) kind: CopyKind,
    pub(crate) request: Request,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CopyKind {
    Cuda,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Direction {
    /// From the first of the pair to the second.
    #[serde(rename = "ab")]
    There,
    /// And back.
    #[serde(rename = "ba")]
    Back,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) v: u32,
    pub(crate) pairs: Vec<SocketPair>,
    pub(crate) bytes: u64,
    pub(crate) iters: u32,
    pub(crate) warmup: u32,
    pub(crate) directions: Vec<Direction>,
    pub(crate) min_mbps: f64,
    pub(crate) deadline_ms: u64,
}

impl Request {
    /// Requests these pairs, within this time. Our own programs return every repetition; others take the mean
    /// themselves.
    pub(crate) fn new(settings: &Settings, pairs: Vec<SocketPair>, style: Style, timeout: Duration) -> Self {
        let (iters, warmup) = match style {
            Style::Repetitions => (FEWEST, 1),
            Style::Calls => (8, 2),
        };
        Self {
            v: VERSION,
            pairs,
            bytes: BYTES,
            iters,
            warmup,
            directions: vec![Direction::There, Direction::Back],
            min_mbps: settings.min.mb_per_s(),
            deadline_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}
