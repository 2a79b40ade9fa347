//! What is known of this node's accelerators when a choice is to be made.
//!
//! Drivers and vendors' tools are asked once a launch ([`Host::accelerators`]). A file replaces their links, and the driver's files for their ids where no driver or tool replies.

use std::path::{Path, PathBuf};

use diagnosis::{
    gpu_topology::{BadMatrix, LinkKind, Matrix, PciPath},
    gpus::{self, Vendor},
};

use crate::{
    accelerators::{Accelerator, Devices},
    environment::Environment,
    host::Host,
};

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// What the list of visible devices calls it: its unique id, or its number where such lists know no ids. `None`: it
    /// does not report it.
    pub id: Option<String>,
    /// What its lock is called.
    pub lock: String,
    /// What else is known of it.
    pub known: gpus::Gpu,
}

impl Gpu {
    /// `None` for one that has no id though it is well: no list could name it.
    fn new(vendor: Vendor, known: gpus::Gpu) -> Option<Self> {
        let (id, lock) = match vendor {
            Vendor::Nvidia => {
                // One that cannot be opened has none, and is not chosen.
                let nameless = || known.trouble.is_some().then(|| format!("GPU-unknown-{}", known.index));
                (known.uuid.clone(), known.uuid.clone().or_else(nameless)?)
            }
            // It is unknown whether its runtime takes ids.
            Vendor::Metax => {
                let number = known.index.to_string();
                (Some(number.clone()), known.pci.clone().unwrap_or(number))
            }
        };
        Some(Self { id, lock, known })
    }
}

/// All accelerators of a node, in the order of their places on the bus, and what lies between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inventory {
    pub vendor: Vendor,
    pub matrix: Matrix,
    /// As many as the matrix has.
    pub gpus: Vec<Gpu>,
}

/// Why there is no inventory, with the messages of drivers and tools.
#[derive(Debug, thiserror::Error)]
pub enum NoInventory {
    #[error("no GPU found on this node{}", said(.0))]
    NoGpu(Vec<String>),
    #[error("the query of this node's accelerators did not finish{}", said(.0))]
    NoEnd(Vec<String>),
    #[error("the GPUs of this node are not numbered consecutively from 0: found GPU {0}")]
    Number(u32),
    #[error("GPU {0} has no UUID, so a list cannot name it")]
    Nameless(u32),
    #[error("the link between GPU {one} and GPU {other} is not known{}", said(.notes))]
    NoLink { one: u32, other: u32, notes: Vec<String> },
    #[error("{}: {why}", .file.display())]
    File { file: PathBuf, why: String },
    #[error("{}: {why}", .file.display())]
    BadFile { file: PathBuf, why: BadMatrix },
    #[error(transparent)]
    Matrix(#[from] BadMatrix),
    #[error("the number of GPUs in the topology is {matrix}, but this node has {gpus}")]
    Differ { matrix: usize, gpus: usize },
}

fn said(notes: &[String]) -> String {
    if notes.is_empty() { String::new() } else { format!(": {}", notes.join("; ")) }
}

/// The inventory from drivers and tools; a `file` replaces the links.
///
/// # Errors
///
/// When there is no report, or it is not a topology.
pub(crate) fn take(
    host: &dyn Host,
    env: Environment<'_>,
    devices: &Devices<'_>,
    file: Option<&Path>,
) -> Result<Inventory, NoInventory> {
    let given = file.map(|file| from_file(host, file)).transpose()?;
    let reported = host.accelerators(env.tool_path());
    let matrix = given.map_or_else(|| reported_matrix(&reported), Ok)?;
    let (gpus, vendor) = reported_or_from_driver_files(devices, &reported);
    if gpus.len() != matrix.size() {
        return Err(NoInventory::Differ { matrix: matrix.size(), gpus: gpus.len() });
    }
    Ok(Inventory { vendor, matrix, gpus })
}

/// How this node's accelerators are connected, and what they are.
///
/// # Errors
///
/// When no driver and no tool describes them, or what they describe is no topology.
pub fn by_drivers(host: &dyn Host, env: Environment<'_>) -> Result<(Matrix, Vec<Gpu>), NoInventory> {
    let reported = host.accelerators(env.tool_path());
    Ok((reported_matrix(&reported)?, reported_or_from_driver_files(&Devices::new(host.root()), &reported).0))
}

/// This node's accelerators, as well as they are known. None is an answer.
pub(crate) fn gpus(host: &dyn Host, env: Environment<'_>, devices: &Devices<'_>) -> (Vec<Gpu>, Vendor) {
    reported_or_from_driver_files(devices, &host.accelerators(env.tool_path()))
}

/// The links in a file.
///
/// # Errors
///
/// When it cannot be read, or is no topology.
pub fn from_file(host: &dyn Host, file: &Path) -> Result<Matrix, NoInventory> {
    let unreadable = |why: std::io::Error| NoInventory::File { file: file.to_owned(), why: why.to_string() };
    let text = host.read(file).map_err(unreadable)?;
    Matrix::parse(&text).map_err(|why| NoInventory::BadFile { file: file.to_owned(), why })
}

/// All accelerators, each at the index of its number.
fn reported_gpus(reported: &gpus::Inventory) -> Result<(Vec<Gpu>, Vendor), NoInventory> {
    if reported.hangs_at.is_some() {
        return Err(NoInventory::NoEnd(reported.notes.clone()));
    }
    let Some(vendor) = reported.vendor.filter(|_| !reported.gpus.is_empty()) else {
        return Err(NoInventory::NoGpu(reported.notes.clone()));
    };
    let gpu = |(place, gpu): (u32, &gpus::Gpu)| match gpu.index {
        index if index != place => Err(NoInventory::Number(index)),
        index => Gpu::new(vendor, gpu.clone()).ok_or(NoInventory::Nameless(index)),
    };
    Ok(((0..).zip(&reported.gpus).map(gpu).collect::<Result<Vec<Gpu>, NoInventory>>()?, vendor))
}

/// The links between them. A broken one has none: it gets the longest path to all others, and is not chosen anyway.
fn reported_matrix(reported: &gpus::Inventory) -> Result<Matrix, NoInventory> {
    reported_gpus(reported)?;
    let between = |a: &gpus::Gpu, b: &gpus::Gpu| {
        if a.index == b.index {
            return Ok(LinkKind::Same);
        }
        let (one, other) = (a.index.min(b.index), a.index.max(b.index));
        let link = reported.links.iter().find(|link| (link.a, link.b) == (one, other)).map(|link| link.link);
        let is_broken = a.trouble.is_some() || b.trouble.is_some();
        let unknown = || NoInventory::NoLink { one, other, notes: reported.notes.clone() };
        link.or_else(|| is_broken.then_some(LinkKind::Pci(PciPath::System))).ok_or_else(unknown)
    };
    let row = |a: &gpus::Gpu| reported.gpus.iter().map(|b| between(a, b)).collect();
    let rows = reported.gpus.iter().map(row).collect::<Result<Vec<Vec<LinkKind>>, NoInventory>>()?;
    let numa: Vec<Option<u32>> = reported.gpus.iter().map(|gpu| gpu.numa_node).collect();
    Ok(Matrix::new(&rows, &numa)?)
}

/// As reported, or as the driver's files name them.
fn reported_or_from_driver_files(devices: &Devices<'_>, reported: &gpus::Inventory) -> (Vec<Gpu>, Vendor) {
    reported_gpus(reported).unwrap_or_else(|_| {
        let vendor = match devices.kind() {
            Some("metax") => Vendor::Metax,
            _ => Vendor::Nvidia,
        };
        let vendor = reported.vendor.unwrap_or(vendor);
        (in_the_drivers_files(devices, vendor), vendor)
    })
}

fn in_the_drivers_files(devices: &Devices<'_>, vendor: Vendor) -> Vec<Gpu> {
    // Numbers mean something else to CUDA than here, unless each GPU is as fast as all others: ids do not.
    let gpu = |(index, it): (u32, Accelerator)| {
        Gpu::new(vendor, gpus::Gpu { index, uuid: it.uuid, pci: it.pci, ..gpus::Gpu::default() })
    };
    let found = (0..).zip(devices.present().iter().cloned());
    found.map(gpu).collect::<Option<Vec<Gpu>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(size: u32) -> gpus::Inventory {
        let gpu = |index| gpus::Gpu { index, uuid: Some(format!("GPU-{index}")), ..gpus::Gpu::default() };
        gpus::Inventory {
            vendor: Some(Vendor::Nvidia),
            gpus: (0..size).map(gpu).collect(),
            notes: vec!["no library".into(), "smi topo -m: no table".into()],
            ..gpus::Inventory::default()
        }
    }

    #[test]
    fn errors_have_the_messages_of_drivers_and_tools() {
        let why = |reported: &gpus::Inventory| reported_matrix(reported).unwrap_err().to_string();
        let notes = "no library; smi topo -m: no table";
        assert_eq!(why(&reported(0)), format!("no GPU found on this node: {notes}"));
        assert_eq!(why(&reported(2)), format!("the link between GPU 0 and GPU 1 is not known: {notes}"));
        assert_eq!(why(&gpus::Inventory::default()), "no GPU found on this node");
        let hangs = gpus::Inventory { hangs_at: Some("smi topo -m".into()), ..reported(2) };
        assert_eq!(why(&hangs), format!("the query of this node's accelerators did not finish: {notes}"));
        let mut odd = reported(2);
        odd.gpus[1].uuid = None;
        assert_eq!(why(&odd), "GPU 1 has no UUID, so a list cannot name it");
        odd.gpus[1].index = 7;
        assert_eq!(why(&odd), "the GPUs of this node are not numbered consecutively from 0: found GPU 7");
    }

    #[test]
    fn numa_nodes_reach_the_matrix() {
        let mut reported = reported(2);
        reported.gpus[1].numa_node = Some(1);
        reported.links = vec![gpus::GpuLink { a: 0, b: 1, link: LinkKind::NvLink(2) }];
        let matrix = reported_matrix(&reported).unwrap();
        assert_eq!(
            (matrix.link(1, 0), matrix.numa(0), matrix.numa(1)),
            (Some(LinkKind::NvLink(2)), None, Some(1))
        );
    }
}
