//! The task and the messages of the process that queries accelerators.

use std::{ffi::OsString, path::PathBuf};

use diagnosis::gpus::GpuUse;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GpuTask {
    pub(crate) root: PathBuf,
    pub(crate) path: OsString,
}

/// An event of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuMessage {
    Error {
        /// NVML's number of the device.
        gpu: u32,
        /// NVIDIA's number of the error (`Xid`).
        code: u64,
    },
    /// The memory in use.
    Memory(Vec<GpuUse>),
}
