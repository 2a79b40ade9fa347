//! Which CPUs each worker may run on: those near its accelerator, from Linux's own description of the machine.
//! The meaning of each mode is that of `torch/numa/binding.py`, but `numactl` is not needed.
//!
//! The worker of local rank `n` is taken to use the `n`-th visible accelerator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::accelerators::Accelerator;

type Cpus = BTreeSet<usize>;

/// Which CPUs are near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All CPUs of the accelerator's NUMA node.
    Node,
    /// All CPUs of all NUMA nodes of that node's socket.
    Socket,
    /// A share of the node's physical cores that no other accelerator's worker gets.
    Exclusive,
    /// The CPUs of one last-level cache of the node, another one for each accelerator while they last.
    CoreComplex,
}

impl Mode {
    /// Parses `--numa-binding`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "node" => Some(Self::Node),
            "socket" => Some(Self::Socket),
            "exclusive" => Some(Self::Exclusive),
            "core-complex" => Some(Self::CoreComplex),
            _ => None,
        }
    }
}

/// Why workers cannot be bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CannotBind {
    #[error("No accelerator available for NUMA binding")]
    NoAccelerator,
    #[error(
        "{workers} workers need as many accelerators, and this node has only \
         {}", diagnosis::counted::counted(*.accelerators, "accelerator")
    )]
    FewerAccelerators { workers: u32, accelerators: usize },
    #[error("the PCI address of visible accelerator {index} is unknown")]
    NoPlace { index: usize },
    #[error("{} cannot be read or parsed", .path.display())]
    Topology { path: PathBuf },
    #[error(
        "this process may use {} of NUMA node {node}; expected at least 1 for each accelerator near it \
         (accelerators: {accelerators})", diagnosis::counted::counted(*.cores, "physical core")
    )]
    FewerCores { node: u32, cores: usize, accelerators: usize },
    #[error("none of the CPUs near visible accelerator {index} may be used by this process")]
    NoCpuAllowed { index: usize },
}

/// The CPUs of each local rank, in order.
///
/// # Errors
///
/// When there is no accelerator for a worker, or the machine's description does not say where it is.
pub(crate) fn bind(
    mode: Mode,
    workers: u32,
    accelerators: &[Accelerator],
    allowed: &Cpus,
    root: &Path,
) -> Result<Vec<Vec<usize>>, CannotBind> {
    if accelerators.is_empty() {
        return Err(CannotBind::NoAccelerator);
    }
    if accelerators.len() < workers as usize {
        return Err(CannotBind::FewerAccelerators { workers, accelerators: accelerators.len() });
    }
    let topology = Topology { sys: root.join("sys"), allowed };
    let nodes = accelerators
        .iter()
        .enumerate()
        .map(|(index, accelerator)| topology.node_of(index, accelerator))
        .collect::<Result<Vec<_>, _>>()?;
    let cpus_of = |index: usize, node: u32| {
        let cpus = match mode {
            Mode::Node => topology.cpus_of_node(node)?,
            Mode::Socket => topology.cpus_of_socket_of(node, index)?,
            Mode::Exclusive => topology.share(node, place_on_node(&nodes, index))?,
            Mode::CoreComplex => topology.core_complex(node, place_on_node(&nodes, index))?,
        };
        if cpus.is_empty() {
            return Err(CannotBind::NoCpuAllowed { index });
        }
        Ok(cpus.into_iter().collect())
    };
    nodes.iter().enumerate().take(workers as usize).map(|(index, node)| cpus_of(index, *node)).collect()
}

/// Which of the accelerators of its NUMA node this is, and of how many.
fn place_on_node(nodes: &[u32], index: usize) -> (usize, usize) {
    let node = nodes.get(index);
    let before = nodes.iter().take(index).filter(|other| Some(*other) == node).count();
    (before, nodes.iter().filter(|other| Some(*other) == node).count())
}

/// The machine as `/sys` describes it, narrowed to the CPUs that this process may use.
struct Topology<'a> {
    sys: PathBuf,
    allowed: &'a Cpus,
}

impl Topology<'_> {
    fn read<T>(&self, path: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, CannotBind> {
        let path = self.sys.join(path);
        let text = fs::read_to_string(&path).ok();
        text.and_then(|text| parse(text.trim())).ok_or(CannotBind::Topology { path })
    }

    fn node_of(&self, index: usize, accelerator: &Accelerator) -> Result<u32, CannotBind> {
        let pci = accelerator.pci.as_ref().ok_or(CannotBind::NoPlace { index })?;
        let node: i64 = self.read(&format!("bus/pci/devices/{pci}/numa_node"), |text| text.parse().ok())?;
        // A machine of one node often has -1.
        Ok(u32::try_from(node).unwrap_or(0))
    }

    fn cpus_of_node(&self, node: u32) -> Result<Cpus, CannotBind> {
        let cpus = self.read(&format!("devices/system/node/node{node}/cpulist"), ranges)?;
        Ok(cpus.intersection(self.allowed).copied().collect())
    }

    fn socket_of(&self, cpu: usize) -> Result<i64, CannotBind> {
        let path = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        self.read(&path, |text| text.parse().ok())
    }

    fn cpus_of_socket_of(&self, node: u32, index: usize) -> Result<Cpus, CannotBind> {
        let first = self.cpus_of_node(node)?.first().copied().ok_or(CannotBind::NoCpuAllowed { index })?;
        let socket = self.socket_of(first)?;
        let mut cpus = Cpus::new();
        for other in self.read("devices/system/node/online", ranges)? {
            let of_node = self.cpus_of_node(u32::try_from(other).unwrap_or(u32::MAX))?;
            // A node without CPUs (memory only, or all of them forbidden to us) is on no socket of ours.
            if let Some(first) = of_node.first()
                && self.socket_of(*first)? == socket
            {
                cpus.extend(of_node);
            }
        }
        Ok(cpus)
    }

    /// The CPUs of a node, grouped by what `leader` answers for each of them.
    fn grouped(
        &self,
        node: u32,
        leader: impl Fn(usize) -> Result<usize, CannotBind>,
    ) -> Result<BTreeMap<usize, Cpus>, CannotBind> {
        let mut groups: BTreeMap<usize, Cpus> = BTreeMap::new();
        for cpu in self.cpus_of_node(node)? {
            groups.entry(leader(cpu)?).or_default().insert(cpu);
        }
        Ok(groups)
    }

    /// The share of accelerator `place` of `all` in the physical cores of a node; the first few get one more
    /// when they do not divide evenly.
    fn share(&self, node: u32, (place, all): (usize, usize)) -> Result<Cpus, CannotBind> {
        let cores = self.grouped(node, |cpu| {
            let path = format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            self.read(&path, |text| ranges(text)?.first().copied())
        })?;
        let (each, extra) = (cores.len() / all.max(1), cores.len() % all.max(1));
        if each == 0 {
            return Err(CannotBind::FewerCores { node, cores: cores.len(), accelerators: all });
        }
        let start = place * each + place.min(extra);
        let count = each + usize::from(place < extra);
        Ok(cores.into_values().skip(start).take(count).flatten().collect())
    }

    /// The core complex of accelerator `place`: those with most CPUs first, and from the start again when there
    /// are more accelerators than complexes.
    fn core_complex(&self, node: u32, (place, _): (usize, usize)) -> Result<Cpus, CannotBind> {
        let complexes = self.grouped(node, |cpu| self.first_of_last_level_cache(cpu))?;
        let mut complexes: Vec<Cpus> = complexes.into_values().collect();
        // Stable: complexes of one size stay in the order of their first CPU.
        complexes.sort_by_key(|cpus| std::cmp::Reverse(cpus.len()));
        let count = complexes.len().max(1);
        Ok(complexes.into_iter().nth(place % count).unwrap_or_default())
    }

    /// The first CPU that shares the cache of the highest level with this one.
    fn first_of_last_level_cache(&self, cpu: usize) -> Result<usize, CannotBind> {
        let folder = format!("devices/system/cpu/cpu{cpu}/cache");
        let mut last = None;
        for index in 0.. {
            let cache = format!("{folder}/index{index}");
            if !self.sys.join(&cache).exists() {
                break;
            }
            let holds_data =
                self.read(&format!("{cache}/type"), |kind| Some(matches!(kind, "Unified" | "Data")))?;
            let level: u32 = self.read(&format!("{cache}/level"), |text| text.parse().ok())?;
            if holds_data && last.is_none_or(|(highest, _)| level > highest) {
                let first =
                    self.read(&format!("{cache}/shared_cpu_list"), |text| ranges(text)?.first().copied())?;
                last = Some((level, first));
            }
        }
        last.map(|(_, first)| first).ok_or_else(|| CannotBind::Topology { path: self.sys.join(folder) })
    }
}

/// `0-2,4` as Linux writes it; `None` when it is something else.
fn ranges(text: &str) -> Option<Cpus> {
    let mut numbers = Cpus::new();
    for range in text.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // Linux knows no more CPUs than this; a broken file must not exhaust memory.
        if last > MAX_CPUS {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Above the kernel's own limit (`CONFIG_NR_CPUS` is at most 8192).
const MAX_CPUS: usize = 1 << 16;

#[cfg(test)]
mod tests;
