//! NVIDIA accelerators by `nvidia-smi`, where NVML is missing or does not initialize: for example a container into
//! which only the tool was mounted.
//!
//! NOT RUN ON A DEVICE: the output of the tool is that of published transcripts.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use diagnosis::gpus::{Gpu, MAX_GPUS, Vendor};

use super::{Collector, Source, bus, table};

/// Name of the tool.
const TOOL: &str = "nvidia-smi";

/// One line for each accelerator, with memory in MiB.
const QUERY: [&str; 2] =
    ["--query-gpu=index,uuid,pci.bus_id,memory.used,memory.total", "--format=csv,noheader,nounits"];

/// Queries `nvidia-smi`.
pub(super) struct NvidiaSmi {
    /// Contains `sys`.
    pub(super) root: PathBuf,
    /// Directories that are searched for the tool, in the form of `PATH`.
    pub(super) path: OsString,
}

impl Source for NvidiaSmi {
    fn take(&self, collector: &mut Collector<'_>) {
        // The library knows more, including that there is no device.
        if collector.inventory.vendor.is_some() || collector.inventory.driver.is_some() {
            return;
        }
        let Some(tool) = collector.find(&self.path, TOOL) else {
            collector.note("no nvidia-smi on PATH");
            return;
        };
        let Some(gpus) = collector.ask(&tool, &QUERY, |text| queried(text, &self.root)) else { return };
        collector.found(Vendor::Nvidia);
        collector.inventory.gpus = gpus;
        collector.keep();
        table::take(collector, &tool);
    }
}

/// Parses lines like `0, GPU-..., 00000000:3B:00.0, 1024, 81559`.
pub(crate) fn queried(text: &str, root: &Path) -> Result<Vec<Gpu>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_GPUS);
    let gpus = (0..).zip(lines).map(|(index, line)| {
        let shown = || line.chars().take(60).collect::<String>();
        one(index, line, root).ok_or_else(|| format!("`{}` does not describe GPU {index}", shown()))
    });
    let gpus = gpus.collect::<Result<Vec<Gpu>, String>>()?;
    if gpus.is_empty() { Err("it lists no GPU".into()) } else { Ok(gpus) }
}

fn one(index: u32, line: &str, root: &Path) -> Option<Gpu> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [number, uuid, bus_id, used, total] = fields[..] else { return None };
    let is_id = uuid.starts_with("GPU-") && uuid.len() <= 64 && !uuid.contains(char::is_whitespace);
    if number.parse() != Ok(index) || !is_id {
        return None;
    }
    let pci = Some(bus::place(bus_id)).filter(|place| bus::is_place(place));
    // `[N/A]` if the driver does not report it.
    let bytes = |mib: &str| mib.parse::<u64>().ok()?.checked_mul(1 << 20);
    Some(Gpu {
        index,
        uuid: Some(uuid.to_owned()),
        numa_node: pci.as_ref().and_then(|place| bus::numa_node(root, place)),
        pci,
        memory_used: bytes(used),
        memory_total: bytes(total),
        ..Gpu::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_each_device_are_read() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:3b:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("numa_node"), "1\n").unwrap();
        let text = "0, GPU-aa, 00000000:3B:00.0, 1024, 81559\n\n1, GPU-bb, ../../x, [N/A], [N/A]\n";
        let gpus = queried(text, root.path()).unwrap();
        assert_eq!((gpus[0].memory_used, gpus[0].memory_total), (Some(1 << 30), Some(81559 << 20)));
        assert_eq!((gpus[0].pci.as_deref(), gpus[0].numa_node), (Some("0000:3b:00.0"), Some(1)));
        let second = Gpu { index: 1, uuid: Some("GPU-bb".into()), ..Gpu::default() };
        assert_eq!(gpus[1], second);
    }

    #[test]
    fn what_is_no_list_is_told() {
        assert_eq!(queried(" \n", Path::new("/")), Err("it lists no GPU".into()));
        for text in [
            "No devices were found\n",
            "1, GPU-aa, 0, 1, 2\n",
            "0, aa, 0, 1, 2\n",
            "0, GPU-aa, 0, 1\n",
            "0, GPU-a a, 0, 1, 2\n",
        ] {
            let why = queried(text, Path::new("/")).unwrap_err();
            assert_eq!(why, format!("`{}` does not describe GPU 0", text.trim()));
        }
    }
}
