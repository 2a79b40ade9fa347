//! PCI addresses: their notation, and what the kernel knows of the device.

use std::{fs, path::Path};

/// Returns the kernel's notation: NVIDIA writes the domain with eight digits in upper case, the kernel with four in
/// lower case: `0000:3b:00.0`.
pub(super) fn place(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

/// Whether the text has the form `0000:0e:00.0`.
pub(super) fn is_place(text: &str) -> bool {
    let shape = |(place, byte): (usize, u8)| match place {
        4 | 7 => byte == b':',
        10 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 12 && text.bytes().enumerate().all(shape)
}

/// The NUMA node of the device at a PCI address; `root` contains `sys`.
pub(super) fn numa_node(root: &Path, place: &str) -> Option<u32> {
    let file = root.join("sys/bus/pci/devices").join(place).join("numa_node");
    // -1 on a machine with one NUMA node.
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_the_kernel_does() {
        assert_eq!(place("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(place("0000:3b:00.0"), "0000:3b:00.0");
        assert_eq!(place("00010000:3b:00.0"), "00010000:3b:00.0");
        assert_eq!(place("nonsense"), "nonsense");
        assert!(is_place("0000:3b:00.0") && !is_place("00010000:3b:00.0") && !is_place("../../../../"));
    }
}
