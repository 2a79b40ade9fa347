//! Why a check excludes a node, for the message on that node.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::network_check::{Component, LocalFault, NodeVerdict};

/// Why a check excludes a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The verdict: `fault`, `local-fault`, ...
    pub verdict: String,
    /// The evidence, with the numbers.
    pub evidence: String,
    /// What to check first.
    pub look_at: String,
    /// The check could not decide whether the node is at fault: it leaves so that others may be tried.
    pub is_inconclusive: bool,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, evidence, .. } = self;
        write!(f, "excluded by the network check ({verdict})")?;
        if !evidence.is_empty() {
            write!(f, ": {evidence}")?;
        }
        Ok(())
    }
}

impl NodeVerdict {
    /// The verdict as reports have it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Fault => "fault",
            Self::LocalFault(_) => "local-fault",
            Self::Lost { .. } => "lost",
            Self::Unreachable => "unreachable",
            Self::StragglerCompute => "straggler-compute",
            Self::StragglerNetwork => "straggler-network",
            Self::Flaky => "flaky",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// The value of a taint: the verdict, or the component where repairs are not made at the node.
    #[must_use]
    pub fn taint_value(&self) -> &'static str {
        match self {
            Self::LocalFault(LocalFault { component: Component::Switchbox, .. }) => "switchbox",
            _ => self.as_str(),
        }
    }

    /// What to check first; empty for a healthy node.
    #[must_use]
    pub fn look_at(&self) -> &'static str {
        match self {
            Self::Healthy => "",
            Self::Fault => {
                "this node's network interface, cable, driver and firewall, and the address that it joins with"
            }
            Self::LocalFault(LocalFault { component, .. }) => match component {
                Component::GpuBusy => {
                    "what uses the memory of the accelerators: the processes named, or those that nvidia-smi or mx-smi \
                     shows on the host; the driver reports no fault of these accelerators"
                }
                Component::GpuPermission => {
                    "CUDA_VISIBLE_DEVICES, the device files of this container and their permissions; the accelerators \
                     themselves may be healthy"
                }
                Component::SwitchboxProbe => {
                    "the switchbox probe (--switchbox-probe; SWITCHBOX_CHECK_TOOL_PATH for MetaX's tool) and the \
                     permissions of this user; too little was measured to call a link broken"
                }
                Component::CheckCommand => {
                    "the output of the check command when run by hand on this node; then the node itself"
                }
                Component::Switchbox => {
                    "the accelerators' driver, and the optical modules and cables between the switchbox and the \
                     accelerators on the sockets named, if any"
                }
                Component::Probe => {
                    "the kernel log (dmesg) and the drivers of this node: the self-test did not reach a component"
                }
                Component::Other(_) => "the component named, its driver and the kernel log (dmesg)",
            },
            Self::Lost { .. } => "whether this node's machine failed, or its container or launcher ended",
            Self::Unreachable => {
                "the uplink of this node's switch, and the switches and cables on the path to the nodes named; this \
                 node may be healthy"
            }
            Self::StragglerCompute => {
                "this node's clock throttling, temperature and power limits, CPU quotas, and what else runs on it"
            }
            Self::StragglerNetwork => {
                "the speed and errors of this node's network interface (ethtool), its cable, and what else uses it"
            }
            Self::Flaky => {
                "the cable and port of this node's network interface: link flaps, CRC errors and drops"
            }
            Self::Inconclusive => {
                "the network between the nodes that failed together. With one more healthy node, or with more check \
                 rounds if all of them were used, the check could decide"
            }
        }
    }
}
