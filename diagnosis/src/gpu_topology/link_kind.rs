//! The link between two accelerators.
//!
//! The bandwidth of a link, in MB/s (10^6 bytes) in one direction, is assumed where it was not measured:
//!
//! | link | MB/s | from |
//! |---|---|---|
//! | `NV<n>` | n x 24200 | V100: 47.9 to 48.4 GB/s were measured over two links |
//! | `MX` | 50000 | a C500's own bandwidth table |
//! | `SYS` | 9000 | assumed, a PCIe 3 host |
//! | `NODE` | 11100 | `SYS` x 1.24, the ratio measured between same socket and across (RTX 4090: 50 and 40 GB/s) |
//! | `PHB`, `PXB`, `PIX` | 11400, 11700, 12000 | small steps, so that the nearer one wins; only their order is known |
//!
//! Choices depend on the order of these figures, hardly on their size; modelled gains depend on their ratios.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The link between two accelerators of one host, in the notation of `nvidia-smi topo -m` and `mx-smi topo -m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkKind {
    /// The same device (`X`).
    Same,
    /// So many bonded NVLinks, at least 1 (`NV2`).
    NvLink(u32),
    /// `MetaXLink` (`MX`).
    MetaXLink,
    /// PCI Express, and what it crosses.
    Pci(PciPath),
}

/// The part of the host that a PCI Express path crosses, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PciPath {
    /// At most one PCIe bridge (`PIX`).
    OneBridge,
    /// Several PCIe bridges, and not the host's (`PXB`).
    Bridges,
    /// The host's PCIe bridge, that is: the processor (`PHB`).
    HostBridge,
    /// The host's bridges of one NUMA node (`NODE`).
    NumaNode,
    /// The connection between NUMA nodes (`SYS`, once `SOC`).
    System,
}

impl PciPath {
    /// As `nvidia-smi` writes it.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::OneBridge => "PIX",
            Self::Bridges => "PXB",
            Self::HostBridge => "PHB",
            Self::NumaNode => "NODE",
            Self::System => "SYS",
        }
    }
}

impl LinkKind {
    /// One `NVLink` of a V100, in MB/s, one direction.
    pub const NVLINK_MBPS: u32 = 24_200;
    /// One `MetaXLink`, in MB/s, one direction.
    pub const METAXLINK_MBPS: u32 = 50_000;

    /// The assumed bandwidth, in MB/s in one direction; see the table of this module. 0 for the same device.
    #[must_use]
    pub const fn mbps(self) -> u32 {
        match self {
            Self::Same => 0,
            Self::NvLink(count) => count.saturating_mul(Self::NVLINK_MBPS),
            Self::MetaXLink => Self::METAXLINK_MBPS,
            Self::Pci(PciPath::OneBridge) => 12_000,
            Self::Pci(PciPath::Bridges) => 11_700,
            Self::Pci(PciPath::HostBridge) => 11_400,
            Self::Pci(PciPath::NumaNode) => 11_100,
            Self::Pci(PciPath::System) => 9_000,
        }
    }

    /// The number of direct links: those of `NVLink`, 1 of `MetaXLink`, none of PCIe.
    #[must_use]
    pub const fn count(self) -> u32 {
        match self {
            Self::NvLink(count) => count,
            Self::MetaXLink => 1,
            Self::Same | Self::Pci(_) => 0,
        }
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.pad("X"),
            Self::NvLink(count) => f.pad(&format!("NV{count}")),
            Self::MetaXLink => f.pad("MX"),
            Self::Pci(path) => f.pad(path.token()),
        }
    }
}

/// An unknown link in a topology table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a link between accelerators; expected X, NV<count>, MX, PIX, PXB, PHB, NODE or SYS")]
pub struct UnknownLink(pub String);

impl FromStr for LinkKind {
    type Err = UnknownLink;

    fn from_str(name: &str) -> Result<Self, UnknownLink> {
        let unknown = || UnknownLink(name.chars().take(40).collect());
        Ok(match name {
            "X" => Self::Same,
            "MX" => Self::MetaXLink,
            "PIX" => Self::Pci(PciPath::OneBridge),
            "PXB" => Self::Pci(PciPath::Bridges),
            "PHB" => Self::Pci(PciPath::HostBridge),
            "NODE" => Self::Pci(PciPath::NumaNode),
            "SYS" | "SOC" => Self::Pci(PciPath::System),
            _ => {
                let count = name.strip_prefix("NV").and_then(|count| count.parse().ok());
                Self::NvLink(count.filter(|count| (1..=64).contains(count)).ok_or_else(unknown)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_is_worth_more() {
        let message = ["X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV2", "MX"];
        let worth: Vec<u32> = message.iter().map(|name| name.parse::<LinkKind>().unwrap().mbps()).collect();
        assert!(worth.is_sorted_by(|one, next| one < next), "{worth:?}");
    }

    #[test]
    fn links_are_parsed_and_printed() {
        for name in ["X", "NV1", "NV18", "MX", "PIX", "PXB", "PHB", "NODE", "SYS"] {
            assert_eq!(name.parse::<LinkKind>().unwrap().to_string(), name);
        }
        assert_eq!("SOC".parse(), Ok(LinkKind::Pci(PciPath::System)));
        for name in ["", "NV", "NV0", "NV65", "NV-1", "x", "MX2", "P2P"] {
            assert_eq!(name.parse::<LinkKind>(), Err(UnknownLink(name.into())));
        }
    }
}
