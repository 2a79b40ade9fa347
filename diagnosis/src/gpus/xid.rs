//! NVIDIA's numbers of device errors, as its driver reports them (the catalogue of Xid errors in NVIDIA's
//! documentation of GPU deployment).

use serde::{Deserialize, Serialize};

use super::inventory::{Gpu, Inventory, LONGEST_LIST};

/// An error that the driver reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    /// NVIDIA's number.
    pub code: u64,
    /// How often.
    pub count: u32,
}

impl Inventory {
    /// Adds errors that were reported before this query: no query finds them again. An accelerator that has fallen
    /// off the bus since has no id, and is matched by its number.
    pub fn keep_xids(&mut self, before: &Self) {
        for old in before.gpus.iter().filter(|old| !old.xids.is_empty()) {
            let has_id = self.gpus.iter().position(|new| new.uuid.is_some() && new.uuid == old.uuid);
            let is_alike = |new: &Gpu| new.index == old.index && (new.uuid.is_none() || old.uuid.is_none());
            if let Some(place) = has_id.or_else(|| self.gpus.iter().position(is_alike)) {
                self.gpus[place].xids.clone_from(&old.xids);
            }
        }
    }

    /// Adds an error. `false`: no such accelerator.
    pub fn note_xid(&mut self, gpu: u32, code: u64) -> bool {
        let Some(gpu) = self.gpus.iter_mut().find(|it| it.index == gpu) else { return false };
        let has_room = gpu.xids.len() < LONGEST_LIST;
        match gpu.xids.iter_mut().find(|xid| xid.code == code) {
            Some(xid) => xid.count = xid.count.saturating_add(1),
            None if has_room => gpu.xids.push(Xid { code, count: 1 }),
            None => {}
        }
        true
    }
}

/// The meaning of an Xid number, for those that occur in training.
#[must_use]
pub const fn xid_name(code: u64) -> &'static str {
    match code {
        13 => "graphics engine exception, usually an application error",
        31 => "memory page fault, usually an application error",
        32 => "invalid or corrupted push buffer",
        38 => "driver firmware error",
        43 => "the device stopped processing, usually an application error",
        45 => "preemptive cleanup, usually because the process ended",
        48 => "double-bit memory error (ECC)",
        61 => "the device's microcontroller reported a breakpoint or a warning",
        62 => "the device's microcontroller halted",
        63 => "memory row remapping is pending",
        64 => "memory row remapping failed",
        69 => "graphics engine class error",
        74 => "NVLink error",
        79 => "the device has fallen off the bus",
        92 => "high rate of single-bit memory errors (ECC)",
        94 => "uncorrectable memory error, contained to one process",
        95 => "uncorrectable memory error that affected several processes",
        119 => "the GPU System Processor (GSP) timed out",
        120 => "the GPU System Processor (GSP) reported an error",
        140 => "uncorrectable memory error",
        _ => "see NVIDIA's catalogue of Xid errors",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> Gpu {
        Gpu { index, ..Gpu::default() }
    }

    #[test]
    fn an_error_is_counted_where_it_belongs() {
        let mut inventory = Inventory { gpus: vec![gpu(0), gpu(1)], ..Inventory::default() };
        assert!(inventory.note_xid(1, 79) && inventory.note_xid(1, 79) && !inventory.note_xid(2, 79));
        assert_eq!(inventory.gpus[1].xids, [Xid { code: 79, count: 2 }]);
    }

    #[test]
    fn errors_stay_with_their_accelerator() {
        let named = |index: u32, id: &str| Gpu { uuid: Some(id.into()), ..gpu(index) };
        let mut before =
            Inventory { gpus: vec![named(0, "GPU-a"), named(1, "GPU-b")], ..Inventory::default() };
        assert!(before.note_xid(0, 13) && before.note_xid(1, 79));
        let kept = |gpus: Vec<Gpu>| {
            let mut inventory = Inventory { gpus, ..Inventory::default() };
            inventory.keep_xids(&before);
            let codes = |gpu: &Gpu| gpu.xids.iter().map(|xid| xid.code).collect::<Vec<u64>>();
            inventory.gpus.iter().map(codes).collect::<Vec<_>>()
        };
        assert_eq!(
            kept(vec![named(0, "GPU-b"), named(1, "GPU-a")]),
            [[79], [13]],
            "the numbers have changed"
        );
        assert_eq!(kept(vec![named(0, "GPU-a"), gpu(1)]), [[13], [79]], "one is lost");
        assert_eq!(
            kept(vec![named(0, "GPU-a"), named(1, "GPU-c")]),
            [vec![13], vec![]],
            "another one is there"
        );
    }
}
