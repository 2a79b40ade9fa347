//! The accelerators that this node shows, found in `/dev`, `/proc` and `/sys` without a vendor's library, and
//! narrowed by `CUDA_VISIBLE_DEVICES` as the vendor's library would.

use std::{cell::OnceCell, fs, path::Path};

use crate::environment::Environment;

/// One accelerator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Accelerator {
    /// Its PCI address, `0000:3b:00.0`; `None` when it is unknown.
    pub(crate) pci: Option<String>,
    /// The vendor's unique id, `GPU-...`; `None` when it is unknown.
    pub(crate) uuid: Option<String>,
    /// The number in its device file's name, or its place on the bus.
    number: u32,
}

/// The accelerators of the node, discovered once, when they are first needed.
pub(crate) struct Devices<'a> {
    root: &'a Path,
    found: OnceCell<(Option<&'static str>, Vec<Accelerator>)>,
}

impl<'a> Devices<'a> {
    pub(crate) fn new(root: &'a Path) -> Self {
        Self { root, found: OnceCell::new() }
    }

    fn found(&self) -> &(Option<&'static str>, Vec<Accelerator>) {
        self.found.get_or_init(|| discover(self.root))
    }

    /// The vendor of the accelerators: `nvidia`, `amd` or `metax`.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        self.found().0
    }

    /// All accelerators, in the order of their places on the bus.
    pub(crate) fn present(&self) -> &[Accelerator] {
        &self.found().1
    }

    /// The accelerators that workers see, in the order in which they see them.
    pub(crate) fn visible(&self, env: Environment<'_>) -> Vec<Accelerator> {
        // HIP_VISIBLE_DEVICES has priority, as for --virtual-local-rank.
        let chosen = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"].iter().find_map(|name| env.get(name));
        match chosen {
            None => self.present().to_vec(),
            Some(chosen) => narrowed(self.present(), &chosen.to_string_lossy()),
        }
    }
}

/// CUDA's rule: the list is read up to its first entry that names no device; a device named twice leaves none.
fn narrowed(present: &[Accelerator], chosen: &str) -> Vec<Accelerator> {
    let mut visible: Vec<Accelerator> = Vec::new();
    for entry in chosen.split(',').map(str::trim) {
        let device = match entry.parse::<usize>() {
            Ok(index) => present.get(index).cloned(),
            Err(_) => by_uuid(present, entry),
        };
        let Some(device) = device else { break };
        if visible.contains(&device) {
            return Vec::new();
        }
        visible.push(device);
    }
    visible
}

/// A device by the start of its id. A slice of a device (`MIG-...`) is one of its own, on a bus unknown to us.
fn by_uuid(present: &[Accelerator], entry: &str) -> Option<Accelerator> {
    if entry.starts_with("MIG-") && !present.is_empty() {
        return Some(Accelerator { pci: None, uuid: Some(entry.to_owned()), number: 0 });
    }
    let is_it = |device: &&Accelerator| device.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry));
    present.iter().find(is_it).filter(|_| entry.starts_with("GPU-")).cloned()
}

fn discover(root: &Path) -> (Option<&'static str>, Vec<Accelerator>) {
    type Discover = fn(&Path) -> Vec<Accelerator>;
    let vendors: [(_, Discover); 3] = [("nvidia", nvidia), ("amd", amd), ("metax", metax)];
    for (vendor, discover) in vendors {
        let mut found = discover(root);
        if !found.is_empty() {
            found.sort();
            return (Some(vendor), found);
        }
    }
    (None, Vec::new())
}

/// NVIDIA: one `/dev/nvidia<N>` each; the driver maps `N` to a PCI device.
fn nvidia(root: &Path) -> Vec<Accelerator> {
    let mut found: Vec<Accelerator> = names_in(&root.join("dev"))
        .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
        .map(|number| Accelerator { pci: None, uuid: None, number })
        .collect();
    if found.is_empty() {
        return found;
    }
    let driver = root.join("proc/driver/nvidia/gpus");
    for pci in names_in(&driver) {
        let Ok(information) = fs::read_to_string(driver.join(&pci).join("information")) else { continue };
        let field = |name: &str| {
            information
                .lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
        };
        let minor = field("Device Minor").and_then(|minor| minor.parse::<u32>().ok());
        if let Some(device) = found.iter_mut().find(|device| Some(device.number) == minor) {
            device.pci = Some(pci);
            device.uuid = field("GPU UUID");
        }
    }
    found
}

/// AMD: the nodes of the compute topology that are GPUs.
fn amd(root: &Path) -> Vec<Accelerator> {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let read = |node: &str, file: &str| fs::read_to_string(nodes.join(node).join(file)).ok();
    names_in(&nodes)
        .filter_map(|node| {
            let number = node.parse().ok()?;
            // A CPU is a node of the topology too, with the id 0. An id that may not be read is no device of ours.
            read(&node, "gpu_id")?.trim().parse::<u64>().ok().filter(|id| *id != 0)?;
            let properties = read(&node, "properties").unwrap_or_default();
            let property = |name: &str| -> Option<u32> {
                properties.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            };
            let pci = property("location_id ").map(|location| {
                let domain = property("domain ").unwrap_or(0);
                format!(
                    "{domain:04x}:{:02x}:{:02x}.{}",
                    location >> 8 & 0xff,
                    location >> 3 & 0x1f,
                    location & 7
                )
            });
            Some(Accelerator { pci, uuid: None, number })
        })
        .collect()
}

/// MetaX: the control device is there, and PCI shows display controllers of its vendor.
fn metax(root: &Path) -> Vec<Accelerator> {
    if !root.join("dev/mxcd").exists() {
        return Vec::new();
    }
    let bus = root.join("sys/bus/pci/devices");
    let reads = |pci: &str, file: &str| fs::read_to_string(bus.join(pci).join(file)).unwrap_or_default();
    let mut places: Vec<String> = names_in(&bus)
        .filter(|pci| reads(pci, "vendor").trim() == METAX && reads(pci, "class").starts_with(DISPLAY_CLASS))
        .collect();
    places.sort();
    (0..).zip(places).map(|(number, pci)| Accelerator { pci: Some(pci), uuid: None, number }).collect()
}

/// The PCI vendor id of MetaX.
const METAX: &str = "0x9999";
/// The PCI class of display controllers.
const DISPLAY_CLASS: &str = "0x03";

fn names_in(folder: &Path) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::testing::{FakeRoot, variables};

    fn numbers(root: &FakeRoot, env: &[(&str, &str)]) -> Vec<u32> {
        let env: Vec<(OsString, OsString)> = variables(env);
        Devices::new(root.path()).visible(Environment(&env)).iter().map(|device| device.number).collect()
    }

    #[test]
    fn a_machine_without_accelerators_shows_none() {
        assert!(numbers(&FakeRoot::new(), &[]).is_empty());
    }

    #[test]
    fn control_devices_are_not_accelerators() {
        let root = FakeRoot::new();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset"] {
            root.write(&format!("dev/{name}"), "");
        }
        assert_eq!(numbers(&root, &[]), [0, 1]);
    }

    #[test]
    fn devices_are_in_the_order_of_the_bus() {
        let root = FakeRoot::new();
        root.gpu(0, "0000:b1:00.0", 1);
        root.gpu(1, "0000:3b:00.0", 0);
        assert_eq!(numbers(&root, &[]), [1, 0]);
    }

    #[test]
    fn cuda_visible_devices_narrows_and_orders() {
        let root = FakeRoot::new();
        for number in 0..4 {
            root.gpu(number, &format!("0000:0{number}:00.0"), 0);
        }
        assert_eq!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "2, 0")]), [2, 0]);
        assert_eq!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "1,-1,2")]), [1]);
        assert_eq!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "0,9,1")]), [0]);
        assert!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "")]).is_empty());
        assert!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "1,1")]).is_empty());
        assert_eq!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "GPU-3,GPU-0")]), [3, 0]);
        assert_eq!(numbers(&root, &[("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")]).len(), 2);
    }

    #[test]
    fn amd_and_metax_are_found_where_their_drivers_show_them() {
        let amd = FakeRoot::new();
        amd.write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
        amd.write("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4711\n");
        amd.write(
            "sys/class/kfd/kfd/topology/nodes/1/properties",
            "simd_count 304\nlocation_id 8960\ndomain 0\n",
        );
        let env = variables::<&str>(&[]);
        let found = Devices::new(amd.path()).visible(Environment(&env));
        assert_eq!(
            found.iter().map(|device| device.pci.as_deref()).collect::<Vec<_>>(),
            [Some("0000:23:00.0")]
        );

        let metax = FakeRoot::new();
        metax.write("dev/mxcd", "");
        metax.write("sys/bus/pci/devices/0000:1a:00.0/vendor", "0x9999\n");
        metax.write("sys/bus/pci/devices/0000:1a:00.0/class", "0x038000\n");
        metax.write("sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
        assert_eq!(numbers(&metax, &[]), [0]);
        let kind = |root: &FakeRoot| Devices::new(root.path()).kind();
        assert_eq!((kind(&amd), kind(&metax), kind(&FakeRoot::new())), (Some("amd"), Some("metax"), None));
    }
}
