//! `MetaX` accelerators: their PCI addresses, the driver's tree in sysfs, and `mx-smi` if there is one.
//!
//! NOT RUN ON A DEVICE: the layout of the tree is that of the vendor's own reader, the output of the tool that of
//! published transcripts (`mx-smi -L`, `mx-smi --show-memory`, `mx-smi topo -m`).

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use diagnosis::gpus::{Gpu, GpuTrouble, MAX_GPUS, Vendor};

use super::{Collector, Source, bus, table};

/// Name of the tool.
const TOOL: &str = "mx-smi";

/// Where the driver's package installs it.
const PACKAGED: &str = "opt/mxdriver/bin/mx-smi";

/// The PCI vendor id of `MetaX`.
const VENDOR: &str = "0x9999";

/// The PCI class of display controllers.
const DISPLAY: &str = "0x03";

/// The driver's tree, and the tool.
pub(super) struct Metax {
    /// The root of the file system.
    pub(super) root: PathBuf,
    /// Directories that are searched for the tool first, in the form of `PATH`.
    pub(super) path: OsString,
}

impl Metax {
    /// The devices in the order of their PCI addresses.
    fn on_the_bus(&self) -> Vec<Gpu> {
        let bus = self.root.join("sys/bus/pci/devices");
        let reads = |pci: &str, file: &str| fs::read_to_string(bus.join(pci).join(file)).unwrap_or_default();
        let mut places: Vec<String> = names_in(&bus);
        places
            .retain(|pci| reads(pci, "vendor").trim() == VENDOR && reads(pci, "class").starts_with(DISPLAY));
        places.sort();
        let gpu = |(index, pci): (u32, String)| Gpu {
            index,
            numa_node: bus::numa_node(&self.root, &pci),
            pci: Some(pci),
            ..Gpu::default()
        };
        (0..).zip(places).take(MAX_GPUS).map(gpu).collect()
    }
}

impl Source for Metax {
    fn take(&self, collector: &mut Collector<'_>) {
        // A node has accelerators of one vendor.
        if collector.inventory.vendor.is_some() {
            return;
        }
        let packaged = || Some(self.root.join(PACKAGED)).filter(|it| it.is_file());
        let tool = collector.find(&self.path, TOOL).or_else(packaged);
        collector.at("the MetaX driver's files");
        if !self.root.join("dev/mxcd").exists() && tool.is_none() {
            return;
        }
        let mut gpus = self.on_the_bus();
        let version = fs::read_to_string(self.root.join("sys/module/metax/version"));
        if let Some(tool) = &tool {
            if let Some(listed) = collector.ask(tool, &["-L"], |text| Ok(listed(text))) {
                listed.iter().filter_map(Listed::unknown_state).for_each(|note| collector.note(note));
                merge(&mut gpus, listed.into_iter().map(|it| it.gpu).collect());
            }
            collector.ask(tool, &["--show-memory"], |text| {
                memory(&mut gpus, text);
                Ok(())
            });
        } else {
            collector.note("no mx-smi: models, memory and links are unknown");
        }
        if gpus.is_empty() {
            return;
        }
        collector.found(Vendor::Metax);
        collector.inventory.driver = version.ok().map(|version| version.trim().to_owned());
        collector.inventory.gpus = gpus;
        collector.keep();
        if let Some(tool) = &tool {
            table::take(collector, tool);
        }
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// A line of `mx-smi -L`.
pub(crate) struct Listed {
    pub(crate) gpu: Gpu,
    /// The state, as the tool prints it.
    state: String,
}

impl Listed {
    /// A note about a state that is neither known to be good nor clearly bad. Such a state does not exclude a node.
    pub(crate) fn unknown_state(&self) -> Option<String> {
        let Self { gpu, state } = self;
        let is_known = state.is_empty() || state.eq_ignore_ascii_case("Available") || gpu.trouble.is_some();
        (!is_known).then(|| format!("GPU {}: mx-smi reports the unknown state {state}; ignored", gpu.index))
    }
}

/// Whether a state clearly means a fault.
fn is_broken(state: &str) -> bool {
    let fields = state.split(|it: char| !it.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
    let is_broken =
        |field: &str| ["unavailable", "error", "lost"].contains(&field) || field.starts_with("fail");
    fields.into_iter().any(|field| is_broken(&field))
}

/// `GPU#0  MXC500  0000:0e:00.0  Available (UUID: GPU-...)`.
pub(crate) fn listed(text: &str) -> Vec<Listed> {
    let one = |line: &str| -> Option<Listed> {
        let (number, rest) = line.trim().strip_prefix("GPU#")?.split_once(char::is_whitespace)?;
        let index = number.parse().ok().filter(|index| (*index as usize) < MAX_GPUS)?;
        let (facts, uuid) = match rest.split_once("(UUID:") {
            Some((facts, uuid)) => (facts, uuid.split(')').next().map(|uuid| uuid.trim().to_owned())),
            None => (rest, None),
        };
        let fields: Vec<&str> = facts.split_whitespace().collect();
        let place = fields.iter().position(|field| bus::is_place(field))?;
        let (name, state) = (fields[..place].join(" "), fields[place + 1..].join(" "));
        let trouble = is_broken(&state).then(|| GpuTrouble::CannotOpen(format!("mx-smi reports {state}")));
        let gpu = Gpu {
            index,
            name: Some(format!("MetaX {name}")),
            uuid,
            pci: Some(fields[place].to_ascii_lowercase()),
            trouble,
            ..Gpu::default()
        };
        Some(Listed { gpu, state })
    };
    text.lines().filter_map(one).take(MAX_GPUS).collect()
}

/// Uses the tool's list, with the NUMA nodes of the same PCI addresses.
fn merge(gpus: &mut Vec<Gpu>, listed: Vec<Gpu>) {
    if listed.is_empty() {
        return;
    }
    let of_bus = std::mem::take(gpus);
    *gpus = listed;
    for gpu in gpus {
        let same = of_bus.iter().find(|it| it.pci == gpu.pci);
        gpu.numa_node = same.and_then(|it| it.numa_node);
    }
}

/// Parses blocks that begin with `GPU#0 ...` and hold `vis_vram total : 67108864 KB` and `vis_vram used : 846264 KB`.
pub(crate) fn memory(gpus: &mut [Gpu], text: &str) {
    let mut current = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("GPU#") {
            let number = rest.split(|it: char| !it.is_ascii_digit()).next();
            current = number.and_then(|number| number.parse::<u32>().ok());
            continue;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        let mut fields = value.split_whitespace();
        let (Some(number), Some("KB")) = (fields.next().and_then(|it| it.parse::<u64>().ok()), fields.next())
        else {
            continue;
        };
        let Some(gpu) = gpus.iter_mut().find(|gpu| Some(gpu.index) == current) else { continue };
        match name.trim() {
            "vis_vram total" => gpu.memory_total = number.checked_mul(1024),
            "vis_vram used" => gpu.memory_used = number.checked_mul(1024),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_and_a_faulty_device_marked() {
        let list = "mx-smi  version: 2.2.9\n\n\
                    GPU#0    MXC500    0000:0E:00.0    Available (UUID: GPU-aa)\n\
                    GPU#1    MXC600-AL    0000:0f:00.0    Unavailable (UUID: GPU-bb)\n\
                    GPU#x nonsense\nGPU#99 MXC500 0000:0f:00.0\nAttached GPUs: 2\n";
        let gpus: Vec<Gpu> = listed(list).into_iter().map(|it| it.gpu).collect();
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[0].name.as_deref(), Some("MetaX MXC500"));
        assert_eq!((gpus[0].pci.as_deref(), gpus[0].uuid.as_deref()), (Some("0000:0e:00.0"), Some("GPU-aa")));
        assert_eq!(gpus[0].trouble, None);
        assert_eq!(gpus[1].trouble, Some(GpuTrouble::CannotOpen("mx-smi reports Unavailable".into())));
    }

    #[test]
    fn only_a_clear_state_is_a_fault() {
        for (state, is_broken, is_noted) in [
            ("Available", false, false),
            ("available", false, false),
            ("", false, false),
            ("Unavailable", true, false),
            ("State: ERROR", true, false),
            ("Failed", true, false),
            ("init-failure", true, false),
            ("Lost", true, false),
            ("In Use", false, true),
            ("Errorless", false, true),
            ("\u{1b}[2J", false, true),
        ] {
            let list = listed(&format!("GPU#3 MXC500 0000:0e:00.0 {state} (UUID: GPU-aa)"));
            let [one] = &list[..] else { panic!("{state}") };
            assert_eq!(
                (one.gpu.trouble.is_some(), one.unknown_state().is_some()),
                (is_broken, is_noted),
                "{state}"
            );
        }
    }

    #[test]
    fn memory_is_read_by_device() {
        let listed = listed("GPU#0 C500 0000:0e:00.0\nGPU#1 C500 0000:0f:00.0");
        let mut gpus: Vec<Gpu> = listed.into_iter().map(|it| it.gpu).collect();
        let text = "GPU#1  MXC500  0000:0f:00.0\n    Memory\n        vis_vram total : 67108864 KB\n        \
                    vis_vram used  : 846264 KB\n        vis_vram usage : 1 %\nGPU#7\n vis_vram used : 1 KB\n";
        memory(&mut gpus, text);
        assert_eq!((gpus[0].memory_used, gpus[1].memory_total), (None, Some(64 << 30)));
        assert_eq!(gpus[1].memory_used, Some(846_264 * 1024));
    }

    #[test]
    fn without_the_tool_devices_are_listed_by_the_bus() {
        let root = tempfile::tempdir().unwrap();
        for (place, vendor) in
            [("0000:1a:00.0", "0x9999\n"), ("0000:0e:00.0", "0x9999\n"), ("0000:00:01.0", "0x8086\n")]
        {
            let folder = root.path().join("sys/bus/pci/devices").join(place);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), vendor).unwrap();
            fs::write(folder.join("class"), "0x038000\n").unwrap();
            fs::write(folder.join("numa_node"), "1\n").unwrap();
        }
        let source = Metax { root: root.path().into(), path: OsString::new() };
        let places: Vec<_> =
            source.on_the_bus().into_iter().map(|gpu| (gpu.index, gpu.pci, gpu.numa_node)).collect();
        assert_eq!(
            places,
            [(0, Some("0000:0e:00.0".into()), Some(1)), (1, Some("0000:1a:00.0".into()), Some(1))]
        );
    }
}
