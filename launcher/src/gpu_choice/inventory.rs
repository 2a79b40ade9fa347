//! What is known of this node's accelerators when a choice is to be made.
//!
//! NVML is asked first; where it knows nothing, the vendor's tool. A file stands in for what lies between them.

use std::path::{Path, PathBuf};

use rules::{
    gpu_topology::{BadMatrix, Link, Matrix, PciPath},
    gpus,
};

use crate::{accelerators, environment::Environment, host::Host};

/// Whose accelerators they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Nvidia,
    Metax,
}

impl Vendor {
    const ALL: [Self; 2] = [Self::Nvidia, Self::Metax];

    /// The program that tells about them.
    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia-smi",
            Self::Metax => "mx-smi",
        }
    }

    /// The variables that say which of them a program sees. The last one that is set is the user's own list.
    pub(crate) const fn variables(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["CUDA_VISIBLE_DEVICES"],
            Self::Metax => &["CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"],
        }
    }
}

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    /// What the list of visible devices calls it: its unique id, or its number where it has none.
    pub(crate) id: String,
    /// What its lock is called.
    pub(crate) lock: String,
    /// What else is known of it.
    pub(crate) known: gpus::Gpu,
}

impl Gpu {
    /// As its driver tells of it. `None` for one that has no id: no list could name it.
    fn told(known: &gpus::Gpu) -> Option<Self> {
        // One that cannot be opened has none, and is not chosen.
        let nameless = || known.trouble.is_some().then(|| format!("GPU-unknown-{}", known.index));
        let id = known.uuid.clone().or_else(nameless)?;
        Some(Self { lock: id.clone(), id, known: known.clone() })
    }
}

/// All accelerators of a node, in the order of their places on the bus, and what lies between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inventory {
    pub(crate) vendor: Vendor,
    pub(crate) matrix: Matrix,
    /// As many as the matrix has.
    pub(crate) gpus: Vec<Gpu>,
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoInventory {
    #[error("there is neither nvidia-smi nor mx-smi on PATH")]
    NoTool,
    #[error("{} {why}", .tool.display())]
    Tool { tool: PathBuf, why: String },
    #[error("{}: {why}", .file.display())]
    File { file: PathBuf, why: String },
    #[error("{from}: {why}")]
    Matrix { from: String, why: BadMatrix },
    #[error("the topology has {matrix} GPUs, and this node shows {gpus}")]
    Differ { matrix: usize, gpus: usize },
}

/// The tool of this node's accelerators.
fn tool(host: &dyn Host, env: Environment<'_>) -> Option<(Vendor, PathBuf)> {
    let path = env.get_filled("PATH")?;
    let on_path = |vendor: Vendor| {
        let tool = std::env::split_paths(path).map(|folder| folder.join(vendor.tool()));
        tool.filter(|tool| tool.is_absolute()).find(|tool| host.is_program(tool)).map(|tool| (vendor, tool))
    };
    match accelerators::kind(host.root()) {
        Some("nvidia") => on_path(Vendor::Nvidia),
        Some("metax") => on_path(Vendor::Metax),
        _ => Vendor::ALL.into_iter().find_map(on_path),
    }
}

/// Whose accelerators this node has.
fn vendor(host: &dyn Host, env: Environment<'_>) -> Vendor {
    match accelerators::kind(host.root()) {
        Some("metax") => Vendor::Metax,
        Some(_) => Vendor::Nvidia,
        None => tool(host, env).map_or(Vendor::Nvidia, |(vendor, _)| vendor),
    }
}

/// What the vendor's tool says; `file` stands in for its table.
///
/// # Errors
///
/// When there is no tool, it says nothing, or what it says is no topology.
pub(crate) fn take(
    host: &dyn Host,
    env: Environment<'_>,
    file: Option<&Path>,
) -> Result<Inventory, NoInventory> {
    let Known { matrix, gpus, vendor } = known(host, env, file)?;
    if gpus.len() != matrix.size() {
        return Err(NoInventory::Differ { matrix: matrix.size(), gpus: gpus.len() });
    }
    Ok(Inventory { vendor, matrix, gpus })
}

/// An inventory whose parts may not fit together.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) matrix: Matrix,
    pub(crate) gpus: Vec<Gpu>,
    vendor: Vendor,
}

/// What lies between this node's accelerators, or those of a file; and what they are.
///
/// # Errors
///
/// As [`take`].
pub(crate) fn known(
    host: &dyn Host,
    env: Environment<'_>,
    file: Option<&Path>,
) -> Result<Known, NoInventory> {
    let told = host.accelerators();
    let (gpus, vendor) = match told_gpus(&told) {
        Some(gpus) => (gpus, Vendor::Nvidia),
        None => by_tool(host, env),
    };
    let matrix = match file {
        Some(file) => from_file(host, file)?,
        None => told_matrix(&told).map_or_else(|| from_tool(host, env), Ok)?,
    };
    Ok(Known { matrix, gpus, vendor })
}

/// NVIDIA's accelerators as NVML tells of them; `None` where it does not.
fn told_gpus(told: &gpus::Inventory) -> Option<Vec<Gpu>> {
    let is_whole = told.vendor == Some(gpus::Vendor::Nvidia) && told.hangs_at.is_none();
    is_whole.then(|| told.gpus.iter().map(Gpu::told).collect::<Option<Vec<Gpu>>>())?
}

/// What NVML knows to lie between them. Nothing is known of one that is broken: it gets the longest way to all others,
/// and is not chosen anyway.
fn told_matrix(told: &gpus::Inventory) -> Option<Matrix> {
    told_gpus(told)?;
    let between = |a: &gpus::Gpu, b: &gpus::Gpu| {
        if a.index == b.index {
            return Some(Link::Same);
        }
        let (low, high) = (a.index.min(b.index), a.index.max(b.index));
        let link = told.links.iter().find(|link| (link.a, link.b) == (low, high)).map(|link| link.link);
        let is_broken = a.trouble.is_some() || b.trouble.is_some();
        link.or_else(|| is_broken.then_some(Link::Pci(PciPath::System)))
    };
    let row = |a: &gpus::Gpu| told.gpus.iter().map(|b| between(a, b)).collect::<Option<Vec<Link>>>();
    let rows = told.gpus.iter().map(row).collect::<Option<Vec<Vec<Link>>>>()?;
    let numa: Vec<Option<u32>> = told.gpus.iter().map(|gpu| gpu.numa_node).collect();
    Matrix::new(&rows, &numa).ok()
}

/// What a file says to lie between accelerators.
///
/// # Errors
///
/// When it cannot be read, or is no topology.
pub(crate) fn from_file(host: &dyn Host, file: &Path) -> Result<Matrix, NoInventory> {
    let unreadable = |why: std::io::Error| NoInventory::File { file: file.to_owned(), why: why.to_string() };
    let text = host.read(file).map_err(unreadable)?;
    Matrix::parse(&text).map_err(|why| NoInventory::Matrix { from: file.display().to_string(), why })
}

fn from_tool(host: &dyn Host, env: Environment<'_>) -> Result<Matrix, NoInventory> {
    let (vendor, tool) = tool(host, env).ok_or(NoInventory::NoTool)?;
    let text = host.output_of(&tool, &["topo", "-m"]).map_err(|why| NoInventory::Tool { tool, why })?;
    let from = || format!("{} topo -m", vendor.tool());
    Matrix::parse(&text).map_err(|why| NoInventory::Matrix { from: from(), why })
}

/// This node's accelerators, as well as they are known: by NVML, by the tool, else by the driver's files. None is an
/// answer.
pub(crate) fn gpus(host: &dyn Host, env: Environment<'_>) -> (Vec<Gpu>, Vendor) {
    told_gpus(&host.accelerators()).map_or_else(|| by_tool(host, env), |gpus| (gpus, Vendor::Nvidia))
}

fn by_tool(host: &dyn Host, env: Environment<'_>) -> (Vec<Gpu>, Vendor) {
    const QUERY: [&str; 2] =
        ["--query-gpu=index,uuid,pci.bus_id,memory.used,memory.total", "--format=csv,noheader,nounits"];
    let vendor = vendor(host, env);
    let queried = match tool(host, env) {
        Some((Vendor::Nvidia, tool)) => host.output_of(&tool, &QUERY).ok().and_then(|text| queried(&text)),
        _ => None,
    };
    (queried.unwrap_or_else(|| in_the_drivers_files(host, vendor)), vendor)
}

/// `0, GPU-..., 00000000:3B:00.0, 1024, 81559` a line.
fn queried(text: &str) -> Option<Vec<Gpu>> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, uuid, _bus, used, total] = fields[..] else { return None };
        let is_id = uuid.starts_with("GPU-") && uuid.len() <= 64 && !uuid.contains(char::is_whitespace);
        if index.parse() != Ok(found.len()) || !is_id {
            return None;
        }
        // `[N/A]` where the driver does not tell.
        let bytes = |mib: &str| mib.parse::<u64>().ok()?.checked_mul(1 << 20);
        let known = gpus::Gpu {
            index: u32::try_from(found.len()).ok()?,
            memory_used: bytes(used),
            memory_total: bytes(total),
            ..gpus::Gpu::default()
        };
        found.push(Gpu { id: uuid.to_owned(), lock: uuid.to_owned(), known });
    }
    (!found.is_empty()).then_some(found)
}

fn in_the_drivers_files(host: &dyn Host, vendor: Vendor) -> Vec<Gpu> {
    let found = accelerators::present(host.root());
    // Numbers mean something else to CUDA than here, unless each GPU is as fast as all others: ids do not.
    let gpu = |(place, it): (usize, accelerators::Accelerator)| {
        let id = it.uuid.or_else(|| (vendor == Vendor::Metax).then(|| place.to_string()))?;
        let lock = if vendor == Vendor::Metax { it.pci } else { None };
        let index = u32::try_from(place).ok()?;
        let known = gpus::Gpu { index, ..gpus::Gpu::default() };
        Some(Gpu { lock: lock.unwrap_or_else(|| id.clone()), id, known })
    };
    found.into_iter().enumerate().map(gpu).collect::<Option<Vec<Gpu>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tool_tells_of_each() {
        let text = "0, GPU-aa, 00000000:3B:00.0, 1024, 81559\n1, GPU-bb, 00000000:5E:00.0, [N/A], [N/A]\n";
        let gpus = queried(text).unwrap();
        assert_eq!(
            (gpus[0].known.memory_used, gpus[0].known.memory_total),
            (Some(1 << 30), Some(81559 << 20))
        );
        assert_eq!((gpus[1].id.as_str(), gpus[1].known.memory_used), ("GPU-bb", None));
        for text in [
            "",
            "No devices were found\n",
            "1, GPU-aa, 0, 1, 2\n",
            "0, aa, 0, 1, 2\n",
            "0, GPU-aa, 0, 1\n",
            "0, GPU-a a, 0, 1, 2\n",
        ] {
            assert_eq!(queried(text), None, "{text}");
        }
    }
}
