//! A compute time, and what it was taken of.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// What was timed. Only times of one kind are compared: one processor's time says nothing about another node's
/// accelerator, nor does one model's about another's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum ComputeKind {
    /// Nobody said. Those of whom nothing is known are compared with each other.
    #[default]
    Untold,
    /// Matrix products on a processor, whichever it is.
    Processor,
    /// A kernel of our own on an accelerator.
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
            Self::Untold => f.write_str("an unknown measure"),
            Self::Processor => f.write_str("matrix products on the processor"),
            Self::OwnKernel { model } => write!(f, "a kernel of our own on {model}"),
            Self::Cublas { model } => write!(f, "matrix products by cuBLAS on {model}"),
        }
    }
}

/// The time of one sample of the compute probe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ComputeTime {
    /// How long it took.
    pub time: Duration,
    /// What was timed.
    pub kind: ComputeKind,
}

impl From<Duration> for ComputeTime {
    /// Of [`ComputeKind::Untold`].
    fn from(time: Duration) -> Self {
        Self { time, kind: ComputeKind::Untold }
    }
}
