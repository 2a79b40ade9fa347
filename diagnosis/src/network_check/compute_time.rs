//! A compute time, and what was timed.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// What was timed. Only times of one kind are compared: a processor's time cannot be compared with an accelerator's,
/// nor those of two models.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum ComputeKind {
    /// Absent or unknown, as from a node of another release. Such times are compared with each other.
    #[default]
    Unspecified,
    /// Matrix products on any processor.
    Processor,
    /// dlrover's CUDA kernel on an accelerator.
    OwnKernel {
        /// The accelerator, as its driver calls it.
        model: String,
    },
    /// Matrix products by NVIDIA's cuBLAS.
    Cublas {
        /// The accelerator, as its driver calls it.
        model: String,
    },
}

impl fmt::Display for ComputeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("an unknown measure"),
            Self::Processor => f.write_str("matrix products on the processor"),
            Self::OwnKernel { model } => write!(f, "dlrover's CUDA kernel on {model}"),
            Self::Cublas { model } => write!(f, "matrix products by cuBLAS on {model}"),
        }
    }
}

/// The time of one sample of the compute probe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ComputeTime {
    pub time: Duration,
    pub kind: ComputeKind,
}

impl From<Duration> for ComputeTime {
    /// Of [`ComputeKind::Unspecified`].
    fn from(time: Duration) -> Self {
        Self { time, kind: ComputeKind::Unspecified }
    }
}
