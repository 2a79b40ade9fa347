//! What the process that asks for accelerators is told, and what it tells while it listens to their driver.

use std::{ffi::OsString, path::PathBuf};

use diagnosis::gpus::GpuUse;
use serde::{Deserialize, Serialize};

/// What the process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GpuTask {
    pub(crate) root: PathBuf,
    pub(crate) path: OsString,
}

/// What the driver tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuMessage {
    /// An error.
    Error {
        /// NVML's number of the device.
        gpu: u32,
        /// NVIDIA's number of the error (`Xid`).
        code: u64,
    },
    /// Who holds memory.
    Memory(Vec<GpuUse>),
}
