//! What is known of a node's accelerators and its host, as numbers. No verdicts.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    health::what_is_broken,
    xid::{Xid, xid_name},
};
use crate::{gpu_topology::LinkKind, network_check::Component};

/// More accelerators than any host has. A report of more is dropped.
pub const MAX_GPUS: usize = 64;

/// The most characters of any text that came from a driver or a tool.
const LONGEST_TEXT: usize = 200;

/// The most entries of the lists of one accelerator, and of notes. No true answer has more.
pub(super) const LONGEST_LIST: usize = 32;

/// The most reasons to hold clocks down; NVML has fewer.
const MAX_REASONS: usize = 8;

/// The vendor of accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    Nvidia,
    Metax,
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nvidia => "NVIDIA",
            Self::Metax => "MetaX",
        })
    }
}

/// A node's accelerators and its host. What could not be read is absent, never a guess.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// `None`: no accelerator was found.
    pub vendor: Option<Vendor>,
    pub driver: Option<String>,
    /// In the order of their places on the bus, which is not always CUDA's.
    pub gpus: Vec<Gpu>,
    /// The links between each two of them; may be incomplete.
    pub links: Vec<GpuLink>,
    pub host: Host,
    /// Facts for people: a library that is missing, a query without an answer.
    pub notes: Vec<String>,
    /// The query was cut short at this: `GPU 3`, `the NVIDIA driver`.
    pub hangs_at: Option<String>,
}

/// The link between two accelerators, the lower index first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLink {
    /// One.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// The link, as text: `NV2`.
    #[serde(with = "as_word")]
    pub link: LinkKind,
}

/// Documents have `NV2`, as every tool does.
mod as_word {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::LinkKind;

    pub(super) fn serialize<S: Serializer>(link: &LinkKind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(link)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LinkKind, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gpu {
    /// Its place in the driver's own order (NVML's), from 0.
    pub index: u32,
    pub name: Option<String>,
    /// `GPU-...`.
    pub uuid: Option<String>,
    /// `0000:3b:00.0`.
    pub pci: Option<String>,
    /// Bytes.
    #[serde(rename = "memory_total_bytes")]
    pub memory_total: Option<u64>,
    /// Bytes.
    #[serde(rename = "memory_used_bytes")]
    pub memory_used: Option<u64>,
    /// Its processes, as far as this container sees them.
    pub processes: Vec<GpuProcess>,
    /// Percent of the last sample period in which it computed.
    pub utilisation_percent: Option<u32>,
    /// Degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Why its clocks are held down; idle is no reason.
    pub throttled: Vec<String>,
    /// ECC errors since the driver was loaded that could not be corrected.
    pub ecc_uncorrected: Option<u64>,
    /// Rows of its memory that were replaced.
    pub remapped: Option<RemappedRows>,
    /// Its `NVLinks`.
    pub nvlinks: Vec<NvLink>,
    /// Errors that the driver reported while we listened.
    pub xids: Vec<Xid>,
    /// The processors nearest to its memory controller.
    pub numa_node: Option<u32>,
    /// It is split into slices (MIG).
    pub is_mig: bool,
    /// It cannot be used, and why.
    pub trouble: Option<GpuTrouble>,
}

impl Gpu {
    /// `GPU 3 (NVIDIA H100 80GB HBM3)`.
    #[must_use]
    pub fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("GPU {} ({name})", self.index),
            None => format!("GPU {}", self.index),
        }
    }

    /// The memory in use, in thousandths.
    #[must_use]
    pub fn used_permille(&self) -> Option<u64> {
        let (used, total) = (self.memory_used?, self.memory_total.filter(|total| *total > 0)?);
        u64::try_from(u128::from(used) * 1000 / u128::from(total)).ok()
    }
}

/// A process on an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// The driver's process id: in a container it may be the host's.
    pub pid: u32,
    /// Bytes of the accelerator's memory that it holds.
    #[serde(rename = "memory_bytes")]
    pub memory: Option<u64>,
}

/// Memory of an accelerator that a process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    pub gpu: u32,
    /// The process, its parent, and so on, as far as they are visible from here.
    pub lineage: Vec<i32>,
    /// Bytes.
    pub memory: u64,
}

/// Rows of an accelerator's memory that were replaced by spare ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After errors that were corrected.
    pub correctable: u32,
    /// After errors that were not.
    pub uncorrectable: u32,
    /// A replacement waits for a reset.
    pub pending: bool,
    /// There was no spare row left.
    pub failed: bool,
}

/// One `NVLink`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// From 0.
    pub number: u32,
    /// It carries data.
    pub is_active: bool,
}

/// Why an accelerator cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuTrouble {
    /// This user, or this container, may not use it.
    NotPermitted,
    /// It has fallen off the bus; only a reboot brings it back.
    Lost,
    /// The driver cannot open it, for this reason.
    CannotOpen(String),
}

/// The host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Host {
    /// Logical processors.
    pub cpus: Option<u32>,
    /// Bytes.
    #[serde(rename = "memory_total_bytes")]
    pub memory_total: Option<u64>,
    /// Bytes that a new process could get.
    #[serde(rename = "memory_available_bytes")]
    pub memory_available: Option<u64>,
    /// Hundredths of the average number of processes that could run, over the last minute.
    pub load_percent: Option<u32>,
    /// The limits of the container.
    pub limits: CgroupLimits,
}

/// The limits of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Hundredths of a processor; `None`: no limit.
    pub cpu_percent: Option<u32>,
    /// Bytes; `None`: no limit.
    #[serde(rename = "memory_bytes")]
    pub memory: Option<u64>,
}

impl Inventory {
    /// Cuts what is longer than any true answer, and replaces control characters. For everything that comes from a
    /// driver, a tool or the wire.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let word = |word: &mut String| {
            let is_well = word.chars().count() <= LONGEST_TEXT && !word.contains(char::is_control);
            if !is_well {
                let plain = word.chars().map(|it| if it.is_control() { '?' } else { it });
                *word = plain.take(LONGEST_TEXT).collect();
            }
        };
        let maybe = |it: &mut Option<String>| it.iter_mut().for_each(word);
        maybe(&mut self.driver);
        maybe(&mut self.hangs_at);
        self.notes.truncate(LONGEST_LIST);
        self.notes.iter_mut().for_each(word);
        self.gpus.truncate(MAX_GPUS);
        self.links.truncate(MAX_GPUS * (MAX_GPUS - 1) / 2);
        for gpu in &mut self.gpus {
            maybe(&mut gpu.name);
            maybe(&mut gpu.uuid);
            maybe(&mut gpu.pci);
            gpu.processes.truncate(LONGEST_LIST);
            gpu.throttled.truncate(MAX_REASONS);
            gpu.throttled.iter_mut().for_each(word);
            gpu.nvlinks.truncate(LONGEST_LIST);
            gpu.xids.truncate(LONGEST_LIST);
            if let Some(GpuTrouble::CannotOpen(reason)) = &mut gpu.trouble {
                word(reason);
            }
        }
        self
    }

    /// The most important part of one that is too long to be sent: states of accelerators, and no lists but that of
    /// errors. As JSON it has less than 60 KiB.
    #[must_use]
    pub fn outline(self) -> Self {
        /// In bytes, of characters that JSON does not escape.
        const LONGEST_NAME: usize = 60;
        const ERRORS: usize = 4;
        let mut inventory = self.bounded();
        let cut = |word: &mut String| {
            word.retain(|it| !['"', '\\'].contains(&it));
            word.truncate(word.floor_char_boundary(LONGEST_NAME));
        };
        inventory.links.clear();
        inventory.notes.clear();
        for gpu in &mut inventory.gpus {
            gpu.processes.clear();
            gpu.throttled.clear();
            gpu.nvlinks.clear();
            gpu.xids.truncate(ERRORS);
            [&mut gpu.name, &mut gpu.uuid, &mut gpu.pci].into_iter().flatten().for_each(cut);
            if let Some(GpuTrouble::CannotOpen(reason)) = &mut gpu.trouble {
                cut(reason);
            }
        }
        inventory
    }

    /// What needs attention, device by device.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let hangs = self.hangs_at.as_deref().map(cut_short).into_iter();
        let of = |gpu: &Gpu| {
            let broken = what_is_broken(gpu).map(|why| format!("{}: {why}", gpu.label()));
            let xids = gpu.xids.iter();
            let xids = xids.map(|xid| format!("{}: Xid {} ({})", gpu.label(), xid.code, xid_name(xid.code)));
            broken.into_iter().chain(xids).collect::<Vec<String>>()
        };
        hangs.chain(self.gpus.iter().flat_map(of)).collect()
    }
}

/// The query of the accelerators ended without a result: where it stopped, if that is known.
pub(super) fn cut_short(at: &str) -> String {
    match Component::from(at) {
        Component::Probe => "the query of the accelerators got no answer".to_owned(),
        _ => format!("the query of the accelerators stopped at {at}"),
    }
}

/// In one line: `8 x NVIDIA H100 80GB HBM3, driver 535.161.08`.
impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for gpu in &self.gpus {
            let name = gpu.name.as_deref().unwrap_or("accelerator of unknown model");
            match kinds.iter_mut().find(|(kind, _)| *kind == name) {
                Some((_, count)) => *count += 1,
                None => kinds.push((name, 1)),
            }
        }
        if kinds.is_empty() {
            f.write_str("no accelerator")?;
        }
        for (place, (kind, count)) in kinds.iter().enumerate() {
            write!(f, "{}{count} x {kind}", if place > 0 { ", " } else { "" })?;
        }
        if let Some(driver) = &self.driver {
            write!(f, ", driver {driver}")?;
        }
        if let Some(at) = &self.hangs_at {
            write!(f, "; {}", cut_short(at))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> Gpu {
        Gpu { index, name: Some("NVIDIA H100".into()), ..Gpu::default() }
    }

    #[test]
    fn in_one_line() {
        let mut inventory = Inventory { gpus: (0..8).map(gpu).collect(), ..Inventory::default() };
        inventory.driver = Some("535".into());
        assert_eq!(inventory.to_string(), "8 x NVIDIA H100, driver 535");
        inventory.gpus[7].name = None;
        inventory.hangs_at = Some("GPU 8".into());
        assert_eq!(
            inventory.to_string(),
            "7 x NVIDIA H100, 1 x accelerator of unknown model, driver 535; the query of the \
             accelerators stopped at GPU 8"
        );
        assert_eq!(Inventory::default().to_string(), "no accelerator");
    }

    #[test]
    fn nothing_is_longer_than_a_true_answer() {
        let inventory = Inventory {
            gpus: (0..100).map(|index| Gpu { name: Some("x".repeat(5000)), ..gpu(index) }).collect(),
            notes: vec!["y".repeat(5000); 1000],
            ..Inventory::default()
        };
        let bounded = inventory.bounded();
        assert_eq!(bounded.gpus.len(), MAX_GPUS);
        assert_eq!(bounded.gpus[0].name.as_ref().map(String::len), Some(LONGEST_TEXT));
        assert_eq!((bounded.notes.len(), bounded.notes[0].len()), (LONGEST_LIST, LONGEST_TEXT));
        assert_eq!(bounded.clone().bounded(), bounded);
    }

    #[test]
    fn shares_of_memory() {
        let share = |used, total| Gpu { memory_used: used, memory_total: total, ..gpu(0) }.used_permille();
        assert_eq!(share(Some(30), Some(100)), Some(300));
        assert_eq!(share(Some(30), Some(0)), None);
        assert_eq!(share(None, Some(100)), None);
        assert_eq!(share(Some(u64::MAX), Some(u64::MAX)), Some(1000));
    }
}
