//! `NVLinks`, and the connection between two devices.

use std::collections::BTreeMap;

use diagnosis::{
    gpu_topology::{LinkKind, PciPath},
    gpus::{Gpu, GpuLink, NvLink},
};
use nvml_wrapper::{Device, Nvml as Library, enum_wrappers::device::TopologyLevel, error::NvmlError};
use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

use crate::child::gpus::bus::place;

/// `NVML_NVLINK_MAX_LINKS` of today's header.
const MAX_LINKS: u32 = 18;

/// Returns the states of a device's links; empty if it has none.
pub(super) fn of(device: &Device<'_>) -> Vec<NvLink> {
    let state = |number: u32| match device.link_wrapper_for(number).is_active() {
        Ok(is_active) => Some(NvLink { number, is_active }),
        // A device without links, or with fewer, returns an error here.
        Err(_) => None,
    };
    (0..MAX_LINKS).map_while(state).collect()
}

/// Returns the connection between each two devices that could be opened.
pub(super) fn between(library: &Library, gpus: &[Gpu]) -> Vec<GpuLink> {
    let ends: BTreeMap<u32, Ends> = gpus
        .iter()
        .filter(|gpu| gpu.trouble.is_none())
        .filter_map(|gpu| {
            Some((gpu.index, Ends::of(library, &library.device_by_index(gpu.index).ok()?, gpu)))
        })
        .collect();
    let mut links = Vec::new();
    for (a, of_a) in &ends {
        for (b, of_b) in ends.range(a + 1..) {
            let path = || -> Result<LinkKind, NvmlError> {
                let (a, b) = (library.device_by_index(*a)?, library.device_by_index(*b)?);
                Ok(LinkKind::Pci(pci_path(library.topology_common_ancestor(&a, &b)?)))
            };
            let link = match of_a.bonded_with(of_b) {
                0 => path(),
                count => Ok(LinkKind::NvLink(count)),
            };
            if let Ok(link) = link {
                links.push(GpuLink { a: *a, b: *b, link });
            }
        }
    }
    links
}

/// Two chips of one board (`INTERNAL`) share its bridge.
fn pci_path(level: TopologyLevel) -> PciPath {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single => PciPath::OneBridge,
        TopologyLevel::Multiple => PciPath::Bridges,
        TopologyLevel::HostBridge => PciPath::HostBridge,
        TopologyLevel::Node => PciPath::NumaNode,
        TopologyLevel::System => PciPath::System,
    }
}

/// Where the active links of a device lead.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ends {
    pci: Option<String>,
    /// To other devices, by PCI address.
    direct: BTreeMap<String, u32>,
    /// To switches, which reach every device that also has links to switches.
    switched: u32,
}

impl Ends {
    fn of(library: &Library, device: &Device<'_>, gpu: &Gpu) -> Self {
        let mut ends = Self { pci: gpu.pci.clone(), ..Self::default() };
        for NvLink { number, .. } in gpu.nvlinks.iter().filter(|link| link.is_active) {
            if leads_to_a_switch(library, device, *number) {
                ends.switched += 1;
            } else if let Ok(remote) = device.link_wrapper_for(*number).remote_pci_info() {
                *ends.direct.entry(place(&remote.bus_id)).or_default() += 1;
            }
        }
        ends
    }

    /// The number of links between the two.
    fn bonded_with(&self, other: &Self) -> u32 {
        let to = |from: &Self, to: &Self| to.pci.as_ref().and_then(|pci| from.direct.get(pci)).copied();
        // A link that only one end reports is still a link.
        let direct = to(self, other).unwrap_or(0).max(to(other, self).unwrap_or(0));
        if direct > 0 { direct } else { self.switched.min(other.switched) }
    }
}

/// The safe layer (0.13) always returns `Unknown`.
fn leads_to_a_switch(library: &Library, device: &Device<'_>, number: u32) -> bool {
    let Ok(ask) = &library.lib().nvmlDeviceGetNvLinkRemoteDeviceType else { return false };
    let mut kind = 0;
    // SAFETY: the handle is of the library, which is open as long as `library` lives; `kind` is a valid place.
    let answer = unsafe { ask(device.handle(), number, &raw mut kind) };
    answer == SUCCESS && kind == SWITCH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(pci: &str, direct: &[(&str, u32)], switched: u32) -> Ends {
        let direct = direct.iter().map(|(pci, count)| ((*pci).to_owned(), *count)).collect();
        Ends { pci: Some(pci.into()), direct, switched }
    }

    #[test]
    fn links_are_counted_by_where_they_lead() {
        let (a, b, c) = (ends("a", &[("b", 2), ("c", 1)], 0), ends("b", &[("a", 2)], 0), ends("c", &[], 0));
        assert_eq!((a.bonded_with(&b), a.bonded_with(&c), b.bonded_with(&c)), (2, 1, 0));
        assert_eq!(c.bonded_with(&a), 1);
        let (x, y) = (ends("x", &[], 18), ends("y", &[], 17));
        assert_eq!((x.bonded_with(&y), x.bonded_with(&c)), (17, 0));
    }
}
